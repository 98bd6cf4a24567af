/* What the files of a library for GPUs share: steps, and the launches of their calls. */
#ifndef TVMFUN_CUDA_INTERNAL_H
#define TVMFUN_CUDA_INTERNAL_H

#include <pthread.h>

#include "cuda_driver.h"
#include "cuda_plan.h"

/* The graphs of a stretch that are kept, by addresses. */
#define CUDA_GRAPHS_KEPT 8

/* The launches of a stretch with the addresses of one table. */
struct cuda_graph {
  uint64_t *table;
  CUgraphExec exec; /* NULL until the addresses come again */
  uint64_t used;    /* when it was used last; 0: never */
};

struct tvmfun_step {
  const struct cuda_variant *variant;
  int device;
  CUcontext context; /* the device's primary one; NULL until it is retained */
  CUmodule *modules;
  CUfunction *functions; /* of kernels; NULL for the one that sets conditions if the host reads them */
  CUstream stream;       /* its own */
  CUevent done;          /* after the latest run */
  CUdeviceptr memory;    /* constants, new memory that no result of the caller takes, and the block of intermediates */
  uint64_t *scratch;     /* for each piece of new memory its address, or 0 if a result of the caller takes it */
  CUdeviceptr nothing;   /* an address for arrays without elements */

  pthread_mutex_t lock; /* for what follows */
  CUstream latest;      /* where the latest run is */
  tvmfun_buffer *buffers; /* those of the last run that were right: arguments, then results */
  uint64_t *table;
  struct cuda_graph *graphs; /* CUDA_GRAPHS_KEPT for each stretch, and for all operations together */
  uint64_t runs;
  uint64_t *indices, *values; /* of loops, and of the arguments of a launch */
  void **parameters;          /* the addresses of the arguments */
  int32_t number;             /* the latest that was read from the GPU */
};

/* The number of slots of the table. */
int32_t tvmfun_cuda_slots(const struct cuda_variant *variant);
/* Starts what the variant launches, with the addresses in the table; the lock is held and the context is current. */
tvmfun_status tvmfun_cuda_launch(struct tvmfun_step *step, CUstream stream);
/* The stretches of a variant and all of its operations together, which each have graphs. */
int32_t tvmfun_cuda_graph_sets(const struct cuda_variant *variant);
void tvmfun_cuda_free_graphs(struct tvmfun_step *step);

#endif
