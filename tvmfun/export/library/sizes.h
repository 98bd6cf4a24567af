/* Dynamic sizes: the shapes of leaves, and the layout of a run's memory, which are known when the sizes are. */
#ifndef TVMFUN_SIZES_H
#define TVMFUN_SIZES_H

#include "tvmfun/step.h"

/* Operations of formulas in postfix notation; the division rounds down, and its divisor is positive. */
enum operation { FORMULA_END, FORMULA_NUMBER, FORMULA_SIZE, FORMULA_ADD, FORMULA_MULTIPLY, FORMULA_DIVIDE };

/* Pairs of an operation and a number: the number itself, or that of a size. */
typedef const int64_t *formula;

/* The first and the last step that uses a buffer. */
struct lifetime {
  int32_t first, last;
};

/* A workspace of kernels, which so many threads allocate; the formula is NULL where the most recent one is freed. */
struct allocation {
  formula nbytes;
  int32_t threads;
};

/* The part of a plan that depends on sizes. */
struct dynamic_plan {
  const formula *fresh; /* the bytes of each piece of new memory */
  const formula *buffers;
  const struct lifetime *lifetimes;
  int32_t buffer_count;
  const struct allocation *allocations;
  int32_t allocation_count;
  int32_t threads;
};

/* The leaves of a function of dynamic sizes. */
struct dynamic_shapes {
  const formula *axes; /* of all leaves, one after the other: arguments, then results */
  const formula *counts; /* the numbers of elements of all values, which must be below 2**31 */
  int32_t axis_count, count_count;
};

struct variant;

/* What a run knows when it knows the sizes. For static sizes it is known before. */
struct layout {
  const struct variant *variant;
  int64_t *sizes;
  int64_t *axes;
  tvmfun_leaf *leaves;
  tvmfun_signature signature; /* with the shapes and bytes for these sizes */
  uint64_t *fresh;            /* the bytes of each piece of new memory */
  uint64_t *offsets;          /* of each intermediate */
  uint64_t temporaries, workspaces;
};

/* A layout for no sizes yet, or that of static sizes; NULL if there is no memory. */
struct layout *tvmfun_layout_create(const struct variant *variant);
void tvmfun_layout_destroy(struct layout *layout);
/* Computes the layout for these sizes. */
tvmfun_status tvmfun_layout_compute(struct layout *layout, const int64_t *sizes);

/* Checks the number of sizes, and each against its bounds. */
tvmfun_status tvmfun_check_sizes(const int64_t *sizes, int32_t size_count);
/* Writes the sizes of all axes of all leaves, and checks the numbers of elements. */
tvmfun_status tvmfun_compute_axes(const int64_t *sizes, int64_t *axes);

#endif
