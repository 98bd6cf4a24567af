/* The features of the processor that this runs on. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* XGETBV by its bytes: the intrinsic needs an option of the compiler. */
static uint32_t saved_state(void) {
  uint32_t low, high;
  __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

/* Whether Linux saves the tiles of AMX for this process, which it does on request: ARCH_REQ_XCOMP_PERM. */
static int may_use_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

int tvmfun_has_feature(const struct feature *feature) {
  const uint32_t tiles = 1u << 18;
  uint32_t words[4] = {0, 0, 0, 0};
  if (feature->state) {
    const uint32_t saves_extended_state = 1u << 27;
    if (!__get_cpuid(1, &words[0], &words[1], &words[2], &words[3]) || !(words[2] & saves_extended_state) ||
        (saved_state() & feature->state) != feature->state) {
      return 0;
    }
  }
  return __get_cpuid_count(feature->leaf, feature->subleaf, &words[0], &words[1], &words[2], &words[3]) &&
         (words[feature->word] >> feature->bit & 1u) && (!(feature->state & tiles) || may_use_tiles());
}

#else

#include <sys/auxv.h>

int tvmfun_has_feature(const struct feature *feature) {
  return (int)(getauxval(feature->leaf) >> feature->bit & 1ul);
}

#endif
