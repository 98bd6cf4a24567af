/* NVIDIA's driver: its functions, which are looked up in libcuda.so.1 at run time, and the types they need. */
#ifndef TVMFUN_CUDA_DRIVER_H
#define TVMFUN_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "tvmfun/step.h"

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUdeviceptr;

/* CUDA_KERNEL_NODE_PARAMS_v2 */
struct cuda_kernel_node {
  CUfunction function;
  unsigned grid[3], block[3], shared_bytes;
  void **parameters, **extra;
  void *kernel;
  CUcontext context;
};

/* CUlaunchAttribute: its value has 64 bytes, of which a cluster's sizes are the first 12. */
struct cuda_attribute {
  int id;
  char padding[4];
  unsigned value[16];
};

/* CUlaunchConfig */
struct cuda_config {
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  struct cuda_attribute *attributes;
  unsigned attribute_count;
};

/* CUDA_MEMCPY3D_v2 */
struct cuda_copy_node {
  size_t source_x, source_y, source_z, source_level;
  int source_kind;
  const void *source_host;
  CUdeviceptr source;
  void *source_array, *reserved0;
  size_t source_pitch, source_height;
  size_t x, y, z, level;
  int kind;
  void *host;
  CUdeviceptr target;
  void *array, *reserved1;
  size_t pitch, target_height;
  size_t width, height, depth;
};

/* CUgraphNodeParams with CUDA_CONDITIONAL_NODE_PARAMS */
struct cuda_conditional_node {
  int type, reserved0[3];
  uint64_t condition;
  int kind;
  unsigned body_count;
  CUgraph *bodies; /* set by the driver */
  CUcontext context;
  char unused[200];
  long long reserved2;
};

enum {
  CUDA_INVALID_VALUE = 1,
  CUDA_OUT_OF_MEMORY = 2,
  CUDA_NO_DEVICE = 100,
  CUDA_BAD_IMAGE = 200,
  CUDA_NO_CODE = 209,
  CUDA_BAD_PTX = 218,
  CUDA_NO_SYMBOL = 302,
  CUDA_MAJOR = 75, /* attributes of devices: the compute capability */
  CUDA_MINOR = 76,
  CUDA_DYNAMIC_SHARED_BYTES = 8,  /* of kernels */
  CUDA_CLUSTER = 4,               /* of launches */
  CUDA_MEMORY_KIND = 2,           /* of pointers */
  CUDA_MEMORY_DEVICE = 9,
  CUDA_DEVICE_MEMORY = 2,         /* a kind of memory */
  CUDA_WITHOUT_TIME = 2,          /* of events */
  CUDA_SWIZZLED = 3,              /* of tensor maps: lines of 128 bytes, and fetching 128 bytes to the L2 cache */
  CUDA_PROMOTED = 2,
  CUDA_CONDITIONAL = 13,          /* a kind of node, and its kinds */
  CUDA_IF = 0,
  CUDA_LOOP = 1,
  CUDA_SWITCH = 2
};

/* Every function that is called, with its parameters. */
#define CUDA_FUNCTIONS(F)                                                                          \
  F(cuGetErrorName, (int code, const char **name))                                                 \
  F(cuInit, (unsigned flags))                                                                      \
  F(cuDriverGetVersion, (int *version))                                                            \
  F(cuDeviceGetCount, (int *count))                                                                \
  F(cuDeviceGet, (int *device, int number))                                                        \
  F(cuDeviceGetAttribute, (int *value, int attribute, int device))                                 \
  F(cuDevicePrimaryCtxRetain, (CUcontext *context, int device))                                    \
  F(cuDevicePrimaryCtxRelease_v2, (int device))                                                    \
  F(cuCtxPushCurrent_v2, (CUcontext context))                                                      \
  F(cuCtxPopCurrent_v2, (CUcontext *context))                                                      \
  F(cuModuleLoadData, (CUmodule *module, const void *image))                                       \
  F(cuModuleUnload, (CUmodule module))                                                             \
  F(cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name))                \
  F(cuFuncSetAttribute, (CUfunction function, int attribute, int value))                           \
  F(cuMemAlloc_v2, (CUdeviceptr *address, size_t nbytes))                                          \
  F(cuMemFree_v2, (CUdeviceptr address))                                                           \
  F(cuMemsetD8Async, (CUdeviceptr target, unsigned char value, size_t nbytes, CUstream stream))    \
  F(cuMemcpyHtoDAsync_v2, (CUdeviceptr target, const void *source, size_t nbytes, CUstream stream)) \
  F(cuMemcpyDtoHAsync_v2, (void *target, CUdeviceptr source, size_t nbytes, CUstream stream))      \
  F(cuMemcpyDtoH_v2, (void *target, CUdeviceptr source, size_t nbytes))                            \
  F(cuMemcpyDtoDAsync_v2, (CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream)) \
  F(cuPointerGetAttribute, (void *value, int attribute, CUdeviceptr address))                      \
  F(cuStreamCreate, (CUstream *stream, unsigned flags))                                            \
  F(cuStreamDestroy_v2, (CUstream stream))                                                         \
  F(cuStreamSynchronize, (CUstream stream))                                                        \
  F(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                           \
  F(cuEventCreate, (CUevent *event, unsigned flags))                                               \
  F(cuEventRecord, (CUevent event, CUstream stream))                                               \
  F(cuEventSynchronize, (CUevent event))                                                           \
  F(cuEventDestroy_v2, (CUevent event))                                                            \
  F(cuLaunchKernelEx, (const struct cuda_config *config, CUfunction function, void **parameters, void **extra)) \
  F(cuTensorMapEncodeTiled, (void *map, int dtype, unsigned rank, CUdeviceptr address, const uint64_t *sizes, \
                             const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleaving, \
                             int swizzle, int promotion, int fill))                                \
  F(cuGraphCreate, (CUgraph *graph, unsigned flags))                                               \
  F(cuGraphDestroy, (CUgraph graph))                                                               \
  F(cuGraphAddKernelNode_v2, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, \
                              const struct cuda_kernel_node *parameters))                          \
  F(cuGraphKernelNodeSetAttribute, (CUgraphNode node, int attribute, const void *value))           \
  F(cuGraphAddMemcpyNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, \
                           const struct cuda_copy_node *parameters, CUcontext context))            \
  F(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags))     \
  F(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                            \
  F(cuGraphExecDestroy, (CUgraphExec exec))

/* Functions that older drivers lack. */
#define CUDA_NEW_FUNCTIONS(F)                                                                      \
  F(cuGraphConditionalHandleCreate, (uint64_t *condition, CUgraph graph, CUcontext context, unsigned value, \
                                     unsigned flags))                                              \
  F(cuGraphAddNode_v2, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, \
                        struct cuda_conditional_node *parameters))

struct cuda_driver {
  int version; /* such as 12040 for CUDA 12.4 */
#define CUDA_MEMBER(name, parameters) int(*name) parameters;
  CUDA_FUNCTIONS(CUDA_MEMBER)
  CUDA_NEW_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

extern struct cuda_driver tvmfun_driver;

/* Whether graphs can have conditional nodes, also within each other. */
int tvmfun_has_conditions(void);
/* Whether conditional nodes can have several bodies, one of which a number selects. */
int tvmfun_has_switches(void);

/* Opens the driver, unless it is open. */
tvmfun_status tvmfun_open_driver(void);

/* TVMFUN_OK for the driver's code 0; otherwise the message says what failed. Memory has its own status. */
tvmfun_status tvmfun_cuda_check(int code, tvmfun_status status, const char *what, const char *name);

#endif
