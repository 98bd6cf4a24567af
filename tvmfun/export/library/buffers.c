/* The checks of a caller's buffers, and the message of the last error. */
#include "buffers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_message[512];

tvmfun_status tvmfun_fail(tvmfun_status status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_message, sizeof last_message, format, values);
  va_end(values);
  return status;
}

const char *tvmfun_message(void) { return last_message; }

tvmfun_status tvmfun_no_memory(uint64_t nbytes) {
  return tvmfun_fail(TVMFUN_OUT_OF_MEMORY, "there is no memory for %llu bytes", (unsigned long long)nbytes);
}

tvmfun_status tvmfun_check_counts(const tvmfun_signature *signature, const void *step, const tvmfun_buffer *inputs,
                                  int32_t input_count, const tvmfun_buffer *outputs, int32_t output_count) {
  if (!step || (!inputs && input_count) || (!outputs && output_count)) {
    const char *null = !step ? "step" : !inputs && input_count ? "inputs" : "outputs";
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "%s is NULL", null);
  }
  if (input_count != signature->input_count || output_count != signature->output_count) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "%s takes %d buffers and writes %d, got %d and %d", signature->name,
                       (int)signature->input_count, (int)signature->output_count, (int)input_count, (int)output_count);
  }
  return TVMFUN_OK;
}

static const tvmfun_leaf *leaf_of(const tvmfun_signature *signature, int32_t i) {
  return i < signature->input_count ? &signature->inputs[i] : &signature->outputs[i - signature->input_count];
}

static tvmfun_status check_buffer(const tvmfun_leaf *leaf, const tvmfun_buffer *buffer) {
  if (buffer->dtype != leaf->dtype) {
    return tvmfun_fail(TVMFUN_WRONG_DTYPE, "%s must have the dtype %d of tvmfun_dtype, got %d", leaf->name,
                       (int)leaf->dtype, (int)buffer->dtype);
  }
  if (buffer->nbytes != leaf->nbytes) {
    return tvmfun_fail(TVMFUN_WRONG_SIZE, "%s must have %llu bytes, got %llu", leaf->name,
                       (unsigned long long)leaf->nbytes, (unsigned long long)buffer->nbytes);
  }
  if (!leaf->nbytes) {
    return TVMFUN_OK;
  }
  if (!buffer->data) {
    return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "%s must have data, got NULL", leaf->name);
  }
  if ((uintptr_t)buffer->data % TVMFUN_ALIGNMENT) {
    return tvmfun_fail(TVMFUN_MISALIGNED, "%s must begin at a multiple of %d, got %p", leaf->name, TVMFUN_ALIGNMENT,
                       buffer->data);
  }
  return TVMFUN_OK;
}

struct interval {
  uintptr_t first, end;
  int32_t leaf;
  int is_written;
};

static int by_address(const void *left, const void *right) {
  const struct interval *a = left, *b = right;
  return a->first < b->first ? -1 : a->first > b->first;
}

/* Only memory that nothing is written to may be in several buffers. */
static tvmfun_status check_overlaps(const tvmfun_signature *signature, const tvmfun_buffer *buffers, int32_t count) {
  struct interval *intervals = malloc(sizeof(struct interval) * ((size_t)count + 1));
  if (!intervals) {
    return tvmfun_no_memory(sizeof(struct interval) * (uint64_t)count);
  }
  int32_t n = 0;
  for (int32_t i = 0; i < count; i++) {
    int is_result = i >= signature->input_count;
    const tvmfun_leaf *leaf = leaf_of(signature, i);
    if (leaf->nbytes && !(is_result && leaf->partner >= 0)) {
      uintptr_t first = (uintptr_t)buffers[i].data;
      intervals[n++] = (struct interval){first, first + leaf->nbytes, i, is_result || leaf->donated};
    }
  }
  qsort(intervals, (size_t)n, sizeof *intervals, by_address);
  tvmfun_status status = TVMFUN_OK;
  struct interval any = {0, 0, 0, 0}, written = {0, 0, 0, 1};
  for (int32_t i = 0; i < n && !status; i++) {
    const struct interval *other = intervals[i].is_written ? &any : &written;
    if (intervals[i].first < other->end) {
      status = tvmfun_fail(TVMFUN_OVERLAP, "%s and %s overlap, and one of them is written",
                           leaf_of(signature, other->leaf)->name, leaf_of(signature, intervals[i].leaf)->name);
    }
    if (intervals[i].end > any.end) {
      any = intervals[i];
    }
    if (intervals[i].is_written && intervals[i].end > written.end) {
      written = intervals[i];
    }
  }
  free(intervals);
  return status;
}

/* Checks one buffer, and accepts it. */
static tvmfun_status accept_one(const tvmfun_signature *signature, tvmfun_buffer *accepted, int32_t i,
                                tvmfun_buffer buffer, const tvmfun_buffer *inputs, tvmfun_buffer_check check,
                                const void *context, int32_t *changes) {
  const tvmfun_leaf *leaf = leaf_of(signature, i);
  if (i >= signature->input_count && leaf->partner >= 0) {
    if (!buffer.data) {
      buffer.data = inputs[leaf->partner].data;
    } else if (leaf->nbytes && buffer.data != inputs[leaf->partner].data) {
      return tvmfun_fail(TVMFUN_BAD_ARGUMENT, "%s is written over %s: its data must be the same, or NULL", leaf->name,
                         signature->inputs[leaf->partner].name);
    }
  }
  tvmfun_buffer *last = &accepted[i];
  /* No dtype is 0, unlike that of a buffer that was wrong, or that there was none of. */
  if (buffer.dtype && last->data == buffer.data && last->nbytes == buffer.nbytes && last->dtype == buffer.dtype) {
    return TVMFUN_OK;
  }
  tvmfun_status status = check_buffer(leaf, &buffer);
  if (!status && check && leaf->nbytes) {
    status = check(context, leaf, &buffer);
  }
  *last = buffer;
  ++*changes;
  return status;
}

tvmfun_status tvmfun_accept(const tvmfun_signature *signature, tvmfun_buffer *accepted, const tvmfun_buffer *inputs,
                            const tvmfun_buffer *outputs, tvmfun_buffer_check check, const void *context) {
  int32_t arguments = signature->input_count, count = arguments + signature->output_count, changes = 0;
  tvmfun_status status = TVMFUN_OK;
  for (int32_t i = 0; i < count && !status; i++) {
    tvmfun_buffer buffer = i < arguments ? inputs[i] : outputs[i - arguments];
    status = accept_one(signature, accepted, i, buffer, inputs, check, context, &changes);
  }
  if (!status && changes) {
    status = check_overlaps(signature, accepted, count);
  }
  if (status) {
    memset(accepted, 0, sizeof *accepted * (size_t)count); /* so that wrong ones are never taken for right */
  }
  return status;
}
