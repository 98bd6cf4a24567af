/* Runs the operations of a call as one graph, by addresses, in which conditional nodes are the loops and branches that
 * depend on data. Where the driver lacks these, the stretches between are graphs, and the host reads the numbers. */
#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "cuda_internal.h"

/* Where launches go: into a stream, or as nodes, one after the other, into a graph. */
struct walk {
  struct tvmfun_step *step;
  CUstream stream;
  CUgraph graph; /* NULL: into the stream */
  CUgraphNode last;
  int32_t depth; /* the number of loops around */
  int is_whole;  /* all operations are one graph, or launched one by one */
};

static tvmfun_status run_sequence(struct walk *walk, const struct cuda_sequence *sequence);

static uint64_t address_of(const struct walk *walk, struct cuda_address address) {
  return walk->step->table[address.slot] + address.offset;
}

/* -- launches and copies ----------------------------------------------------------------------------------------- */

static uint64_t value_of(const struct walk *walk, const struct cuda_argument *argument) {
  if (argument->slot >= 0) {
    return walk->step->table[argument->slot] + argument->value;
  }
  uint64_t value = argument->value;
  for (int32_t i = 0; i < argument->stride_count && i < walk->depth; i++) {
    value += argument->strides[i] * walk->step->indices[i];
  }
  return value & argument->mask;
}

/* Writes the arguments of a launch one after the other, and where each is. */
static tvmfun_status place_arguments(struct walk *walk, const struct cuda_launch *launch, const char *name) {
  struct tvmfun_step *step = walk->step;
  const uint32_t ones[5] = {1, 1, 1, 1, 1};
  tvmfun_status status = TVMFUN_OK;
  for (int32_t i = 0, end = 0; i < launch->argument_count && !status; i++) {
    const struct cuda_argument *argument = &launch->arguments[i];
    const struct cuda_tensor *tensor = argument->tensor;
    uint64_t value = value_of(walk, argument);
    end = tensor ? (end + 15) / 16 * 16 : end;
    step->parameters[i] = &step->values[end];
    if (!tensor) {
      step->values[end++] = value;
      continue;
    }
    int code = tvmfun_driver.cuTensorMapEncodeTiled(&step->values[end], tensor->dtype, tensor->rank, value, tensor->sizes,
                                                    tensor->strides, tensor->box, ones, 0, CUDA_SWIZZLED,
                                                    CUDA_PROMOTED, 0);
    status = tvmfun_cuda_check(code, TVMFUN_KERNEL_FAILED, name, "cuTensorMapEncodeTiled");
    end += 16;
  }
  return status;
}

static tvmfun_status launch(struct walk *walk, const struct cuda_launch *launch) {
  struct tvmfun_step *step = walk->step;
  const char *name = step->variant->kernels[launch->kernel].name;
  CUfunction function = step->functions[launch->kernel];
  const uint32_t *grid = launch->grid, *block = launch->block;
  int is_cluster = launch->cluster[0] * launch->cluster[1] * launch->cluster[2] > 1;
  struct cuda_attribute cluster = {CUDA_CLUSTER, {0}, {launch->cluster[0], launch->cluster[1], launch->cluster[2]}};
  tvmfun_status status = place_arguments(walk, launch, name);
  if (status) {
    return status;
  }
  if (!walk->graph) {
    struct cuda_config config = {{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, launch->shared_bytes,
                                 walk->stream, is_cluster ? &cluster : NULL, is_cluster ? 1 : 0};
    return tvmfun_cuda_check(tvmfun_driver.cuLaunchKernelEx(&config, function, step->parameters, NULL),
                             TVMFUN_KERNEL_FAILED, name, "cuLaunchKernelEx");
  }
  struct cuda_kernel_node node = {function, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]},
                                  launch->shared_bytes, step->parameters, NULL, NULL, NULL};
  CUgraphNode previous = walk->last;
  int code = tvmfun_driver.cuGraphAddKernelNode_v2(&walk->last, walk->graph, &previous, previous ? 1 : 0, &node);
  if (!code && is_cluster) {
    code = tvmfun_driver.cuGraphKernelNodeSetAttribute(walk->last, CUDA_CLUSTER, cluster.value);
  }
  return tvmfun_cuda_check(code, TVMFUN_KERNEL_FAILED, name, "cuGraphAddKernelNode");
}

static tvmfun_status copy(struct walk *walk, const struct cuda_copy *copy) {
  CUdeviceptr target = address_of(walk, copy->target), source = address_of(walk, copy->source);
  if (!walk->graph) {
    return tvmfun_cuda_check(tvmfun_driver.cuMemcpyDtoDAsync_v2(target, source, copy->nbytes, walk->stream),
                             TVMFUN_KERNEL_FAILED, "a copy", "cuMemcpyDtoDAsync");
  }
  struct cuda_copy_node node = {
      .source_kind = CUDA_DEVICE_MEMORY, .source = source, .source_pitch = copy->nbytes, .source_height = 1,
      .kind = CUDA_DEVICE_MEMORY,        .target = target, .pitch = copy->nbytes,        .target_height = 1,
      .width = copy->nbytes,             .height = 1,      .depth = 1,
  };
  CUgraphNode previous = walk->last;
  return tvmfun_cuda_check(tvmfun_driver.cuGraphAddMemcpyNode(&walk->last, walk->graph, &previous, previous ? 1 : 0,
                                                              &node, walk->step->context),
                           TVMFUN_KERNEL_FAILED, "a copy", "cuGraphAddMemcpyNode");
}

/* -- graphs ------------------------------------------------------------------------------------------------------ */

static size_t table_bytes(const struct tvmfun_step *step) {
  return sizeof *step->table * (size_t)tvmfun_cuda_slots(step->variant);
}

static void free_graph(struct cuda_graph *graph) {
  if (graph->exec) {
    tvmfun_driver.cuGraphExecDestroy(graph->exec);
  }
  graph->exec = NULL;
  graph->used = 0;
}

int32_t tvmfun_cuda_graph_sets(const struct cuda_variant *variant) { return variant->stretch_count + 1; }

void tvmfun_cuda_free_graphs(struct tvmfun_step *step) {
  for (int32_t i = 0; step->graphs && i < tvmfun_cuda_graph_sets(step->variant) * CUDA_GRAPHS_KEPT; i++) {
    free_graph(&step->graphs[i]);
  }
}

/* The graph of a stretch with the addresses in the table; if there is none, in the place of the oldest one. */
static struct cuda_graph *graph_of(struct tvmfun_step *step, int32_t stretch) {
  struct cuda_graph *graphs = step->graphs + (size_t)stretch * CUDA_GRAPHS_KEPT, *oldest = graphs;
  for (int32_t i = 0; i < CUDA_GRAPHS_KEPT; i++) {
    if (graphs[i].used && !memcmp(graphs[i].table, step->table, table_bytes(step))) {
      return &graphs[i];
    }
    oldest = graphs[i].used < oldest->used ? &graphs[i] : oldest;
  }
  free_graph(oldest);
  memcpy(oldest->table, step->table, table_bytes(step));
  return oldest;
}

static tvmfun_status make_graph(struct walk *walk, struct cuda_graph *graph, const struct cuda_stretch *stretch) {
  struct walk into = {walk->step, NULL, NULL, NULL, walk->depth, walk->is_whole};
  const char *what = "a graph";
  tvmfun_status status =
      tvmfun_cuda_check(tvmfun_driver.cuGraphCreate(&into.graph, 0), TVMFUN_KERNEL_FAILED, what, "cuGraphCreate");
  if (status) {
    return status;
  }
  status = run_sequence(&into, &stretch->body);
  if (!status) {
    status = tvmfun_cuda_check(tvmfun_driver.cuGraphInstantiateWithFlags(&graph->exec, into.graph, 0),
                               TVMFUN_KERNEL_FAILED, what, "cuGraphInstantiate");
  }
  tvmfun_driver.cuGraphDestroy(into.graph);
  return status;
}

/* Addresses that come for the first time may not come again: their launches are made one by one. */
static tvmfun_status run_stretch(struct walk *walk, const struct cuda_stretch *stretch) {
  struct tvmfun_step *step = walk->step;
  if (stretch->number < 0 || (walk->is_whole && stretch->number < step->variant->stretch_count)) {
    return run_sequence(walk, &stretch->body);
  }
  struct cuda_graph *graph = graph_of(step, stretch->number);
  int is_new = !graph->used;
  graph->used = ++step->runs;
  if (is_new) {
    return run_sequence(walk, &stretch->body);
  }
  tvmfun_status status = graph->exec ? TVMFUN_OK : make_graph(walk, graph, stretch);
  return status ? status
                : tvmfun_cuda_check(tvmfun_driver.cuGraphLaunch(graph->exec, walk->stream), TVMFUN_KERNEL_FAILED,
                                    "a graph", "cuGraphLaunch");
}

/* -- conditional nodes -------------------------------------------------------------------------------------------- */

static tvmfun_status check_condition(int code, const char *name) {
  return tvmfun_cuda_check(code, TVMFUN_KERNEL_FAILED, "a loop or a branch of a graph", name);
}

static tvmfun_status new_condition(struct walk *walk, uint64_t *condition) {
  return check_condition(
      tvmfun_driver.cuGraphConditionalHandleCreate(condition, walk->graph, walk->step->context, 0, 0),
      "cuGraphConditionalHandleCreate");
}

/* Adds the kernel that sets a condition to a number of 1 byte or 4, limited to the range from 0 to `last`; or, where
 * `chosen` is not negative, to whether it is this number. */
static tvmfun_status set_condition(struct walk *walk, uint64_t condition, struct cuda_address number, int32_t nbytes,
                                   int32_t last, int32_t chosen) {
  struct tvmfun_step *step = walk->step;
  uint64_t address = address_of(walk, number);
  int32_t is_byte = nbytes == 1;
  void *parameters[] = {&condition, &address, &is_byte, &last, &chosen};
  struct cuda_kernel_node node = {step->functions[step->variant->condition], {1, 1, 1}, {1, 1, 1}, 0, parameters,
                                  NULL, NULL, NULL};
  CUgraphNode previous = walk->last;
  return check_condition(
      tvmfun_driver.cuGraphAddKernelNode_v2(&walk->last, walk->graph, &previous, previous ? 1 : 0, &node),
      "cuGraphAddKernelNode");
}

/* Adds a conditional node; the driver's array of its bodies is valid as long as the graph. */
static tvmfun_status add_conditional(struct walk *walk, uint64_t condition, int kind, int32_t body_count,
                                     CUgraph **bodies) {
  struct cuda_conditional_node node = {.type = CUDA_CONDITIONAL, .condition = condition, .kind = kind,
                                       .body_count = (unsigned)body_count, .context = walk->step->context};
  CUgraphNode previous = walk->last;
  int code =
      tvmfun_driver.cuGraphAddNode_v2(&walk->last, walk->graph, &previous, NULL, previous ? 1 : 0, &node);
  *bodies = node.bodies;
  return check_condition(code, "cuGraphAddNode");
}

static struct walk into_body(const struct walk *walk, CUgraph graph) {
  return (struct walk){walk->step, NULL, graph, NULL, walk->depth, walk->is_whole};
}

static tvmfun_status add_while(struct walk *walk, const struct cuda_while *loop) {
  uint64_t condition = 0;
  CUgraph *bodies = NULL;
  tvmfun_status status = new_condition(walk, &condition);
  status = status ? status : set_condition(walk, condition, loop->condition, 1, 1, -1);
  status = status ? status : add_conditional(walk, condition, CUDA_LOOP, 1, &bodies);
  if (status) {
    return status;
  }
  struct walk body = into_body(walk, bodies[0]);
  status = run_sequence(&body, &loop->body);
  return status ? status : set_condition(&body, condition, loop->condition, 1, 1, -1);
}

/* Adds a node with a body for each case, none of which is empty. */
static tvmfun_status add_switch(struct walk *walk, const struct cuda_branch *branch) {
  uint64_t condition = 0;
  CUgraph *bodies = NULL;
  tvmfun_status status = new_condition(walk, &condition);
  status = status ? status : set_condition(walk, condition, branch->index, branch->nbytes, branch->case_count - 1, -1);
  status = status ? status : add_conditional(walk, condition, CUDA_SWITCH, branch->case_count, &bodies);
  for (int32_t i = 0; i < branch->case_count && !status; i++) {
    struct walk body = into_body(walk, bodies[i]);
    status = run_sequence(&body, &branch->cases[i]);
  }
  return status;
}

/* Adds a node for each case. All conditions are set before the first case, which may overwrite the number. */
static tvmfun_status add_cases(struct walk *walk, const struct cuda_branch *branch, uint64_t *conditions) {
  tvmfun_status status = TVMFUN_OK;
  for (int32_t i = 0; i < branch->case_count && !status; i++) {
    if (branch->cases[i].count) {
      status = new_condition(walk, &conditions[i]);
      status = status ? status
                      : set_condition(walk, conditions[i], branch->index, branch->nbytes, branch->case_count - 1, i);
    }
  }
  for (int32_t i = 0; i < branch->case_count && !status; i++) {
    if (branch->cases[i].count) {
      CUgraph *bodies = NULL;
      status = add_conditional(walk, conditions[i], CUDA_IF, 1, &bodies);
      if (!status) {
        struct walk body = into_body(walk, bodies[0]);
        status = run_sequence(&body, &branch->cases[i]);
      }
    }
  }
  return status;
}

static tvmfun_status add_branch(struct walk *walk, const struct cuda_branch *branch) {
  int has_empty = branch->case_count < 2;
  for (int32_t i = 0; i < branch->case_count; i++) {
    has_empty |= !branch->cases[i].count;
  }
  if (!has_empty && tvmfun_has_switches()) {
    return add_switch(walk, branch);
  }
  uint64_t *conditions = calloc((size_t)branch->case_count + 1, sizeof *conditions);
  if (!conditions) {
    return tvmfun_no_memory(sizeof *conditions);
  }
  tvmfun_status status = add_cases(walk, branch, conditions);
  free(conditions);
  return status;
}

/* -- loops and branches ------------------------------------------------------------------------------------------ */

/* Reads a number of 1 byte or 4 from the GPU's memory, once the stream has computed it. */
static tvmfun_status read_number(struct walk *walk, struct cuda_address address, size_t nbytes) {
  struct tvmfun_step *step = walk->step;
  step->number = 0;
  int code = tvmfun_driver.cuMemcpyDtoHAsync_v2(&step->number, address_of(walk, address), nbytes, walk->stream);
  const char *what = "reading a number that a loop or a branch depends on";
  tvmfun_status status = tvmfun_cuda_check(code, TVMFUN_KERNEL_FAILED, what, "cuMemcpyDtoHAsync");
  return status ? status
                : tvmfun_cuda_check(tvmfun_driver.cuStreamSynchronize(walk->stream), TVMFUN_KERNEL_FAILED, what,
                                    "cuStreamSynchronize");
}

static tvmfun_status repeat(struct walk *walk, const struct cuda_repeat *loop) {
  tvmfun_status status = TVMFUN_OK;
  int32_t depth = walk->depth++;
  for (int64_t i = 0; i < loop->count && !status; i++) {
    walk->step->indices[depth] = (uint64_t)i;
    status = run_sequence(walk, &loop->body);
  }
  walk->depth = depth;
  return status;
}

static tvmfun_status run_while(struct walk *walk, const struct cuda_while *loop) {
  if (walk->graph) {
    return add_while(walk, loop);
  }
  for (;;) {
    tvmfun_status status = read_number(walk, loop->condition, 1);
    if (status || !walk->step->number) {
      return status;
    }
    status = run_sequence(walk, &loop->body);
    if (status) {
      return status;
    }
  }
}

static tvmfun_status branch(struct walk *walk, const struct cuda_branch *branch) {
  if (walk->graph) {
    return add_branch(walk, branch);
  }
  tvmfun_status status = read_number(walk, branch->index, (size_t)branch->nbytes);
  if (status) {
    return status;
  }
  int32_t last = branch->case_count - 1, chosen = walk->step->number;
  return run_sequence(walk, &branch->cases[chosen < 0 ? 0 : chosen > last ? last : chosen]);
}

static tvmfun_status run_sequence(struct walk *walk, const struct cuda_sequence *sequence) {
  tvmfun_status status = TVMFUN_OK;
  for (int32_t i = 0; i < sequence->count && !status; i++) {
    const struct cuda_operation *operation = &sequence->operations[i];
    switch (operation->kind) {
      case CUDA_LAUNCH: status = launch(walk, &operation->launch); break;
      case CUDA_COPY: status = copy(walk, &operation->copy); break;
      case CUDA_REPEAT: status = repeat(walk, &operation->repeat); break;
      case CUDA_WHILE: status = run_while(walk, &operation->loop); break;
      case CUDA_BRANCH: status = branch(walk, &operation->branch); break;
      case CUDA_STRETCH: status = run_stretch(walk, &operation->stretch); break;
    }
  }
  return status;
}

tvmfun_status tvmfun_cuda_launch(struct tvmfun_step *step, CUstream stream) {
  const struct cuda_variant *variant = step->variant;
  struct walk walk = {step, stream, NULL, NULL, 0, 0};
  if (variant->condition < 0 || !step->functions[variant->condition]) {
    return run_sequence(&walk, &variant->operations);
  }
  walk.is_whole = 1;
  struct cuda_stretch all = {variant->stretch_count, variant->operations};
  return run_stretch(&walk, &all);
}
