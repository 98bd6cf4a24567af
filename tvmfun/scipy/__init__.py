"""SciPy."""
