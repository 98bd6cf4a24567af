"""Code generation: scheduled kernels and a ``main`` that calls them become machine code."""
