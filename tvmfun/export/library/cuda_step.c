/* The functions of the C ABI for GPUs: they choose and load the machine code, and lay out the table of addresses. */
#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "cuda_internal.h"
#include "tvmfun/cuda.h"

/* Pieces of the step's memory begin at multiples of so many bytes. */
#define PIECE 256
/* More dynamic shared memory than that has to be allowed for a kernel. */
#define LARGE_SHARED (48u << 10)

static const tvmfun_signature *const signature = &tvmfun_cuda_contents.signature;

static tvmfun_status failed(int code, const char *what, const char *name) {
  return tvmfun_cuda_check(code, TVMFUN_DEVICE_FAILED, what, name);
}

/* -- the machine code for this GPU ------------------------------------------------------------------------------- */

static int runs_on(const struct cuda_variant *variant, int major, int minor) {
  return major == variant->major &&
         (variant->fits == CUDA_EXACT ? minor == variant->minor : minor >= variant->minor);
}

/* The device of a number, its compute capability, and the machine code for it. */
static tvmfun_status choose(int32_t number, int *device, const struct cuda_variant **chosen) {
  int count = 0, major = 0, minor = 0;
  tvmfun_status status = tvmfun_open_driver();
  if (!status) {
    status = failed(tvmfun_driver.cuDeviceGetCount(&count), "counting GPUs", "cuDeviceGetCount");
  }
  if (!status && !count) {
    status = tvmfun_fail(TVMFUN_NO_DEVICE, "NVIDIA's driver finds no GPU");
  }
  if (!status && (number < 0 || number >= count)) {
    status = tvmfun_fail(TVMFUN_BAD_ARGUMENT, "device must be from 0 to %d, got %d", count - 1, (int)number);
  }
  if (!status) {
    status = failed(tvmfun_driver.cuDeviceGet(device, number), "a GPU", "cuDeviceGet");
  }
  if (!status) {
    int code = tvmfun_driver.cuDeviceGetAttribute(&major, CUDA_MAJOR, *device);
    code = code ? code : tvmfun_driver.cuDeviceGetAttribute(&minor, CUDA_MINOR, *device);
    status = failed(code, "the GPU's compute capability", "cuDeviceGetAttribute");
  }
  if (status) {
    return status;
  }
  char targets[128] = "";
  for (int32_t i = 0; i < tvmfun_cuda_contents.variant_count; i++) {
    *chosen = &tvmfun_cuda_contents.variants[i];
    if (runs_on(*chosen, major, minor)) {
      return TVMFUN_OK;
    }
    strncat(targets, i ? ", " : "", sizeof targets - strlen(targets) - 1);
    strncat(targets, (*chosen)->target, sizeof targets - strlen(targets) - 1);
  }
  return tvmfun_fail(TVMFUN_WRONG_ARCHITECTURE, "the code is for %s, but GPU %d has the compute capability %d.%d",
                     targets, (int)number, major, minor);
}

/* -- the table of addresses -------------------------------------------------------------------------------------- */

static int32_t first_fresh(void) { return tvmfun_cuda_contents.captured_count + signature->input_count; }

int32_t tvmfun_cuda_slots(const struct cuda_variant *variant) { return first_fresh() + variant->fresh_count + 2; }

/* The number of the result that the caller has a buffer for in a piece of new memory, or -1. */
static int32_t result_in(const struct cuda_variant *variant, int32_t slot) {
  for (int32_t i = 0; i < signature->output_count; i++) {
    if (variant->slots[i] == slot && signature->outputs[i].partner < 0) {
      return i;
    }
  }
  return -1;
}

static uint64_t reserve(uint64_t *end, uint64_t nbytes) {
  uint64_t first = *end;
  *end += (nbytes + PIECE - 1) / PIECE * PIECE;
  return first;
}

/* Fills the slots that are the same for all runs with addresses from `first` on; returns the bytes of all. */
static uint64_t lay_out(struct tvmfun_step *step, uint64_t first) {
  const struct cuda_variant *variant = step->variant;
  int32_t last = tvmfun_cuda_slots(variant) - 1;
  uint64_t end = first;
  step->nothing = reserve(&end, PIECE);
  for (int32_t i = 0; i < tvmfun_cuda_contents.captured_count; i++) {
    step->table[i] = reserve(&end, tvmfun_cuda_contents.captured[i].nbytes);
  }
  for (int32_t i = 0; i < variant->fresh_count; i++) {
    if (result_in(variant, first_fresh() + i) < 0) {
      step->scratch[i] = reserve(&end, variant->fresh[i]);
    }
  }
  step->table[last - 1] = reserve(&end, variant->temporaries);
  step->table[last] = reserve(&end, variant->constant_bytes);
  return end - first;
}

/* Fills the slots of the caller's buffers. */
static void fill_table(struct tvmfun_step *step) {
  uint64_t *slots = step->table + tvmfun_cuda_contents.captured_count;
  for (int32_t i = 0; i < signature->input_count; i++) {
    *slots++ = signature->inputs[i].nbytes ? (uint64_t)(uintptr_t)step->buffers[i].data : step->nothing;
  }
  for (int32_t i = 0; i < step->variant->fresh_count; i++) {
    int32_t result = step->scratch[i] ? -1 : result_in(step->variant, first_fresh() + i);
    void *data = result < 0 ? NULL : step->buffers[signature->input_count + result].data;
    *slots++ = step->scratch[i] ? step->scratch[i] : data ? (uint64_t)(uintptr_t)data : step->nothing;
  }
}

/* -- contexts ---------------------------------------------------------------------------------------------------- */

static tvmfun_status enter(const struct tvmfun_step *step) {
  return failed(tvmfun_driver.cuCtxPushCurrent_v2(step->context), "the context", "cuCtxPushCurrent");
}

static void leave(void) {
  CUcontext context;
  tvmfun_driver.cuCtxPopCurrent_v2(&context);
}

/* -- making and freeing steps ------------------------------------------------------------------------------------ */

static void destroy(struct tvmfun_step *step) {
  if (!step) {
    return;
  }
  if (step->context && !enter(step)) {
    /* Errors are those of earlier work, and nobody is left to tell. */
    if (step->done) {
      tvmfun_driver.cuEventSynchronize(step->done);
      tvmfun_driver.cuEventDestroy_v2(step->done);
    }
    if (step->stream) {
      tvmfun_driver.cuStreamSynchronize(step->stream);
      tvmfun_driver.cuStreamDestroy_v2(step->stream);
    }
    tvmfun_cuda_free_graphs(step);
    for (int32_t i = 0; i < step->variant->image_count; i++) {
      if (step->modules[i]) {
        tvmfun_driver.cuModuleUnload(step->modules[i]);
      }
    }
    if (step->memory) {
      tvmfun_driver.cuMemFree_v2(step->memory);
    }
    leave();
  }
  if (step->context) {
    tvmfun_driver.cuDevicePrimaryCtxRelease_v2(step->device);
  }
  for (int32_t i = 0; step->graphs && i < tvmfun_cuda_graph_sets(step->variant) * CUDA_GRAPHS_KEPT; i++) {
    free(step->graphs[i].table);
  }
  free(step->graphs);
  free(step->modules);
  free(step->functions);
  free(step->scratch);
  free(step->buffers);
  free(step->table);
  free(step->indices);
  free(step->values);
  free(step->parameters);
  pthread_mutex_destroy(&step->lock);
  free(step);
}

/* Memory of the host; the GPU is not touched. */
static struct tvmfun_step *new_step(const struct cuda_variant *variant, int device) {
  struct tvmfun_step *step = calloc(1, sizeof *step);
  if (!step) {
    return NULL;
  }
  size_t slots = (size_t)tvmfun_cuda_slots(variant), words = ((size_t)variant->most_words + 16) / 16 * 16;
  size_t graphs = (size_t)tvmfun_cuda_graph_sets(variant) * CUDA_GRAPHS_KEPT;
  step->variant = variant;
  step->device = device;
  pthread_mutex_init(&step->lock, NULL);
  step->modules = calloc((size_t)variant->image_count + 1, sizeof *step->modules);
  step->functions = calloc((size_t)variant->kernel_count + 1, sizeof *step->functions);
  step->scratch = calloc((size_t)variant->fresh_count + 1, sizeof *step->scratch);
  step->buffers = calloc((size_t)(signature->input_count + signature->output_count) + 1, sizeof *step->buffers);
  step->table = calloc(slots, sizeof *step->table);
  step->graphs = calloc(graphs + 1, sizeof *step->graphs);
  step->indices = calloc((size_t)variant->depth + 1, sizeof *step->indices);
  step->values = aligned_alloc(128, words * sizeof *step->values); /* for tensor maps */
  step->parameters = calloc(words, sizeof *step->parameters);
  int is_complete = step->modules && step->functions && step->scratch && step->buffers && step->table &&
                    step->graphs && step->indices && step->values && step->parameters;
  for (size_t i = 0; is_complete && i < graphs; i++) {
    step->graphs[i].table = calloc(slots, sizeof *step->table);
    is_complete = step->graphs[i].table != NULL;
  }
  if (!is_complete) {
    destroy(step);
    return NULL;
  }
  return step;
}

/* Loads the kernel that sets conditions, if the driver has conditional nodes and can link it. */
static tvmfun_status load_condition(struct tvmfun_step *step) {
  const struct cuda_variant *variant = step->variant;
  if (variant->condition < 0 || !tvmfun_has_conditions()) {
    return TVMFUN_OK;
  }
  const struct cuda_kernel *kernel = &variant->kernels[variant->condition];
  CUmodule *module = &step->modules[kernel->image];
  int code = tvmfun_driver.cuModuleLoadData(module, variant->images[kernel->image]);
  if (code == CUDA_NO_CODE || code == CUDA_BAD_IMAGE || code == CUDA_BAD_PTX || code == CUDA_NO_SYMBOL) {
    *module = NULL;
    return TVMFUN_OK;
  }
  return failed(code ? code : tvmfun_driver.cuModuleGetFunction(&step->functions[variant->condition], *module,
                                                                kernel->name),
                kernel->name, "cuModuleGetFunction");
}

static tvmfun_status load_kernels(struct tvmfun_step *step) {
  const struct cuda_variant *variant = step->variant;
  int32_t kernel_count = variant->condition < 0 ? variant->kernel_count : variant->condition;
  int32_t image_count = variant->condition < 0 ? variant->image_count : variant->kernels[variant->condition].image;
  tvmfun_status status = TVMFUN_OK;
  for (int32_t i = 0; i < image_count && !status; i++) {
    status = failed(tvmfun_driver.cuModuleLoadData(&step->modules[i], variant->images[i]), "loading the machine code",
                    "cuModuleLoadData");
  }
  for (int32_t i = 0; i < kernel_count && !status; i++) {
    const struct cuda_kernel *kernel = &variant->kernels[i];
    CUfunction *function = &step->functions[i];
    status = failed(tvmfun_driver.cuModuleGetFunction(function, step->modules[kernel->image], kernel->name),
                    kernel->name, "cuModuleGetFunction");
    if (!status && kernel->shared_bytes > LARGE_SHARED) {
      status = failed(tvmfun_driver.cuFuncSetAttribute(*function, CUDA_DYNAMIC_SHARED_BYTES, (int)kernel->shared_bytes),
                      kernel->name, "cuFuncSetAttribute");
    }
  }
  return status ? status : load_condition(step);
}

static tvmfun_status upload_piece(struct tvmfun_step *step, uint64_t address, const void *data, uint64_t nbytes) {
  return nbytes ? failed(tvmfun_driver.cuMemcpyHtoDAsync_v2(address, data, nbytes, step->stream), "the constants",
                         "cuMemcpyHtoDAsync")
                : TVMFUN_OK;
}

static tvmfun_status allocate_memory(struct tvmfun_step *step) {
  uint64_t nbytes = lay_out(step, 0);
  int code = tvmfun_driver.cuMemAlloc_v2(&step->memory, nbytes);
  if (code == CUDA_OUT_OF_MEMORY) {
    return tvmfun_fail(TVMFUN_OUT_OF_MEMORY, "GPU %d has no memory for %llu bytes", step->device,
                       (unsigned long long)nbytes);
  }
  tvmfun_status status = failed(code, "memory of the GPU", "cuMemAlloc");
  if (status) {
    return status;
  }
  lay_out(step, step->memory);
  for (int32_t i = 0; i < tvmfun_cuda_contents.captured_count && !status; i++) {
    const struct cuda_array *array = &tvmfun_cuda_contents.captured[i];
    status = upload_piece(step, step->table[i], array->data, array->nbytes);
  }
  if (!status) {
    uint64_t address = step->table[tvmfun_cuda_slots(step->variant) - 1];
    status = upload_piece(step, address, step->variant->constants, step->variant->constant_bytes);
  }
  return status ? status : failed(tvmfun_driver.cuStreamSynchronize(step->stream), "the constants", "cuStreamSynchronize");
}

/* Everything on the GPU; what there is of it when it fails is freed with the step. */
static tvmfun_status set_up(struct tvmfun_step *step) {
  int code = tvmfun_driver.cuDevicePrimaryCtxRetain(&step->context, step->device);
  if (code) {
    step->context = NULL;
    return failed(code, "the context", "cuDevicePrimaryCtxRetain");
  }
  tvmfun_status status = enter(step);
  if (status) {
    return status;
  }
  status = failed(tvmfun_driver.cuStreamCreate(&step->stream, 0), "a stream", "cuStreamCreate");
  if (!status) {
    status = failed(tvmfun_driver.cuEventCreate(&step->done, CUDA_WITHOUT_TIME), "an event", "cuEventCreate");
  }
  if (!status) {
    status = load_kernels(step);
  }
  if (!status) {
    status = allocate_memory(step);
  }
  leave();
  step->latest = step->stream;
  return status;
}

static tvmfun_status create_on(const tvmfun_cuda_options *options, struct tvmfun_step **created) {
  if (!created) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "step is NULL");
  }
  *created = NULL;
  int device = 0;
  const struct cuda_variant *variant;
  tvmfun_status status = choose(options ? options->device : 0, &device, &variant);
  if (status) {
    return status;
  }
  struct tvmfun_step *step = new_step(variant, device);
  if (!step) {
    return tvmfun_no_memory(sizeof *step);
  }
  status = set_up(step);
  if (status) {
    destroy(step);
    return status;
  }
  *created = step;
  return TVMFUN_OK;
}

/* The options of threads are for CPUs. */
static tvmfun_status create(const tvmfun_options *options, struct tvmfun_step **created) {
  (void)options;
  return create_on(NULL, created);
}

/* -- runs -------------------------------------------------------------------------------------------------------- */

/* A tvmfun_buffer_check: whether a buffer is memory of the step's GPU. */
static tvmfun_status check_memory(const void *context, const tvmfun_leaf *leaf, const tvmfun_buffer *buffer) {
  const struct tvmfun_step *step = context;
  CUdeviceptr address = (CUdeviceptr)(uintptr_t)buffer->data;
  unsigned kind = 0;
  int device = 0;
  int code = tvmfun_driver.cuPointerGetAttribute(&kind, CUDA_MEMORY_KIND, address);
  if (code == CUDA_INVALID_VALUE || (!code && kind != CUDA_DEVICE_MEMORY)) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "%s must be memory of GPU %d, got an address of the host, %p", leaf->name,
                       step->device, buffer->data);
  }
  code = code ? code : tvmfun_driver.cuPointerGetAttribute(&device, CUDA_MEMORY_DEVICE, address);
  if (!code && device != step->device) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "%s must be memory of GPU %d, got that of GPU %d", leaf->name,
                       step->device, device);
  }
  return failed(code, leaf->name, "cuPointerGetAttribute");
}

/* Copies results to where the caller wants them, if they were computed elsewhere: those that go over arguments last,
 * because an argument can be a result as well. */
static tvmfun_status copy_results(struct tvmfun_step *step, CUstream stream) {
  for (int over_arguments = 0; over_arguments < 2; over_arguments++) {
    for (int32_t i = 0; i < signature->output_count; i++) {
      const tvmfun_leaf *leaf = &signature->outputs[i];
      CUdeviceptr source = step->table[step->variant->slots[i]];
      CUdeviceptr target = (CUdeviceptr)(uintptr_t)step->buffers[signature->input_count + i].data;
      if (leaf->nbytes && source != target && (leaf->partner >= 0) == over_arguments) {
        int code = tvmfun_driver.cuMemcpyDtoDAsync_v2(target, source, leaf->nbytes, stream);
        tvmfun_status status = tvmfun_cuda_check(code, TVMFUN_KERNEL_FAILED, leaf->name, "cuMemcpyDtoDAsync");
        if (status) {
          return status;
        }
      }
    }
  }
  return TVMFUN_OK;
}

/* Starts a run with the accepted buffers, after the latest one. */
static tvmfun_status start(struct tvmfun_step *step, CUstream stream) {
  tvmfun_status status = TVMFUN_OK;
  if (stream != step->latest) {
    status = failed(tvmfun_driver.cuStreamWaitEvent(stream, step->done, 0), "the latest run", "cuStreamWaitEvent");
  }
  if (status) {
    return status;
  }
  fill_table(step);
  status = tvmfun_cuda_launch(step, stream);
  if (!status) {
    status = copy_results(step, stream);
  }
  /* Also after an error: what was launched uses the step's memory. */
  int code = tvmfun_driver.cuEventRecord(step->done, stream);
  step->latest = stream;
  return status ? status : failed(code, "the end of a run", "cuEventRecord");
}

static tvmfun_status run_in(struct tvmfun_step *step, const tvmfun_buffer *inputs, int32_t input_count,
                            const tvmfun_buffer *outputs, int32_t output_count, CUstream stream, int waits) {
  tvmfun_status status = tvmfun_check_counts(signature, step, inputs, input_count, outputs, output_count);
  status = status ? status : enter(step);
  if (status) {
    return status;
  }
  stream = stream ? stream : step->stream;
  pthread_mutex_lock(&step->lock);
  status = tvmfun_accept(signature, step->buffers, inputs, outputs, check_memory, step);
  if (!status) {
    status = start(step, stream);
  }
  pthread_mutex_unlock(&step->lock);
  if (!status && waits) {
    status = tvmfun_cuda_check(tvmfun_driver.cuStreamSynchronize(stream), TVMFUN_KERNEL_FAILED, signature->name,
                               "cuStreamSynchronize");
  }
  leave();
  return status;
}

static tvmfun_status run(struct tvmfun_step *step, const tvmfun_buffer *inputs, int32_t input_count,
                         const tvmfun_buffer *outputs, int32_t output_count) {
  return run_in(step, inputs, input_count, outputs, output_count, NULL, 1);
}

static tvmfun_status run_on(struct tvmfun_step *step, const tvmfun_buffer *inputs, int32_t input_count,
                            const tvmfun_buffer *outputs, int32_t output_count, tvmfun_cuda_stream stream) {
  return run_in(step, inputs, input_count, outputs, output_count, stream, 0);
}

/* -- memory of the caller ---------------------------------------------------------------------------------------- */

/* Whether there is a step, whose context is current from now on. */
static tvmfun_status use(const struct tvmfun_step *step) {
  return step ? enter(step) : tvmfun_fail(TVMFUN_BAD_ARGUMENT, "step is NULL");
}

static tvmfun_status finish(int code, const char *what, const char *name) {
  tvmfun_status status = failed(code, what, name);
  leave();
  return status;
}

static CUstream own(struct tvmfun_step *step, tvmfun_cuda_stream stream) { return stream ? stream : step->stream; }

static CUdeviceptr on_gpu(const void *address) { return (CUdeviceptr)(uintptr_t)address; }

static tvmfun_status synchronize(struct tvmfun_step *step, tvmfun_cuda_stream stream) {
  tvmfun_status status = use(step);
  if (!status) {
    status = tvmfun_cuda_check(tvmfun_driver.cuStreamSynchronize(own(step, stream)), TVMFUN_KERNEL_FAILED,
                               signature->name, "cuStreamSynchronize");
    leave();
  }
  return status;
}

static tvmfun_status allocate(struct tvmfun_step *step, uint64_t nbytes, void **memory) {
  if (!memory) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "memory is NULL");
  }
  *memory = NULL;
  tvmfun_status status = use(step);
  if (status) {
    return status;
  }
  CUdeviceptr address = 0;
  int code = tvmfun_driver.cuMemAlloc_v2(&address, nbytes ? nbytes : 1);
  *memory = code ? NULL : (void *)(uintptr_t)address;
  return finish(code, "memory of the GPU", "cuMemAlloc");
}

static tvmfun_status release(struct tvmfun_step *step, void *memory) {
  tvmfun_status status = use(step);
  return status ? status : finish(memory ? tvmfun_driver.cuMemFree_v2(on_gpu(memory)) : 0, "memory", "cuMemFree");
}

static tvmfun_status upload(struct tvmfun_step *step, void *target, const void *source, uint64_t nbytes,
                            tvmfun_cuda_stream stream) {
  tvmfun_status status = use(step);
  if (status) {
    return status;
  }
  int code = nbytes ? tvmfun_driver.cuMemcpyHtoDAsync_v2(on_gpu(target), source, nbytes, own(step, stream)) : 0;
  return finish(code, "a copy to the GPU", "cuMemcpyHtoDAsync");
}

static tvmfun_status download(struct tvmfun_step *step, void *target, const void *source, uint64_t nbytes,
                              tvmfun_cuda_stream stream) {
  tvmfun_status status = use(step);
  if (status) {
    return status;
  }
  /* Not asynchronous: after an error the caller may free the memory. */
  int code = tvmfun_driver.cuStreamSynchronize(own(step, stream));
  if (code) {
    return finish(code, "what came before a copy from the GPU", "cuStreamSynchronize");
  }
  code = nbytes ? tvmfun_driver.cuMemcpyDtoH_v2(target, on_gpu(source), nbytes) : 0;
  return finish(code, "a copy from the GPU", "cuMemcpyDtoH");
}

static tvmfun_status clear(struct tvmfun_step *step, void *target, uint64_t nbytes, tvmfun_cuda_stream stream) {
  tvmfun_status status = use(step);
  if (status) {
    return status;
  }
  int code = nbytes ? tvmfun_driver.cuMemsetD8Async(on_gpu(target), 0, nbytes, own(step, stream)) : 0;
  return finish(code, "zeros", "cuMemsetD8Async");
}

/* -- the ABI ----------------------------------------------------------------------------------------------------- */

static const tvmfun_signature *get_signature(void) { return signature; }

static const char *get_manifest(uint64_t *nbytes) {
  if (nbytes) {
    *nbytes = tvmfun_cuda_contents.manifest_bytes;
  }
  return tvmfun_cuda_contents.manifest;
}

static tvmfun_status plan(tvmfun_plan *plan) {
  if (!plan) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "plan is NULL");
  }
  int device;
  const struct cuda_variant *variant;
  tvmfun_status status = choose(0, &device, &variant);
  if (status) {
    return status;
  }
  struct tvmfun_step *step = new_step(variant, device); /* which the GPU does not know */
  if (!step) {
    return tvmfun_no_memory(sizeof *step);
  }
  uint64_t others = lay_out(step, 0) - variant->temporaries;
  destroy(step);
  *plan = (tvmfun_plan){variant->target, 0, 0, variant->temporaries, others};
  for (int32_t i = 0; i < signature->input_count; i++) {
    plan->arguments += signature->inputs[i].nbytes;
  }
  for (int32_t i = 0; i < signature->output_count; i++) {
    plan->results += signature->outputs[i].partner < 0 ? signature->outputs[i].nbytes : 0;
  }
  return TVMFUN_OK;
}

/* All sizes are static. */
static tvmfun_status check_sizes(int32_t size_count) {
  return size_count ? tvmfun_fail(TVMFUN_BAD_ARGUMENT, "%s has no dynamic sizes, got %d", signature->name,
                                  (int)size_count)
                    : TVMFUN_OK;
}

static tvmfun_status shapes(const int64_t *sizes, int32_t size_count, int64_t *axes) {
  (void)sizes;
  tvmfun_status status = check_sizes(size_count);
  if (status || !axes) {
    return status ? status : tvmfun_fail(TVMFUN_BAD_ARGUMENT, "axes is NULL");
  }
  for (int32_t i = 0; i < signature->input_count + signature->output_count; i++) {
    int is_result = i >= signature->input_count;
    const tvmfun_leaf *leaf = is_result ? &signature->outputs[i - signature->input_count] : &signature->inputs[i];
    memcpy(axes, leaf->shape, sizeof *axes * (size_t)leaf->ndim);
    axes += leaf->ndim;
  }
  return TVMFUN_OK;
}

static tvmfun_status plan_for(const int64_t *sizes, int32_t size_count, tvmfun_plan *planned) {
  (void)sizes;
  tvmfun_status status = check_sizes(size_count);
  return status ? status : plan(planned);
}

static tvmfun_status run_for(struct tvmfun_step *step, const int64_t *sizes, int32_t size_count,
                             const tvmfun_buffer *inputs, int32_t input_count, const tvmfun_buffer *outputs,
                             int32_t output_count) {
  (void)sizes;
  tvmfun_status status = check_sizes(size_count);
  return status ? status : run(step, inputs, input_count, outputs, output_count);
}

__attribute__((visibility("default"))) const tvmfun_api *tvmfun_get_api(void) {
  static const tvmfun_api api = {
      TVMFUN_ABI_VERSION, get_signature, get_manifest, plan, create, run, destroy, tvmfun_message,
      shapes,             plan_for,      run_for,
  };
  return &api;
}

__attribute__((visibility("default"))) const tvmfun_cuda_api *tvmfun_get_cuda_api(void) {
  static const tvmfun_cuda_api api = {
      TVMFUN_ABI_VERSION, create_on, run_on, synchronize, allocate, release, upload, download, clear,
  };
  return &api;
}
