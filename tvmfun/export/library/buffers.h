/* The checks of a caller's buffers, and the message of the last error. */
#ifndef TVMFUN_BUFFERS_H
#define TVMFUN_BUFFERS_H

#include "tvmfun/step.h"

/* Keeps a message for this thread, and returns the status. */
__attribute__((format(printf, 2, 3))) tvmfun_status tvmfun_fail(tvmfun_status status, const char *format, ...);
const char *tvmfun_message(void);
tvmfun_status tvmfun_no_memory(uint64_t nbytes);

/* A further check of a buffer with elements. */
typedef tvmfun_status (*tvmfun_buffer_check)(const void *context, const tvmfun_leaf *leaf, const tvmfun_buffer *buffer);

/* Checks how many buffers there are. */
tvmfun_status tvmfun_check_counts(const tvmfun_signature *signature, const void *step, const tvmfun_buffer *inputs,
                                  int32_t input_count, const tvmfun_buffer *outputs, int32_t output_count);

/* Copies arguments and results to `accepted` and checks them, unless they are those that it has. Results that are
 * written over arguments get their data. After an error it has none. */
tvmfun_status tvmfun_accept(const tvmfun_signature *signature, tvmfun_buffer *accepted, const tvmfun_buffer *inputs,
                            const tvmfun_buffer *outputs, tvmfun_buffer_check check, const void *context);

#endif
