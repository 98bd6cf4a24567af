"""Functions compiled as a whole also outside of a trace, and functions with given partial derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from tvmfun.core.array import Array, DeviceArray, device_array, is_on_cpu
from tvmfun.core.derivative import zeros
from tvmfun.core.interpreter import is_tracing
from tvmfun.errors import GradientError
from tvmfun.jit import jit
from tvmfun.ops import calls, control, pointwise
from tvmfun.ops.shape import reshape
from tvmfun.ops.simplify import is_number

_F = TypeVar("_F", bound=Callable)


def compiled(*static: str) -> Callable[[_F], _F]:
    """A decorator that compiles a function as one module also outside of a trace, where ops would run one by one.

    So it rounds and costs the same there.

    Args:
        static: names of arguments that are not arrays.
    """

    def decorate(fun: _F) -> _F:
        jitted = jit(fun, static_argnames=static)

        @wraps(fun)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (fun if is_tracing() else jitted)(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


@lru_cache(maxsize=256)
def _no_elements(size: int) -> Array:
    """An array without elements, whose first axis tells a compiled function a size."""
    return device_array(np.empty((size, 0), np.int8))


def compiled_for_all_shapes(*static: str) -> Callable[[_F], _F]:
    """A decorator like ``compiled("shape", ...)`` for draws: one module makes arrays of every shape.

    Functions ``(key, *numbers, shape=)`` are meant whose elements, numbers or rows, depend on the key, the numbers and
    their index in row-major order alone. A model has parameters of many shapes, and with a module for each it would
    take seconds to make.

    Args:
        static: names of arguments that are not arrays, other than ``shape``.
    """

    def decorate(fun: _F) -> _F:
        of_a_shape = compiled("shape", *static)(fun)

        def of_a_size(row: Array, *args: Any, **options: Any) -> Array:
            return fun(*args, shape=row.shape[:1], **options)

        of_a_size.__name__ = fun.__name__
        of_any_size = jit(of_a_size, static_argnames=static, dynamic_shapes={"row": {0: "size"}})

        @wraps(fun)
        def call(key: Array, *numbers: Any, shape: tuple, **options: Any) -> Any:
            is_one_key = isinstance(key, DeviceArray) and key.ndim == 1 and is_on_cpu(key)
            if is_tracing() or not is_one_key or any(map(np.ndim, numbers)) or not 0 < math.prod(shape) < 2**31:
                return of_a_shape(key, *numbers, shape=shape, **options)
            result = of_any_size(_no_elements(math.prod(shape)), key, *numbers, **options)
            return reshape(result, shape=(*shape, *result.shape[1:]))

        return call  # type: ignore[return-value]

    return decorate


def with_partials(fun: Callable[..., Array], partials: Sequence[Callable[..., Array] | None]) -> Callable[..., Array]:
    """The elementwise function ``fun``, traced, with the given partial derivatives.

    Args:
        fun: maps arrays of one shape to an array of that shape; never differentiated itself.
        partials: for each argument the derivative as a function of the result and the arguments, differentiable
            itself, or None for an argument without one. Computed only where the tangent is not zero.
    """

    def call(*args: Array) -> Array:
        program, captured = control.closed(fun, [x.aval for x in args], fun.__name__)

        def moved(*values: Array) -> list[Array]:
            primals, tangents = values[len(captured) : -len(args)], values[-len(args) :]
            result = call(*primals)
            total = None
            for partial, tangent in zip(partials, tangents, strict=True):
                if partial is not None and not is_number(tangent, 0):
                    term = pointwise.multiply(partial(result, *primals), tangent)
                    total = term if total is None else pointwise.add(total, term)
            return [result, zeros(result) if total is None else total]

        rule = calls.Rule(moved)
        return calls.custom_jvp_call(*captured, *args, program=program, rule=rule, captured=len(captured))[0]

    return call


def undifferentiable(name: str, x: Array) -> Array:
    """Returns ``x``, the argument of a function without a derivative; differentiating it raises an error.

    Args:
        name: the name of the function in the error.
        x: its argument.
    """
    from tvmfun.transforms import custom_jvp

    def refuse(primals: Any, tangents: Any) -> Any:
        raise GradientError(name, "it has no derivative", got=repr(x.aval), hint="stop_gradient of its argument")

    argument = custom_jvp(lambda x: x)
    argument.defjvp(refuse)
    return argument(x)
