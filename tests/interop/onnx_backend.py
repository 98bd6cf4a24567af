"""A backend of ONNX's own test suite: jitted functions that ``from_onnx`` returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx.backend.base import Backend, BackendRep

import tvmfun
from tvmfun import random
from tvmfun.interop.onnx import OnnxFunction, from_onnx
from tvmfun.interop.onnx.tensors import is_narrow
from tvmfun.interop.random_keys import random_key_name


class Model(BackendRep):
    """A model that is ready to run.

    Args:
        function: from ``from_onnx``.
        params: its parameters.
    """

    def __init__(self, function: OnnxFunction, params: dict[str, Any]) -> None:
        self.function, self.params = function, params

    def run(self, inputs: Sequence[Any], **options: Any) -> list[np.ndarray]:
        types = self.function.inputs
        static = {kind.name: x for kind, x in zip(types, inputs, strict=True) if kind.is_static or x is None}
        moving = {kind.name: as_bits(x) for kind, x in zip(types, inputs, strict=True) if kind.name not in static}

        @tvmfun.jit
        def call(params: dict[str, Any], moving: dict[str, Any]) -> Any:
            key = {random_key_name([kind.name for kind in types]): random.key(0)}
            return self.function(params, **static, **moving, **key)

        results = call(self.params, moving)
        results = results if isinstance(results, tuple) else (results,)
        return [from_bits(x, kind.dtype) for x, kind in zip(results, self.function.outputs, strict=True)]


def as_bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint8) if is_narrow(x.dtype) else x


def from_bits(x: Any, dtype: np.dtype) -> np.ndarray:
    return np.asarray(x).view(dtype) if is_narrow(dtype) else np.asarray(x)


class TvmfunBackend(Backend):
    """The backend, which remembers the model that it got last."""

    model: Any = None

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Model:
        cls.model = model
        return Model(*from_onnx(model))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def cases() -> dict[str, Callable[[], None]]:
    """The cases of the suite whose models are in the wheel, by name."""
    from onnx.backend.test import BackendTest

    result = {}
    for kind, tests in BackendTest(TvmfunBackend, __name__).test_cases.items():
        if kind == "OnnxBackendRealModelTest":  # these have to be downloaded
            continue
        for method in dir(tests):
            if method.startswith("test_") and method.endswith("_cpu"):
                name = method.removesuffix("_cpu")
                result[name] = getattr(tests(method), method)
    return result
