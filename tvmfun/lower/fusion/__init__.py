"""Fusion: the equations of a Program become kernels."""
