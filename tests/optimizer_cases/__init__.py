"""What the tests of the optimizers run, for tvmfun and for optax."""
