"""The optimizers people use, each a chain of transformations, in files by theme."""
