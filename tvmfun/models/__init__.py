"""Models: definitions only, to train, to read and to measure."""

from tvmfun.models.mnist_cnn import MnistCnn

__all__ = ["MnistCnn"]
