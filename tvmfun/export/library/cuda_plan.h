/* The contents of a library for GPUs, which are generated: machine code, and the launches of a call as constants.
 *
 * A call has a table of addresses: the constants that the function closes over, arguments, new memory for results, the
 * block of intermediates, and the constants of the kernels. */
#ifndef TVMFUN_CUDA_PLAN_H
#define TVMFUN_CUDA_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "tvmfun/step.h"

/* Bytes in the GPU's memory: the address in a slot of the table, plus an offset. */
struct cuda_address {
  int32_t slot;
  uint64_t offset;
};

/* A tensor, of which the copy engine moves boxes; its axes other than the first have strides in bytes. */
struct cuda_tensor {
  int32_t dtype; /* of CUtensorMapDataType */
  uint32_t rank;
  uint64_t sizes[5], strides[4];
  uint32_t box[5];
};

/* An argument of a kernel: an address, the map of a tensor that begins there, or a number that is affine in the indices
 * of the loops around it. A map takes 16 words, at a multiple of 16; all others take one. */
struct cuda_argument {
  int32_t slot;            /* -1: a number */
  int32_t stride_count;
  uint64_t value;          /* the offset, or the bits of the number when all indices are 0 */
  uint64_t mask;           /* of the bits that a number has */
  const uint64_t *strides; /* what one iteration adds, modulo 2^64; of the outermost loop first */
  const struct cuda_tensor *tensor; /* NULL unless a map is passed */
};

struct cuda_launch {
  int32_t kernel;
  uint32_t grid[3], block[3], cluster[3], shared_bytes;
  const struct cuda_argument *arguments;
  int32_t argument_count;
  int32_t is_packed; /* the kernel has one parameter: a struct of all arguments */
};

/* Within the GPU's memory; the ranges do not overlap. */
struct cuda_copy {
  struct cuda_address target, source;
  uint64_t nbytes;
};

struct cuda_sequence {
  const struct cuda_operation *operations;
  int32_t count;
};

/* A counted loop, whose index numbers in its body may follow. */
struct cuda_repeat {
  int64_t count;
  struct cuda_sequence body;
};

/* A loop that goes on while a byte in the GPU's memory is not 0, which is tested first. */
struct cuda_while {
  struct cuda_address condition;
  struct cuda_sequence body;
};

/* One of several sequences, by a number in the GPU's memory. Lower numbers take the first, higher ones the last. */
struct cuda_branch {
  struct cuda_address index;
  int32_t nbytes; /* 1, or 4 for an int32 */
  int32_t case_count;
  const struct cuda_sequence *cases;
};

/* Operations that become a graph: launches, copies and counted loops that depend on no data; loops and branches as well
 * where the driver has conditional nodes. */
struct cuda_stretch {
  int32_t number; /* among those that become graphs; -1: always launched one by one */
  struct cuda_sequence body;
};

struct cuda_operation {
  enum { CUDA_LAUNCH, CUDA_COPY, CUDA_REPEAT, CUDA_WHILE, CUDA_BRANCH, CUDA_STRETCH } kind;
  union {
    struct cuda_launch launch;
    struct cuda_copy copy;
    struct cuda_repeat repeat;
    struct cuda_while loop;
    struct cuda_branch branch;
    struct cuda_stretch stretch;
  };
};

struct cuda_kernel {
  const char *name;
  int32_t image;
  uint32_t shared_bytes; /* the most dynamic shared memory of its launches */
};

/* Machine code for one architecture, and what it launches. */
struct cuda_variant {
  const char *target;
  int32_t major, minor;
  enum { CUDA_SAME_MAJOR, CUDA_EXACT } fits; /* GPUs of the same major and no lower minor number; or only this one */
  const void *const *images;
  int32_t image_count;
  const struct cuda_kernel *kernels;
  int32_t kernel_count;
  int32_t condition; /* the kernel that tells a conditional node what to run, or -1; it is the last, as is its image */
  struct cuda_sequence operations;
  int32_t stretch_count, depth, most_words; /* the graphs, nested loops, and words of a launch's arguments */
  const uint64_t *fresh; /* the bytes of each piece of new memory */
  int32_t fresh_count;
  const int32_t *slots; /* for each result the slot of its address */
  uint64_t temporaries;
  const void *constants; /* of the kernels */
  uint64_t constant_bytes;
};

/* An array that the function closes over. */
struct cuda_array {
  const void *data;
  uint64_t nbytes;
};

struct cuda_contents {
  tvmfun_signature signature;
  const struct cuda_variant *variants; /* the first that a GPU can run is taken */
  int32_t variant_count;
  const struct cuda_array *captured;
  int32_t captured_count;
  const char *manifest;
  uint64_t manifest_bytes;
};

extern const struct cuda_contents tvmfun_cuda_contents;

#endif
