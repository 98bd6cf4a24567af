"""Micro-kernels: functions in LLVM's own language for the innermost work of products of matrices and of convolutions.

They are written as LLVM's optimizer would leave them, and become machine code together with the kernels that call them,
bypassing TVM's passes and that optimizer, which would spend most of a product's compile time on the unrolled rows of
its tiles. A name holds all parameters of a function, so kernels of a module with the same tile share it.
"""
