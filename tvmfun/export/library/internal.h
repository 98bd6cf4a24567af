/* What the files of an exported library share: the contents that are generated for it, runs, threads, and errors. */
#ifndef TVMFUN_INTERNAL_H
#define TVMFUN_INTERNAL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "buffers.h"
#include "sizes.h"
#include "tvmfun/step.h"

/* -- contents.c, which is generated ------------------------------------------------------------------------------ */

/* A feature of a processor: a bit of CPUID and the state that the system has to save, or a bit of the auxiliary vector. */
struct feature {
  const char *name;
  uint32_t leaf, subleaf; /* on Arm: the entry of the auxiliary vector, and 0 */
  uint32_t word;          /* 0 to 3: EAX, EBX, ECX, EDX */
  uint32_t bit;
  uint32_t state; /* bits of XCR0 */
};

/* TVM's FFI passes a value with its kind. */
struct value {
  int32_t kind;
  int32_t padding;
  union {
    int64_t number;
    void *pointer;
  };
};

typedef int (*packed_function)(void *self, struct value *arguments, int32_t count, struct value *result);

/* Machine code for one target. Its table of addresses: constants, arguments, new memory for results, temporaries. */
struct variant {
  const char *target;
  const struct feature *features;
  int32_t feature_count;
  packed_function main;
  const uint64_t *fresh; /* the bytes of each piece of new memory */
  int32_t fresh_count;
  const int32_t *slots; /* for each result the slot of its address */
  uint64_t temporaries, workspaces;
  const struct dynamic_plan *dynamic; /* instead of fresh and these bytes; NULL if all sizes are static */
};

struct contents {
  tvmfun_signature signature;
  const struct variant *variants; /* the most demanding first */
  int32_t variant_count;
  const void *const *constants;
  int32_t constant_count;
  const char *manifest;
  uint64_t manifest_bytes;
  struct dynamic_shapes shapes;
};

extern const struct contents tvmfun_contents;

/* -- processor.c ------------------------------------------------------------------------------------------------- */

/* Whether this processor has a feature. */
int tvmfun_has_feature(const struct feature *feature);

/* -- pool.c ------------------------------------------------------------------------------------------------------ */

struct pool;

/* A pool whose threads start at the first loop; NULL if there is no memory. */
struct pool *tvmfun_pool_create(int32_t threads);
void tvmfun_pool_destroy(struct pool *pool);
/* Whether this thread has the pool for itself until it releases it. */
int tvmfun_pool_take(struct pool *pool);
void tvmfun_pool_release(struct pool *pool);
/* A tvmfun_parallel_for; this thread has taken the pool. */
void tvmfun_pool_for(void *pool, int32_t count, void (*task)(void *argument, int32_t i), void *argument);

/* -- kernels.c --------------------------------------------------------------------------------------------------- */

/* A piece of memory that kernels used as a workspace, and may use again. */
struct workspace {
  void *memory;
  size_t nbytes;
  int is_used;
};

/* What one thread of a run has for itself. */
struct lane {
  struct run *run;
  struct workspace *workspaces;
  int32_t count, capacity;
  int is_out_of_memory;
  char error[256];
};

/* Memory that grows to the most that was needed. */
struct memory {
  void *data;
  uint64_t nbytes;
};

/* One run at a time; others have their own. */
struct run {
  struct tvmfun_step *step;
  struct run *next; /* among those that are idle */
  struct layout *layout;
  int is_ready; /* whether the memory is that of the layout */
  struct memory temporaries;
  struct memory *scratch; /* for each piece of new memory that no result of the caller takes: its own */
  uint64_t *table;
  tvmfun_buffer *buffers; /* those of the last run that were right: arguments, then results */
  struct lane lanes[];
};

struct tvmfun_step {
  const struct variant *variant;
  int32_t threads;
  tvmfun_parallel_for parallel_for;
  void *parallel_context;
  struct pool *pool; /* NULL if it is the caller's */
  struct run *idle; /* taken with the lock */
  atomic_flag lock;
};

/* Calls main with the table; returns 0, or -1 after the first lane has the error. */
int tvmfun_call(struct run *run);
void tvmfun_free_workspaces(struct lane *lane);
/* Aligned memory; NULL if there is none. Large pieces get huge pages where the system has them. */
void *tvmfun_allocate(uint64_t nbytes);

#endif
