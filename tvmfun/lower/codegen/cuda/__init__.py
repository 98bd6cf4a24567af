"""Machine code for NVIDIA's GPUs: compilers, single kernels, and the launches of a Program."""
