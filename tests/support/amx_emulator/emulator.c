/* Intel's tile instructions (AMX) for x86-64 processors without them: a handler of SIGILL decodes each, computes it on
 * tiles of the thread, and continues after it. Arithmetic is that of the pseudocode in Intel's manual of the
 * instruction sets. What the processor would refuse ends the process, with the reason on standard error. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ucontext.h>
#include <unistd.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

struct state {
  uint8_t config[64];
  uint8_t tiles[TILES][ROWS][ROW_BYTES];
};

static __thread struct state state;
static struct sigaction previous;

/* Instructions by kind, and threads whose tiles are in use. */
enum { CONFIGURE, RELEASE, LOAD, STORE, ZERO, MULTIPLY, CONFIGURED, COUNTS };
static int64_t counts[COUNTS];

int64_t amx_count(int kind) { return __atomic_load_n(&counts[kind], __ATOMIC_SEQ_CST); }

static void add(int kind, int64_t number) { __atomic_add_fetch(&counts[kind], number, __ATOMIC_SEQ_CST); }

static void fail(const char *why) {
  static const char prefix[] = "emulated AMX: ";
  if (write(2, prefix, sizeof prefix - 1) < 0 || write(2, why, strlen(why)) < 0 || write(2, "\n", 1) < 0) {
    _exit(3);
  }
  _exit(3);
}

static int is_configured(void) { return state.config[0] != 0; }

static int rows_of(int tile) { return state.config[48 + tile]; }

static int bytes_of(int tile) { return state.config[16 + 2 * tile] | state.config[17 + 2 * tile] << 8; }

static void require_tile(int tile) {
  if (!is_configured()) {
    fail("a tile is used before the tiles are configured");
  }
  if (tile >= TILES || !rows_of(tile) || !bytes_of(tile)) {
    fail("a tile is used that is not part of the configuration");
  }
}

static void set_config(const uint8_t *config) {
  int was = is_configured();
  if (config[0] > 1) {
    fail("the palette must be 0 or 1");
  }
  if (config[0] == 1) {
    for (int i = 2; i < 64; i++) {
      if (config[i] && (i < 16 || (i >= 32 && i < 48) || i >= 56)) {
        fail("a reserved byte of the configuration is not 0");
      }
    }
    for (int i = 0; i < TILES; i++) {
      int bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8;
      if (config[48 + i] > ROWS || bytes > ROW_BYTES || !config[48 + i] != !bytes) {
        fail("a tile has too many rows or bytes, or none of one only");
      }
    }
  }
  memset(&state, 0, sizeof state);
  if (config[0] == 1) {
    memcpy(state.config, config, sizeof state.config);
  }
  add(CONFIGURED, is_configured() - was);
}

static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static float as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static float element(const uint8_t *row, int i, int is_float16) {
  uint16_t bits;
  memcpy(&bits, row + 2 * i, sizeof bits);
  if (!is_float16) {
    return flushed(as_float((uint32_t)bits << 16));
  }
  _Float16 half;
  memcpy(&half, &bits, sizeof half);
  return (float)half;
}

static void multiply_floats(int to, int left, int right, int is_float16) {
  for (int m = 0; m < rows_of(to); m++) {
    float even[ROWS] = {0}, odd[ROWS] = {0};
    for (int k = 0; k < bytes_of(left) / 4; k++) {
      float x = element(state.tiles[left][m], 2 * k, is_float16);
      float y = element(state.tiles[left][m], 2 * k + 1, is_float16);
      for (int n = 0; n < bytes_of(to) / 4; n++) {
        even[n] = flushed(fmaf(x, element(state.tiles[right][k], 2 * n, is_float16), even[n]));
        odd[n] = flushed(fmaf(y, element(state.tiles[right][k], 2 * n + 1, is_float16), odd[n]));
      }
    }
    for (int n = 0; n < bytes_of(to) / 4; n++) {
      float total;
      memcpy(&total, &state.tiles[to][m][4 * n], sizeof total);
      total = flushed(flushed(total) + flushed(even[n] + odd[n]));
      memcpy(&state.tiles[to][m][4 * n], &total, sizeof total);
    }
  }
}

static int32_t byte_of(uint8_t byte, int is_signed) { return is_signed ? (int8_t)byte : byte; }

static void multiply_bytes(int to, int left, int right, int left_signed, int right_signed) {
  for (int m = 0; m < rows_of(to); m++) {
    for (int n = 0; n < bytes_of(to) / 4; n++) {
      uint32_t total;
      memcpy(&total, &state.tiles[to][m][4 * n], sizeof total);
      for (int k = 0; k < bytes_of(left) / 4; k++) {
        for (int i = 0; i < 4; i++) {
          total += (uint32_t)(byte_of(state.tiles[left][m][4 * k + i], left_signed) *
                              byte_of(state.tiles[right][k][4 * n + i], right_signed));
        }
      }
      memcpy(&state.tiles[to][m][4 * n], &total, sizeof total);
    }
  }
}

static void multiply(int opcode, int prefix, int to, int left, int right) {
  require_tile(to), require_tile(left), require_tile(right);
  if (to == left || to == right || left == right) {
    fail("the three tiles of a product must differ");
  }
  if (rows_of(to) != rows_of(left) || bytes_of(to) != bytes_of(right) || bytes_of(left) != 4 * rows_of(right)) {
    fail("the tiles of a product do not fit");
  }
  add(MULTIPLY, 1);
  if (opcode == 0x5c) {
    multiply_floats(to, left, right, prefix == 3);
  } else { /* no prefix: both unsigned; 66: unsigned by signed; F3: signed by unsigned; F2: both signed */
    multiply_bytes(to, left, right, prefix >= 2, prefix & 1);
  }
}

static const int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/* A memory operand: its address, the index register's value in bytes, and the bytes of the instruction. */
struct operand {
  uint8_t *address;
  int64_t stride;
  int length;
};

static struct operand memory(const uint8_t *modrm, int index_bit, int base_bit, const greg_t *values, int has_stride) {
  struct operand result = {0, 0, 1};
  int mod = modrm[0] >> 6, base = modrm[0] & 7, has_sib = base == 4;
  int64_t index = 0;
  if (has_sib) {
    int sib = modrm[result.length++], number = (sib >> 3 & 7) | index_bit << 3;
    base = sib & 7;
    index = number == 4 ? 0 : (int64_t)((uint64_t)values[registers[number]] << (sib >> 6));
  }
  int64_t at = 0;
  int is_absolute = mod == 0 && base == 5;
  if (is_absolute && !has_sib) {
    fail("an address relative to the instruction is not emulated");
  }
  if (!is_absolute) {
    at = values[registers[base | base_bit << 3]];
  }
  if (mod == 1) {
    at += (int8_t)modrm[result.length++];
  } else if (mod == 2 || is_absolute) {
    int32_t displacement;
    memcpy(&displacement, modrm + result.length, sizeof displacement);
    at += displacement;
    result.length += 4;
  }
  result.address = (uint8_t *)(has_stride ? at : at + index);
  result.stride = index;
  return result;
}

/* Runs the instruction at ``code``; returns its length, or 0 if it is another one. */
static int run(const uint8_t *code, const greg_t *values) {
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84)) { /* VEX.128 of map 0F38, W0 */
    return 0;
  }
  int prefix = code[2] & 3, opcode = code[3], modrm = code[4], is_register = modrm >> 6 == 3;
  int third = ~(code[2] >> 3) & 15, index_bit = !(code[1] & 0x40), base_bit = !(code[1] & 0x20);
  int tile = (modrm >> 3 & 7) | !(code[1] & 0x80) << 3;
  if (opcode == 0x5c || opcode == 0x5e) {
    if (!is_register || (opcode == 0x5c && prefix < 2)) {
      return 0;
    }
    multiply(opcode, prefix, tile, (modrm & 7) | base_bit << 3, third);
    return 5;
  }
  if (opcode == 0x49 && is_register) {
    if (prefix == 0) {
      static const uint8_t none[64];
      add(RELEASE, 1);
      set_config(none);
    } else if (prefix == 3) {
      require_tile(tile);
      add(ZERO, 1);
      memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
    } else {
      return 0;
    }
    return 5;
  }
  if (opcode == 0x49) {
    struct operand at = memory(code + 4, index_bit, base_bit, values, 0);
    if (prefix == 0) {
      add(CONFIGURE, 1);
      set_config(at.address);
    } else if (prefix == 1) {
      memcpy(at.address, state.config, sizeof state.config);
    } else {
      return 0;
    }
    return 4 + at.length;
  }
  if (opcode != 0x4b || is_register || prefix == 0) {
    return 0;
  }
  struct operand at = memory(code + 4, index_bit, base_bit, values, 1);
  require_tile(tile);
  add(prefix == 2 ? STORE : LOAD, 1);
  if (prefix != 2) {
    memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
  }
  for (int row = 0; row < rows_of(tile); row++) {
    uint8_t *line = at.address + row * at.stride;
    if (prefix == 2) {
      memcpy(line, state.tiles[tile][row], (size_t)bytes_of(tile));
    } else {
      memcpy(state.tiles[tile][row], line, (size_t)bytes_of(tile));
    }
  }
  return 4 + at.length;
}

static void handle(int number, siginfo_t *info, void *context) {
  greg_t *values = ((ucontext_t *)context)->uc_mcontext.gregs;
  int length = run((const uint8_t *)values[REG_RIP], values);
  if (length) {
    values[REG_RIP] += length;
  } else if (previous.sa_flags & SA_SIGINFO && previous.sa_sigaction) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  } else { /* the instruction runs again, and ends the process */
    sigaction(number, &previous, NULL);
  }
}

int amx_install(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGILL, &action, &previous);
}

int amx_remove(void) { return sigaction(SIGILL, &previous, NULL); }
