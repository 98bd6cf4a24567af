/* The functions that compiled kernels call: parallel loops, workspaces, and errors.
 *
 * Kernels find them through variables that TVM's runtime would fill. Each object of kernels has weak definitions of
 * these; those at the end of this file replace them when the library is linked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

/* The lane of the task or run that this thread is at work for, and whether it is a task. */
static _Thread_local struct lane *current;
static _Thread_local int is_task;

/* -- memory ------------------------------------------------------------------------------------------------------ */

#define HUGE_PAGE ((uint64_t)2 << 20)

void *tvmfun_allocate(uint64_t nbytes) {
  int is_large = nbytes >= 2 * HUGE_PAGE;
  void *memory = NULL;
  if (nbytes > SIZE_MAX - HUGE_PAGE ||
      posix_memalign(&memory, is_large ? HUGE_PAGE : TVMFUN_ALIGNMENT, nbytes ? nbytes : 1)) {
    return NULL;
  }
#ifdef MADV_HUGEPAGE
  if (is_large) {
    madvise(memory, nbytes, MADV_HUGEPAGE);
  }
#endif
  return memory;
}

/* The smallest idle piece that is large enough, or the largest idle one, to be replaced; NULL if none is idle. */
static struct workspace *idle_piece(struct lane *lane, size_t nbytes) {
  struct workspace *best = NULL;
  for (int32_t i = 0; i < lane->count; i++) {
    struct workspace *piece = &lane->workspaces[i];
    if (piece->is_used) {
      continue;
    }
    int fits = piece->nbytes >= nbytes;
    if (!best || (fits && (best->nbytes < nbytes || piece->nbytes < best->nbytes)) ||
        (!fits && best->nbytes < nbytes && piece->nbytes > best->nbytes)) {
      best = piece;
    }
  }
  return best;
}

static struct workspace *new_piece(struct lane *lane) {
  if (lane->count == lane->capacity) {
    int32_t capacity = lane->capacity ? 2 * lane->capacity : 8;
    struct workspace *larger = realloc(lane->workspaces, sizeof(struct workspace) * (size_t)capacity);
    if (!larger) {
      return NULL;
    }
    lane->workspaces = larger;
    lane->capacity = capacity;
  }
  struct workspace *piece = &lane->workspaces[lane->count++];
  *piece = (struct workspace){NULL, 0, 0};
  return piece;
}

static void *allocate_workspace(int device, int number, uint64_t nbytes, int code, int bits) {
  (void)device, (void)number, (void)code, (void)bits;
  struct lane *lane = current;
  struct workspace *piece = idle_piece(lane, nbytes);
  if (!piece) {
    piece = new_piece(lane);
  }
  if (piece && (!piece->memory || piece->nbytes < nbytes)) {
    free(piece->memory);
    piece->memory = tvmfun_allocate(nbytes);
    piece->nbytes = piece->memory ? nbytes : 0;
  }
  if (!piece || !piece->memory) {
    lane->is_out_of_memory = 1;
    snprintf(lane->error, sizeof lane->error, "there is no memory for a workspace of %llu bytes",
             (unsigned long long)nbytes);
    return NULL;
  }
  piece->is_used = 1;
  return piece->memory;
}

static int free_workspace(int device, int number, void *memory) {
  (void)device, (void)number;
  struct lane *lane = current;
  for (int32_t i = lane->count; i-- > 0;) {
    if (lane->workspaces[i].memory == memory) {
      lane->workspaces[i].is_used = 0;
      return 0;
    }
  }
  return -1;
}

void tvmfun_free_workspaces(struct lane *lane) {
  for (int32_t i = 0; i < lane->count; i++) {
    free(lane->workspaces[i].memory);
  }
  free(lane->workspaces);
}

/* -- parallel loops ---------------------------------------------------------------------------------------------- */

/* Kernels read the number of tasks; the counter is for barriers, which our loops do not have. */
struct group {
  void *counter;
  int32_t count;
};

typedef int (*loop_body)(int task, struct group *group, void *data);

struct loop {
  loop_body body;
  void *data;
  struct group group;
  struct run *run;
  atomic_int has_failed;
};

static void run_task(void *argument, int32_t i) {
  struct loop *loop = argument;
  struct lane *outer = current;
  int outer_is_task = is_task;
  current = &loop->run->lanes[i];
  is_task = 1;
  if (loop->body(i, &loop->group, loop->data)) {
    atomic_store(&loop->has_failed, i + 1);
  }
  current = outer;
  is_task = outer_is_task;
}

static int alone(loop_body body, void *data, int count) {
  struct group group = {NULL, count};
  for (int i = 0; i < count; i++) {
    if (body(i, &group, data)) {
      return -1;
    }
  }
  return 0;
}

/* `wanted` is the number of tasks, or 0 for any number: the results are the same. */
static int launch(loop_body body, void *data, int wanted) {
  if (!data) {
    return 0; /* an empty loop, where Python would look for signals */
  }
  struct run *run = current->run;
  struct tvmfun_step *step = run->step;
  int count = wanted ? wanted : step->threads;
  if (is_task || count == 1 || count > step->threads || (step->pool && !tvmfun_pool_take(step->pool))) {
    return alone(body, data, wanted ? wanted : 1);
  }
  struct loop loop = {body, data, {NULL, count}, run, 0};
  step->parallel_for(step->parallel_context, count, run_task, &loop);
  if (step->pool) {
    tvmfun_pool_release(step->pool);
  }
  int failed = atomic_load(&loop.has_failed);
  if (failed && &run->lanes[failed - 1] != current) {
    struct lane *lane = &run->lanes[failed - 1];
    current->is_out_of_memory = lane->is_out_of_memory;
    memcpy(current->error, lane->error, sizeof lane->error);
  }
  return failed ? -1 : 0;
}

static int barrier(int task, struct group *group) {
  (void)task, (void)group;
  snprintf(current->error, sizeof current->error, "a loop has a barrier, which exported libraries do not support");
  return -1;
}

/* -- errors ------------------------------------------------------------------------------------------------------ */

static void set_error(const char *kind, const char *message) {
  snprintf(current->error, sizeof current->error, "%s: %s", kind, message);
}

static int not_here(void) {
  snprintf(current->error, sizeof current->error, "a kernel calls a function of TVM's runtime");
  return -1;
}

int tvmfun_call(struct run *run) {
  for (int32_t i = 0; i < run->step->threads; i++) {
    struct lane *lane = &run->lanes[i];
    lane->error[0] = 0;
    lane->is_out_of_memory = 0;
    for (int32_t j = 0; j < lane->count; j++) {
      lane->workspaces[j].is_used = 0; /* a kernel that failed did not free them */
    }
  }
  struct lane *outer = current;
  int outer_is_task = is_task;
  current = run->lanes;
  is_task = 0;
  struct value argument = {.pointer = run->table}, result = {0};
  int code = run->step->variant->main(NULL, &argument, 1, &result);
  current = outer;
  is_task = outer_is_task;
  return code;
}

/* -- the variables of kernels, by TVM's names -------------------------------------------------------------------- */

void *__tvm_ffi__library_ctx = NULL;
int (*__TVMBackendParallelLaunch)(loop_body, void *, int) = launch;
int (*__TVMBackendParallelBarrier)(int, struct group *) = barrier;
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate_workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = free_workspace;
void (*__TVMFFIErrorSetRaisedFromCStr)(const char *, const char *) = set_error;
int (*__TVMFFIFunctionCall)(void) = not_here;
int (*__TVMFFIEnvModLookupFromImports)(void) = not_here;
int (*__TVMFFIHandleInitOnce)(void) = not_here;
