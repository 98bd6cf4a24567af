"""Random programs, compared with JAX and with themselves run another way."""
