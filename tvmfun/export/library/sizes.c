/* Dynamic sizes: formulas, shapes, offsets of intermediates in one block, and the bytes of workspaces. */
#include "sizes.h"

#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MOST_OPERANDS 64
#define MOST_ELEMENTS ((int64_t)1 << 31)
/* The offsets of intermediates are multiples of this, and workspaces have so many bytes or a multiple of them. */
#define OFFSET_ALIGNMENT ((uint64_t)256)
#define PAGE ((uint64_t)4096)

static const tvmfun_signature *const signature = &tvmfun_contents.signature;
/* The bytes of an element, by tvmfun_dtype. */
static const uint8_t item_bytes[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};

static const tvmfun_leaf *leaf_of(int32_t i) {
  return i < signature->input_count ? &signature->inputs[i] : &signature->outputs[i - signature->input_count];
}

/* -- formulas ---------------------------------------------------------------------------------------------------- */

/* Returns whether the value of a formula is a number of 64 bits. */
static int evaluate(formula formula, const int64_t *sizes, int64_t *value) {
  int64_t operands[MOST_OPERANDS];
  int32_t count = 0;
  for (; *formula != FORMULA_END; formula += 2) {
    if (*formula == FORMULA_NUMBER || *formula == FORMULA_SIZE) {
      operands[count++] = *formula == FORMULA_NUMBER ? formula[1] : sizes[formula[1]];
      continue;
    }
    int64_t right = operands[--count], *left = &operands[count - 1];
    if (*formula == FORMULA_DIVIDE) {
      if (right <= 0) {
        return 0;
      }
      *left = *left / right - (*left % right < 0);
    } else if (*formula == FORMULA_ADD ? __builtin_add_overflow(*left, right, left)
                                       : __builtin_mul_overflow(*left, right, left)) {
      return 0;
    }
  }
  *value = operands[0];
  return 1;
}

static tvmfun_status too_large(void) {
  return tvmfun_fail(TVMFUN_WRONG_SIZE, "%s is compiled for arrays of less than 2**31 elements, and one has more",
                     signature->name);
}

tvmfun_status tvmfun_check_sizes(const int64_t *sizes, int32_t size_count) {
  if (size_count != signature->size_count || (!sizes && size_count)) {
    const char *first = signature->size_count ? signature->sizes[0].name : "none";
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "%s takes %d dynamic sizes (%s%s), got %d", signature->name,
                       (int)signature->size_count, first, signature->size_count > 1 ? ", ..." : "",
                       sizes ? (int)size_count : 0);
  }
  for (int32_t i = 0; i < size_count; i++) {
    const tvmfun_size *size = &signature->sizes[i];
    if (sizes[i] < size->min || sizes[i] > size->max) {
      return tvmfun_fail(TVMFUN_WRONG_SIZE, "the size %s must be from %lld to %lld, got %lld", size->name,
                         (long long)size->min, (long long)size->max, (long long)sizes[i]);
    }
  }
  return TVMFUN_OK;
}

tvmfun_status tvmfun_compute_axes(const int64_t *sizes, int64_t *axes) {
  const struct dynamic_shapes *shapes = &tvmfun_contents.shapes;
  if (!signature->size_count) {
    for (int32_t i = 0; i < signature->input_count + signature->output_count; i++) {
      const tvmfun_leaf *leaf = leaf_of(i);
      for (int32_t k = 0; k < leaf->ndim; k++) {
        *axes++ = leaf->shape[k];
      }
    }
    return TVMFUN_OK;
  }
  int64_t count;
  for (int32_t i = 0; i < shapes->count_count; i++) {
    if (!evaluate(shapes->counts[i], sizes, &count) || count >= MOST_ELEMENTS) {
      return too_large();
    }
  }
  for (int32_t i = 0; i < shapes->axis_count; i++) {
    if (!evaluate(shapes->axes[i], sizes, &axes[i])) {
      return too_large();
    }
    if (axes[i] < 0) {
      return tvmfun_fail(TVMFUN_WRONG_SIZE, "an axis would have the size %lld", (long long)axes[i]);
    }
  }
  return TVMFUN_OK;
}

/* -- intermediates ----------------------------------------------------------------------------------------------- */

/* A buffer that has an offset, and the next one by offset. */
struct placed {
  uint64_t begin, end;
  int32_t buffer, next;
};

struct buffer_size {
  uint64_t nbytes;
  int32_t buffer;
};

static int by_size(const void *left, const void *right) {
  const struct buffer_size *a = left, *b = right;
  return a->nbytes > b->nbytes ? -1 : a->nbytes < b->nbytes ? 1 : a->buffer - b->buffer;
}

/* Gives buffers that are in use at the same time memory that does not overlap: the largest ones first, each at the
 * lowest offset where it fits. Returns the bytes of the block. */
static uint64_t assign_offsets(const struct dynamic_plan *plan, struct buffer_size *sizes, struct placed *placed,
                               uint64_t *offsets) {
  uint64_t total = 0;
  int32_t first = -1;
  qsort(sizes, (size_t)plan->buffer_count, sizeof *sizes, by_size);
  for (int32_t i = 0; i < plan->buffer_count; i++) {
    struct lifetime lifetime = plan->lifetimes[sizes[i].buffer];
    uint64_t nbytes = (sizes[i].nbytes + OFFSET_ALIGNMENT - 1) / OFFSET_ALIGNMENT * OFFSET_ALIGNMENT, begin = 0;
    int32_t before = -1;
    for (int32_t k = first; k >= 0; k = placed[k].next) {
      struct lifetime other = plan->lifetimes[placed[k].buffer];
      if (other.first <= lifetime.last && other.last >= lifetime.first) {
        if (placed[k].begin >= begin && placed[k].begin - begin >= nbytes) {
          break;
        }
        begin = placed[k].end > begin ? placed[k].end : begin;
      }
    }
    for (int32_t k = first; k >= 0 && placed[k].begin <= begin; k = placed[k].next) {
      before = k;
    }
    int32_t *link = before < 0 ? &first : &placed[before].next;
    placed[i] = (struct placed){begin, begin + nbytes, sizes[i].buffer, *link};
    *link = i;
    offsets[sizes[i].buffer] = begin;
    total = begin + nbytes > total ? begin + nbytes : total;
  }
  return total;
}

/* -- workspaces -------------------------------------------------------------------------------------------------- */

/* Replays the allocations of one thread, which reuses the smallest piece that fits, or enlarges the largest one.
 * `idle` is in ascending order. */
static uint64_t kept(const struct dynamic_plan *plan, const uint64_t *nbytes, int32_t thread, uint64_t *idle,
                     uint64_t *used) {
  int32_t idle_count = 0, used_count = 0;
  uint64_t total = 0;
  for (int32_t i = 0; i < plan->allocation_count; i++) {
    uint64_t piece;
    if (plan->allocations[i].nbytes) {
      int32_t k = 0;
      uint64_t pages = nbytes[i] ? (nbytes[i] + PAGE - 1) / PAGE : 1;
      piece = thread < plan->allocations[i].threads ? pages * PAGE : UINT64_MAX;
      while (k < idle_count && idle[k] < piece) {
        k++;
      }
      if (piece != UINT64_MAX && idle_count) {
        int fits = k < idle_count;
        piece = fits ? idle[k] : piece;
        k = fits ? k : k - 1;
        memmove(&idle[k], &idle[k + 1], sizeof *idle * (size_t)(--idle_count - k));
      }
      used[used_count++] = piece;
    } else if ((piece = used[--used_count]) != UINT64_MAX) {
      int32_t k = idle_count++;
      for (; k > 0 && idle[k - 1] > piece; k--) {
        idle[k] = idle[k - 1];
      }
      idle[k] = piece;
    }
  }
  for (int32_t i = 0; i < idle_count; i++) {
    total += idle[i];
  }
  return total;
}

static tvmfun_status plan_workspaces(struct layout *layout) {
  const struct dynamic_plan *plan = layout->variant->dynamic;
  size_t count = (size_t)plan->allocation_count;
  uint64_t *numbers = calloc(3 * count + 1, sizeof *numbers);
  if (!numbers) {
    return tvmfun_no_memory(3 * count * sizeof *numbers);
  }
  int is_right = 1;
  for (size_t i = 0; i < count; i++) {
    int64_t value = 0;
    is_right &= !plan->allocations[i].nbytes || evaluate(plan->allocations[i].nbytes, layout->sizes, &value);
    numbers[i] = value > 0 ? (uint64_t)value : 0;
  }
  layout->workspaces = 0;
  for (int32_t thread = 0; thread < plan->threads; thread++) {
    layout->workspaces += kept(plan, numbers, thread, numbers + count, numbers + 2 * count);
  }
  free(numbers);
  return is_right ? TVMFUN_OK : too_large();
}

/* -- layouts ----------------------------------------------------------------------------------------------------- */

void tvmfun_layout_destroy(struct layout *layout) {
  if (layout) {
    free(layout->sizes);
    free(layout->axes);
    free(layout->leaves);
    free(layout->fresh);
    free(layout->offsets);
    free(layout);
  }
}

struct layout *tvmfun_layout_create(const struct variant *variant) {
  struct layout *layout = calloc(1, sizeof *layout);
  if (!layout) {
    return NULL;
  }
  layout->variant = variant;
  layout->signature = *signature;
  layout->fresh = calloc((size_t)variant->fresh_count + 1, sizeof *layout->fresh);
  if (!variant->dynamic) {
    layout->temporaries = variant->temporaries;
    layout->workspaces = variant->workspaces;
    if (layout->fresh) {
      memcpy(layout->fresh, variant->fresh, sizeof *layout->fresh * (size_t)variant->fresh_count);
      return layout;
    }
  } else {
    size_t leaves = (size_t)signature->input_count + (size_t)signature->output_count;
    layout->sizes = calloc((size_t)signature->size_count + 1, sizeof *layout->sizes);
    layout->axes = calloc((size_t)tvmfun_contents.shapes.axis_count + 1, sizeof *layout->axes);
    layout->leaves = calloc(leaves + 1, sizeof *layout->leaves);
    layout->offsets = calloc((size_t)variant->dynamic->buffer_count + 1, sizeof *layout->offsets);
    if (layout->fresh && layout->sizes && layout->axes && layout->leaves && layout->offsets) {
      return layout;
    }
  }
  tvmfun_layout_destroy(layout);
  return NULL;
}

/* Gives the leaves their shapes and bytes. */
static void set_leaves(struct layout *layout) {
  const int64_t *axes = layout->axes;
  for (int32_t i = 0; i < signature->input_count + signature->output_count; i++) {
    tvmfun_leaf *leaf = &layout->leaves[i];
    *leaf = *leaf_of(i);
    leaf->shape = axes;
    leaf->nbytes = item_bytes[leaf->dtype];
    for (int32_t k = 0; k < leaf->ndim; k++) {
      leaf->nbytes *= (uint64_t)axes[k];
    }
    axes += leaf->ndim;
  }
  layout->signature.inputs = layout->leaves;
  layout->signature.outputs = layout->leaves + signature->input_count;
}

tvmfun_status tvmfun_layout_compute(struct layout *layout, const int64_t *sizes) {
  const struct dynamic_plan *plan = layout->variant->dynamic;
  if (!plan) {
    return TVMFUN_OK;
  }
  tvmfun_status status = tvmfun_compute_axes(sizes, layout->axes);
  if (status) {
    return status;
  }
  memcpy(layout->sizes, sizes, sizeof *sizes * (size_t)signature->size_count);
  set_leaves(layout);
  size_t count = (size_t)plan->buffer_count;
  struct buffer_size *buffers = calloc(count + 1, sizeof *buffers);
  struct placed *placed = calloc(count + 1, sizeof *placed);
  int64_t value = 0;
  int is_right = 1;
  for (int32_t i = 0; i < layout->variant->fresh_count; i++) {
    is_right &= evaluate(plan->fresh[i], sizes, &value);
    layout->fresh[i] = (uint64_t)value;
  }
  for (int32_t i = 0; buffers && i < plan->buffer_count; i++) {
    is_right &= evaluate(plan->buffers[i], sizes, &value);
    buffers[i] = (struct buffer_size){(uint64_t)value, i};
  }
  if (!buffers || !placed) {
    status = tvmfun_no_memory(count * (sizeof *buffers + sizeof *placed));
  } else if (!is_right) {
    status = too_large();
  } else {
    layout->temporaries = assign_offsets(plan, buffers, placed, layout->offsets);
    status = plan_workspaces(layout);
  }
  free(buffers);
  free(placed);
  return status;
}
