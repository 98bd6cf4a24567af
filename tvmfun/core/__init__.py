"""The core: arrays, op records, Programs, and the trace that turns Python functions into Programs."""
