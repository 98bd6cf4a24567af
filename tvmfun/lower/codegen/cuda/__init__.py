"""Machine code for NVIDIA's GPUs: compilers, kernels one by one, and the launches that a Program consists of."""
