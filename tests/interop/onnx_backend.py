"""A backend of ONNX's own test suite: functions that ``from_onnx`` returns, jitted or computed by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx.backend.base import Backend, BackendRep
from support.derivatives import in_numpy

import tvmfun
from tvmfun import random
from tvmfun.interop.onnx import OnnxFunction, coverage, from_onnx
from tvmfun.interop.onnx.tensors import is_narrow
from tvmfun.interop.random_keys import random_key_name


class Model(BackendRep):
    """A model that is ready to run.

    Args:
        function: from ``from_onnx``.
        params: its parameters.
        is_compiled: whether it runs as machine code.
    """

    def __init__(self, function: OnnxFunction, params: dict[str, Any], is_compiled: bool) -> None:
        self.function, self.params, self.is_compiled = function, params, is_compiled

    def run(self, inputs: Sequence[Any], **options: Any) -> list[np.ndarray]:
        types = self.function.inputs
        static = {kind.name: x for kind, x in zip(types, inputs, strict=True) if kind.is_static or x is None}
        moving = {kind.name: as_bits(x) for kind, x in zip(types, inputs, strict=True) if kind.name not in static}

        def call(params: dict[str, Any], moving: dict[str, Any]) -> Any:
            key = {random_key_name([kind.name for kind in types]): random.key(0)}
            return self.function(params, **static, **moving, **key)

        run = tvmfun.jit(call) if self.is_compiled else in_numpy(call, self.params, moving)
        results = run(self.params, moving)
        results = results if isinstance(results, tuple) else (results,)
        return [from_bits(x, kind.dtype) for x, kind in zip(results, self.function.outputs, strict=True)]


def operators(graph: Any) -> Iterator[str]:
    """The operators of a graph and of those inside of it."""
    for node in graph.node:
        yield f"{node.domain}.{node.op_type}"
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from operators(attribute.g)


@cache
def compiled() -> set[bytes]:
    """The models of the suite that are compiled: the first with the same set of operators.

    The suite is about reading them, and there are up to a hundred models of one operator.
    """
    first: dict[frozenset[str], bytes] = {}
    for name, model in coverage.suite().items():
        if coverage.left_out(name, model) is None:
            first.setdefault(frozenset(operators(model.graph)), model.SerializeToString())
    return set(first.values())


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
        return Model(*from_onnx(model), model.SerializeToString() in compiled())

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def cases() -> dict[str, Callable[[], None]]:
    """The cases of the suite whose models are in the wheel, by name."""
    from onnx.backend.test import BackendTest

    class Suite(BackendTest):
        """The suite with two units in the last place of float16, as it has of bfloat16: sums here are in float32."""

        @classmethod
        def assert_similar_outputs(
            cls, ref_outputs: Any, outputs: Any, rtol: float, atol: float, model_dir: str | None = None
        ) -> None:
            is_half = any(getattr(x, "dtype", None) == np.float16 for x in outputs)
            super().assert_similar_outputs(ref_outputs, outputs, max(rtol, is_half * 2**-9), atol, model_dir)

    result = {}
    for kind, tests in Suite(TvmfunBackend, __name__).test_cases.items():
        if kind == "OnnxBackendRealModelTest":  # these have to be downloaded
            continue
        for method in dir(tests):
            if method.startswith("test_") and method.endswith("_cpu"):
                name = method.removesuffix("_cpu")
                result[name] = getattr(tests(method), method)
    return result
