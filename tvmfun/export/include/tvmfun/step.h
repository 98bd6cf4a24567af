/* The C ABI of a compiled function that tvmfun exported, such as a training step.
 *
 * A library exports one function, tvmfun_get_api. Everything else is reached through the table it returns, so that a
 * program can load any number of libraries. The library needs libc, libm and POSIX threads.
 */
#ifndef TVMFUN_STEP_H
#define TVMFUN_STEP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TVMFUN_ABI_VERSION 2

/* Buffers with elements begin at a multiple of so many bytes. */
#define TVMFUN_ALIGNMENT 64

typedef enum tvmfun_status {
  TVMFUN_OK = 0,
  TVMFUN_BAD_ARGUMENT = 1,       /* a null pointer, a wrong number of buffers, or an option out of range */
  TVMFUN_WRONG_SIZE = 2,         /* a buffer does not have the bytes of its leaf, or a dynamic size is out of bounds */
  TVMFUN_WRONG_DTYPE = 3,        /* a buffer says that it has other elements than its leaf */
  TVMFUN_MISALIGNED = 4,         /* a buffer does not begin at a multiple of TVMFUN_ALIGNMENT */
  TVMFUN_OVERLAP = 5,            /* a buffer that is written overlaps another one */
  TVMFUN_OUT_OF_MEMORY = 6,
  TVMFUN_KERNEL_FAILED = 7,      /* a kernel stopped; inputs that are written hold anything */
  TVMFUN_MISSING_FEATURE = 8,    /* the processor lacks instructions that the library was compiled for */
  /* The loaders return these, before they run anything of the file. */
  TVMFUN_DAMAGED_FILE = 9,       /* truncated or altered, or not such a library at all */
  TVMFUN_WRONG_ARCHITECTURE = 10,
  TVMFUN_WRONG_VERSION = 11,     /* the library has another TVMFUN_ABI_VERSION */
  /* Of functions for GPUs, see cuda.h. Code for other GPUs than this one is a WRONG_ARCHITECTURE. */
  TVMFUN_NO_DEVICE = 12,         /* there is no GPU, or no driver that is new enough */
  TVMFUN_DEVICE_FAILED = 13      /* a function of the driver failed */
} tvmfun_status;

typedef enum tvmfun_dtype {
  TVMFUN_BOOL = 1, /* one byte, 0 or 1 */
  TVMFUN_INT8 = 2,
  TVMFUN_INT16 = 3,
  TVMFUN_INT32 = 4,
  TVMFUN_INT64 = 5,
  TVMFUN_UINT8 = 6,
  TVMFUN_UINT16 = 7,
  TVMFUN_UINT32 = 8,
  TVMFUN_UINT64 = 9,
  TVMFUN_FLOAT16 = 10,
  TVMFUN_BFLOAT16 = 11,
  TVMFUN_FLOAT32 = 12,
  TVMFUN_FLOAT64 = 13
} tvmfun_dtype;

/* An array among the arguments or results. Elements are contiguous, in C order, in the machine's byte order. */
typedef struct tvmfun_leaf {
  const char *name;     /* for arguments "state.model.weight", for results "[0].model.weight" */
  const int64_t *shape; /* ndim sizes; -1 where they are dynamic */
  int32_t ndim;
  int32_t dtype;   /* a tvmfun_dtype */
  uint64_t nbytes; /* 0 where sizes are dynamic */
  /* An argument: the result that is written over it, or -1. A result: the argument it is written over, or -1. */
  int32_t partner;
  /* An argument: 1 if it was donated, so that its contents are undefined after a run, unless it has a partner. */
  int32_t donated;
  /* An argument: the value the library was exported with, aligned like a buffer, or NULL. */
  const void *initial;
} tvmfun_leaf;

/* A dynamic size, such as that of a batch: compiled code runs for all its values. */
typedef struct tvmfun_size {
  const char *name;
  int64_t min, max;
} tvmfun_size;

typedef struct tvmfun_signature {
  const char *name; /* of the function */
  const tvmfun_leaf *inputs;
  const tvmfun_leaf *outputs;
  int32_t input_count;
  int32_t output_count;
  const tvmfun_size *sizes;
  int32_t size_count;
} tvmfun_signature;

/* What a step runs, and the bytes it allocates: the sum is known before the first run. */
typedef struct tvmfun_plan {
  const char *target;   /* the target of the machine code that was chosen */
  uint64_t arguments;   /* of the caller's buffers */
  uint64_t results;     /* of the caller's buffers that are not written over arguments */
  uint64_t temporaries; /* one block for each run at a time */
  uint64_t workspaces;  /* of kernels, in all threads of the target; for each run at a time;
                         * on GPUs constants and all other memory of a step */
} tvmfun_plan;

typedef struct tvmfun_buffer {
  void *data;
  uint64_t nbytes;
  int32_t dtype; /* a tvmfun_dtype */
} tvmfun_buffer;

/* Runs task(argument, 0), ..., task(argument, count - 1), in any order and in any threads, and returns after the last. */
typedef void (*tvmfun_parallel_for)(void *context, int32_t count, void (*task)(void *argument, int32_t i),
                                    void *argument);

typedef struct tvmfun_options {
  /* The threads that kernels use, with the caller's; 0 for one for each CPU that the process may use. */
  int32_t threads;
  /* The caller's pool, or NULL: then the step has its own. Tasks never call it, but threads that run at the same time
   * call it at the same time. */
  tvmfun_parallel_for parallel_for;
  void *parallel_context;
} tvmfun_options;

typedef struct tvmfun_step tvmfun_step;

typedef struct tvmfun_api {
  uint32_t abi_version; /* TVMFUN_ABI_VERSION */
  const tvmfun_signature *(*signature)(void);
  /* The manifest: JSON, of so many bytes. */
  const char *(*manifest)(uint64_t *nbytes);
  /* Fails where create would. That of a function of dynamic sizes is plan_for. */
  tvmfun_status (*plan)(tvmfun_plan *plan);
  /* Chooses the machine code for this processor, and makes a step; NULL for the default options. */
  tvmfun_status (*create)(const tvmfun_options *options, tvmfun_step **step);
  /* Calls the function. One buffer per leaf, in the order of the signature. A result that is written over an argument
   * has the same data as that argument, or NULL. No buffer that is written may overlap another one.
   * Any number of threads may run one step at the same time; a run that finds the pool busy works alone. */
  tvmfun_status (*run)(tvmfun_step *step, const tvmfun_buffer *inputs, int32_t input_count,
                       const tvmfun_buffer *outputs, int32_t output_count);
  /* Frees everything, and ends the threads of the step. No run may be under way. NULL is allowed. */
  void (*destroy)(tvmfun_step *step);
  /* The message of the last error in this thread: what went wrong, and with which leaf. */
  const char *(*message)(void);
  /* Writes the sizes of all axes of all leaves, arguments first, one leaf after the other. Dynamic sizes are numbers in
   * the order of the signature. They are checked: their bounds, and that no array has 2**31 elements or more. */
  tvmfun_status (*shapes)(const int64_t *sizes, int32_t size_count, int64_t *axes);
  /* The same as plan and run for these dynamic sizes. Buffers have the bytes of the shapes for them. Memory grows to what
   * the largest sizes so far needed. A run that has the sizes of an earlier one plans nothing anew. */
  tvmfun_status (*plan_for)(const int64_t *sizes, int32_t size_count, tvmfun_plan *plan);
  tvmfun_status (*run_for)(tvmfun_step *step, const int64_t *sizes, int32_t size_count, const tvmfun_buffer *inputs,
                           int32_t input_count, const tvmfun_buffer *outputs, int32_t output_count);
} tvmfun_api;

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const tvmfun_api *
tvmfun_get_api(void);

#ifdef __cplusplus
}
#endif

#endif
