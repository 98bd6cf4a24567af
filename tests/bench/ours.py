"""tvmfun as one of the frameworks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.case import Case, Namespace
from bench.frameworks import Functional

import tvmfun
import tvmfun.lax
import tvmfun.numpy
from tvmfun import optim, random
from tvmfun.nn import functional

OURS = Namespace(tvmfun.numpy, tvmfun.lax, functional, random, attention_drops=True)


class Ours(Functional):
    """tvmfun."""

    name = "tvmfun"
    namespace, optimizers = OURS, optim
    compiled, value_and_grad = staticmethod(tvmfun.jit), staticmethod(tvmfun.value_and_grad)
    put = staticmethod(tvmfun.device_put)
    eval_shape, spec, map = staticmethod(tvmfun.eval_shape), tvmfun.ShapeDtype, staticmethod(tvmfun.tree.map)
    bytes_of = staticmethod(lambda plan: plan.peak)

    @staticmethod
    def mixed(case: Case) -> Callable:
        """The loss of a case in its precision."""
        loss = partial(case.loss, OURS)
        return loss if case.precision == "float32" else tvmfun.amp(loss, case.precision)
