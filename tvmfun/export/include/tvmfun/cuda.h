/* The C ABI of functions that were exported for NVIDIA's GPUs, beside that of step.h.
 *
 * Such a library exports tvmfun_get_api and tvmfun_get_cuda_api. It opens the driver, libcuda.so.1, when a step is made,
 * so it links and loads on machines without one. The data of all buffers is memory of the GPU.
 */
#ifndef TVMFUN_CUDA_H
#define TVMFUN_CUDA_H

#include "tvmfun/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A CUstream or cudaStream_t of the device's primary context; NULL is the stream that the step has for itself. It waits
 * for the legacy default stream, and that one for it. */
typedef void *tvmfun_cuda_stream;

typedef struct tvmfun_cuda_options {
  int32_t device; /* its number among those that CUDA_VISIBLE_DEVICES lists */
} tvmfun_cuda_options;

/* The functions of tvmfun_api are for GPUs, too: create takes the first one, run waits until everything is done. Memory
 * may be the caller's own (cuMemAlloc, cudaMalloc), or that of allocate. */
typedef struct tvmfun_cuda_api {
  uint32_t abi_version; /* TVMFUN_ABI_VERSION */
  /* Loads the machine code for the GPU and allocates its temporaries; NULL for the default options. */
  tvmfun_status (*create)(const tvmfun_cuda_options *options, tvmfun_step **step);
  /* Like run of tvmfun_api, but returns when the work is in the stream, except that loops and branches which depend on
   * data wait for it. Runs of one step follow one another, in whatever streams they are. A kernel that fails is
   * noticed by synchronize, or by whatever comes next. */
  tvmfun_status (*run)(tvmfun_step *step, const tvmfun_buffer *inputs, int32_t input_count,
                       const tvmfun_buffer *outputs, int32_t output_count, tvmfun_cuda_stream stream);
  /* Waits until everything in the stream is done. */
  tvmfun_status (*synchronize)(tvmfun_step *step, tvmfun_cuda_stream stream);
  /* Memory of the step's GPU, aligned like a buffer, for any number of bytes. Release waits for the work on it. */
  tvmfun_status (*allocate)(tvmfun_step *step, uint64_t nbytes, void **memory);
  tvmfun_status (*release)(tvmfun_step *step, void *memory);
  /* To the GPU, after what is in the stream. Pageable memory of the host has been read when it returns, pinned memory
   * when the stream is done. */
  tvmfun_status (*upload)(tvmfun_step *step, void *target, const void *source, uint64_t nbytes,
                          tvmfun_cuda_stream stream);
  /* To the host, after what is in the stream; it waits. */
  tvmfun_status (*download)(tvmfun_step *step, void *target, const void *source, uint64_t nbytes,
                            tvmfun_cuda_stream stream);
  /* Zeros, after what is in the stream. */
  tvmfun_status (*clear)(tvmfun_step *step, void *target, uint64_t nbytes, tvmfun_cuda_stream stream);
} tvmfun_cuda_api;

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const tvmfun_cuda_api *
tvmfun_get_cuda_api(void);

#ifdef __cplusplus
}
#endif

#endif
