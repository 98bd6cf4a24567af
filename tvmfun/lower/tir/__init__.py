"""TIR: builders, searching and rewriting, the passes from TIR to TIR, and the calling convention of functions."""
