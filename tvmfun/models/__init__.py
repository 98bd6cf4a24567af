"""Models: definitions, losses and generation, to train, to read and to measure."""

# ruff: noqa: F403

from tvmfun.models import bert, dlrm, generation, gpt2, mnist_cnn, resnet, translation, word_models
from tvmfun.models.bert import *
from tvmfun.models.dlrm import *
from tvmfun.models.generation import *
from tvmfun.models.gpt2 import *
from tvmfun.models.mnist_cnn import *
from tvmfun.models.resnet import *
from tvmfun.models.translation import *
from tvmfun.models.word_models import *

__all__ = []
__all__ += bert.__all__
__all__ += dlrm.__all__
__all__ += generation.__all__
__all__ += gpt2.__all__
__all__ += mnist_cnn.__all__
__all__ += resnet.__all__
__all__ += translation.__all__
__all__ += word_models.__all__
