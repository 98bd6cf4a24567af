"""Lowering: Program -> kernels -> scheduled kernels -> one module, for whatever target."""
