"""Elementary and special functions as arithmetic on vectors.

Each function takes its arguments and ``name``, which binds intermediate results, and states its error bound in units in
the last place (ulp), measured over random numbers against float64, and in double precision against numbers of 80 bits.
Infinities, NaN, zeros and subnormal numbers give the same results as in C.

Short formulas become part of the kernels that need them, and long ones functions in LLVM's language.
"""
