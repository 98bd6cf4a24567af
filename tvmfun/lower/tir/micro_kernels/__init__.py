"""Micro-kernels: functions in LLVM's own language for the innermost work of products of matrices and of convolutions.

They are written as LLVM's optimizer would leave them, and become machine code together with the kernels that call them,
past TVM's passes and that optimizer. Of the time that a product takes to compile, most would go into the unrolled rows
of its tiles. A name holds all that a function depends on, so kernels of a module with the same tile share it.
"""
