"""The optimizer runs that tests compare, for tvmfun and for optax."""
