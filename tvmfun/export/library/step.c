/* The functions of the C ABI for CPUs: they choose the machine code, and lay out the table of addresses of a run. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define MOST_THREADS 4096

static const tvmfun_signature *const signature = &tvmfun_contents.signature;

/* -- the machine code for this processor ------------------------------------------------------------------------- */

static const struct feature *missing(const struct variant *variant) {
  for (int32_t i = 0; i < variant->feature_count; i++) {
    if (!tvmfun_has_feature(&variant->features[i])) {
      return &variant->features[i];
    }
  }
  return NULL;
}

static tvmfun_status choose(const struct variant **chosen) {
  const struct feature *lacking = NULL;
  for (int32_t i = 0; i < tvmfun_contents.variant_count; i++) {
    *chosen = &tvmfun_contents.variants[i];
    lacking = missing(*chosen);
    if (!lacking) {
      return TVMFUN_OK;
    }
  }
  return tvmfun_fail(TVMFUN_MISSING_FEATURE, "the code for %s needs %s, which this processor lacks", (*chosen)->target,
              lacking->name);
}

static tvmfun_status plan_for(const int64_t *sizes, int32_t size_count, tvmfun_plan *plan) {
  const struct variant *variant;
  if (!plan) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "plan is NULL");
  }
  tvmfun_status status = choose(&variant);
  if (status) {
    return status;
  }
  status = tvmfun_check_sizes(sizes, size_count);
  if (status) {
    return status;
  }
  struct layout *layout = tvmfun_layout_create(variant);
  status = layout ? tvmfun_layout_compute(layout, sizes) : tvmfun_no_memory(sizeof *layout);
  if (!status) {
    *plan = (tvmfun_plan){variant->target, 0, 0, layout->temporaries, layout->workspaces};
    for (int32_t i = 0; i < signature->input_count; i++) {
      plan->arguments += layout->signature.inputs[i].nbytes;
    }
    for (int32_t i = 0; i < signature->output_count; i++) {
      plan->results += signature->outputs[i].partner < 0 ? layout->signature.outputs[i].nbytes : 0;
    }
  }
  tvmfun_layout_destroy(layout);
  return status;
}

static tvmfun_status plan(tvmfun_plan *plan) { return plan_for(NULL, 0, plan); }

static tvmfun_status shapes(const int64_t *sizes, int32_t size_count, int64_t *axes) {
  if (!axes) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "axes is NULL");
  }
  tvmfun_status status = tvmfun_check_sizes(sizes, size_count);
  return status ? status : tvmfun_compute_axes(sizes, axes);
}

/* -- runs -------------------------------------------------------------------------------------------------------- */

/* The number of the result that the caller has a buffer for in a piece of new memory, or -1. */
static int32_t result_in(const struct variant *variant, int32_t slot) {
  for (int32_t i = 0; i < signature->output_count; i++) {
    if (variant->slots[i] == slot && signature->outputs[i].partner < 0) {
      return i;
    }
  }
  return -1;
}

static int32_t first_fresh(void) { return tvmfun_contents.constant_count + signature->input_count; }

/* The slot of the block of intermediates. Sizes and the offsets of intermediates of dynamic size follow. */
static int32_t block_slot(const struct variant *variant) { return first_fresh() + variant->fresh_count; }

static void free_run(struct run *run) {
  if (!run) {
    return;
  }
  for (int32_t i = 0; i < run->step->threads; i++) {
    tvmfun_free_workspaces(&run->lanes[i]);
  }
  for (int32_t i = 0; run->scratch && i < run->step->variant->fresh_count; i++) {
    free(run->scratch[i].data);
  }
  free(run->scratch);
  free(run->temporaries.data);
  tvmfun_layout_destroy(run->layout);
  free(run->table);
  free(run->buffers);
  free(run);
}

static struct run *new_run(struct tvmfun_step *step) {
  const struct variant *variant = step->variant;
  size_t leaves = (size_t)signature->input_count + (size_t)signature->output_count;
  size_t buffers = variant->dynamic ? (size_t)variant->dynamic->buffer_count : 0;
  size_t slots = (size_t)block_slot(variant) + 1 + (size_t)signature->size_count + buffers;
  struct run *run = calloc(1, sizeof(struct run) + sizeof(struct lane) * (size_t)step->threads);
  if (!run) {
    return NULL;
  }
  run->step = step;
  for (int32_t i = 0; i < step->threads; i++) {
    run->lanes[i].run = run;
  }
  run->table = calloc(slots, sizeof *run->table);
  run->buffers = calloc(leaves + 1, sizeof *run->buffers);
  run->scratch = calloc((size_t)variant->fresh_count + 1, sizeof *run->scratch);
  run->layout = tvmfun_layout_create(variant);
  if (!run->table || !run->buffers || !run->scratch || !run->layout) {
    free_run(run);
    return NULL;
  }
  for (int32_t i = 0; i < tvmfun_contents.constant_count; i++) {
    run->table[i] = (uint64_t)(uintptr_t)tvmfun_contents.constants[i];
  }
  return run;
}

static tvmfun_status grow(struct memory *memory, uint64_t nbytes) {
  if (!memory->data || memory->nbytes < nbytes) {
    free(memory->data);
    memory->data = tvmfun_allocate(nbytes);
    memory->nbytes = memory->data ? nbytes : 0;
  }
  return memory->data ? TVMFUN_OK : tvmfun_no_memory(nbytes);
}

/* Lays out and allocates the memory of a run for these sizes, unless it has it. */
static tvmfun_status prepare(struct run *run, const int64_t *sizes) {
  const struct variant *variant = run->step->variant;
  struct layout *layout = run->layout;
  size_t leaves = (size_t)signature->input_count + (size_t)signature->output_count;
  size_t size_bytes = sizeof *sizes * (size_t)signature->size_count;
  if (run->is_ready && (!size_bytes || !memcmp(layout->sizes, sizes, size_bytes))) {
    return TVMFUN_OK;
  }
  run->is_ready = 0;
  memset(run->buffers, 0, sizeof *run->buffers * leaves); /* they were right for other sizes */
  tvmfun_status status = tvmfun_layout_compute(layout, sizes);
  status = status ? status : grow(&run->temporaries, layout->temporaries);
  for (int32_t i = 0; !status && i < variant->fresh_count; i++) {
    if (result_in(variant, first_fresh() + i) < 0) {
      status = grow(&run->scratch[i], layout->fresh[i]);
    }
  }
  if (status) {
    return status;
  }
  uint64_t *slots = run->table + block_slot(variant);
  *slots++ = (uint64_t)(uintptr_t)run->temporaries.data;
  for (int32_t i = 0; i < signature->size_count; i++) {
    *slots++ = (uint64_t)sizes[i];
  }
  if (variant->dynamic) {
    memcpy(slots, layout->offsets, sizeof *slots * (size_t)variant->dynamic->buffer_count);
  }
  run->is_ready = 1;
  return TVMFUN_OK;
}

static void lock(struct tvmfun_step *step) {
  while (atomic_flag_test_and_set_explicit(&step->lock, memory_order_acquire)) {
    sched_yield();
  }
}

static void unlock(struct tvmfun_step *step) { atomic_flag_clear_explicit(&step->lock, memory_order_release); }

static struct run *take_run(struct tvmfun_step *step) {
  lock(step);
  struct run *run = step->idle;
  if (run) {
    step->idle = run->next;
  }
  unlock(step);
  return run ? run : new_run(step);
}

static void put_back(struct run *run) {
  struct tvmfun_step *step = run->step;
  lock(step);
  run->next = step->idle;
  step->idle = run;
  unlock(step);
}

/* -- the ABI ----------------------------------------------------------------------------------------------------- */

static const tvmfun_signature *get_signature(void) { return signature; }

static const char *get_manifest(uint64_t *nbytes) {
  if (nbytes) {
    *nbytes = tvmfun_contents.manifest_bytes;
  }
  return tvmfun_contents.manifest;
}

static int32_t cpu_count(void) {
  cpu_set_t cpus;
  long count = sched_getaffinity(0, sizeof cpus, &cpus) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&cpus);
  return count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : (int32_t)count;
}

static void destroy(struct tvmfun_step *step) {
  if (!step) {
    return;
  }
  tvmfun_pool_destroy(step->pool);
  for (struct run *run = step->idle, *next; run; run = next) {
    next = run->next;
    free_run(run);
  }
  free(step);
}

static tvmfun_status create(const tvmfun_options *options, struct tvmfun_step **created) {
  tvmfun_options chosen = options ? *options : (tvmfun_options){0};
  if (!created) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "step is NULL");
  }
  *created = NULL;
  if (chosen.threads < 0 || chosen.threads > MOST_THREADS) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "threads must be from 0 to %d, got %d", MOST_THREADS, (int)chosen.threads);
  }
  const struct variant *variant;
  tvmfun_status status = choose(&variant);
  if (status) {
    return status;
  }
  struct tvmfun_step *step = calloc(1, sizeof *step);
  if (!step) {
    return tvmfun_no_memory(sizeof *step);
  }
  step->variant = variant;
  step->threads = chosen.threads ? chosen.threads : cpu_count();
  step->parallel_for = chosen.parallel_for;
  step->parallel_context = chosen.parallel_context;
  atomic_flag_clear(&step->lock);
  if (!chosen.parallel_for) {
    step->pool = tvmfun_pool_create(step->threads);
    step->parallel_for = tvmfun_pool_for;
    step->parallel_context = step->pool;
  }
  struct run *run = chosen.parallel_for || step->pool ? new_run(step) : NULL;
  if (!run) {
    destroy(step);
    return tvmfun_no_memory(variant->temporaries);
  }
  put_back(run);
  status = variant->dynamic ? TVMFUN_OK : prepare(run, NULL);
  if (status) {
    destroy(step);
    return status;
  }
  *created = step;
  return TVMFUN_OK;
}

static void fill_table(struct run *run) {
  const tvmfun_signature *signature = &run->layout->signature;
  const struct variant *variant = run->step->variant;
  static _Alignas(TVMFUN_ALIGNMENT) char nothing[TVMFUN_ALIGNMENT]; /* for arrays without elements */
  uint64_t *slots = run->table + tvmfun_contents.constant_count;
  for (int32_t i = 0; i < signature->input_count; i++) {
    void *data = signature->inputs[i].nbytes ? run->buffers[i].data : nothing;
    *slots++ = (uint64_t)(uintptr_t)data;
  }
  for (int32_t i = 0; i < variant->fresh_count; i++) {
    int32_t result = run->scratch[i].data ? -1 : result_in(variant, first_fresh() + i);
    void *data = result < 0 ? run->scratch[i].data : run->buffers[signature->input_count + result].data;
    *slots++ = (uint64_t)(uintptr_t)(data ? data : nothing);
  }
}

/* Copies results to where the caller wants them, if they were computed elsewhere: those that go over arguments last,
 * because an argument can be a result as well. */
static void copy_results(struct run *run) {
  const tvmfun_signature *signature = &run->layout->signature;
  for (int over_arguments = 0; over_arguments < 2; over_arguments++) {
    for (int32_t i = 0; i < signature->output_count; i++) {
      const tvmfun_leaf *leaf = &signature->outputs[i];
      const void *source = (const void *)(uintptr_t)run->table[run->step->variant->slots[i]];
      void *target = run->buffers[signature->input_count + i].data;
      if (leaf->nbytes && source != target && (leaf->partner >= 0) == over_arguments) {
        memcpy(target, source, leaf->nbytes);
      }
    }
  }
}

static tvmfun_status run_for(struct tvmfun_step *step, const int64_t *sizes, int32_t size_count,
                             const tvmfun_buffer *inputs, int32_t input_count, const tvmfun_buffer *outputs,
                             int32_t output_count) {
  tvmfun_status status = tvmfun_check_counts(signature, step, inputs, input_count, outputs, output_count);
  status = status ? status : tvmfun_check_sizes(sizes, size_count);
  if (status) {
    return status;
  }
  struct run *run = take_run(step);
  if (!run) {
    return tvmfun_no_memory(step->variant->temporaries);
  }
  status = prepare(run, sizes);
  if (!status) { /* with the bytes for the sizes of this run */
    status = tvmfun_accept(&run->layout->signature, run->buffers, inputs, outputs, NULL, NULL);
  }
  if (!status) {
    fill_table(run);
    if (tvmfun_call(run)) {
      status = run->lanes[0].is_out_of_memory ? TVMFUN_OUT_OF_MEMORY : TVMFUN_KERNEL_FAILED;
      tvmfun_fail(status, "%s", run->lanes[0].error[0] ? run->lanes[0].error : "a kernel failed");
    } else {
      copy_results(run);
    }
  }
  put_back(run);
  return status;
}

static tvmfun_status run_step(struct tvmfun_step *step, const tvmfun_buffer *inputs, int32_t input_count,
                              const tvmfun_buffer *outputs, int32_t output_count) {
  return run_for(step, NULL, 0, inputs, input_count, outputs, output_count);
}

__attribute__((visibility("default"))) const tvmfun_api *tvmfun_get_api(void) {
  static const tvmfun_api api = {
      TVMFUN_ABI_VERSION, get_signature, get_manifest, plan,     create,  run_step,
      destroy,            tvmfun_message,   shapes,       plan_for, run_for,
  };
  return &api;
}
