"""The models whose training steps are timed, each in one file: the functional form and PyTorch's."""
