"""The checks of a program (values, gradients, ...) as functions of its arguments, for either library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special  # comes with jax
from support.oracle import quick_options, x64

import tvmfun
import tvmfun.numpy as tnp
from fuzz.case import Case
from fuzz.draw import result
from fuzz.namespaces import jax_names, own_names
from tvmfun import reference


def asked(case: Case, names: dict[str, Any], module: Any) -> Callable:
    """The function under test for ``case.check``, with the names bound to one library's functions."""
    scope: dict[str, Any] = dict(names)
    exec(compile(case.text(), "<fuzz>", "exec"), scope)
    program, xp = scope["program"], names["np"]
    floats = float_arguments(case)

    def terms(results: Any, weights: Callable) -> list[Any]:
        """Every finite element times a weight of its own."""
        weighed = []
        for x in results:
            if is_float(x.dtype):
                wide = "float64" if str(x.dtype) == "float64" else "float32"
                weight = weights(np.arange(np.prod(x.shape, dtype=int)).reshape(x.shape)).astype(wide)
                weighed.append(xp.where(xp.isfinite(x), x, 0).astype(wide) * weight)
        return weighed

    sines = lambda place: np.sin(1.0 + place)
    total = lambda parts: sum(map(xp.sum, parts), 0.0)
    loss = lambda *values: total(terms(program(*values), np.cos))
    gradient = module.grad(loss, argnums=floats)
    slope = lambda *values: total(terms(gradient(*values), sines))
    loss_terms = lambda *values: terms(program(*values), np.cos)

    def forward(*values: Any) -> Any:
        first = floats[0]
        moved = lambda x: loss(*values[:first], x, *values[first + 1 :])
        return module.jvp(moved, (values[first],), (xp.ones_like(values[first]),))

    functions: dict[str, Callable[..., Any]] = {
        "loss": loss,
        "loss terms": loss_terms,
        "slope terms": lambda *values: terms(gradient(*values), sines),
        "batched loss terms": module.vmap(loss_terms),
        "gradient": lambda *values: module.value_and_grad(loss, argnums=floats)(*values),
        "second": lambda *values: module.grad(slope, argnums=floats)(*values),
        "forward": forward,
        "batched": module.vmap(program, in_axes=-1),
        "batched gradient": lambda *values: module.vmap(module.value_and_grad(loss, argnums=floats))(*values),
        "checkpointed": lambda *values: module.grad(module.checkpoint(loss), argnums=floats)(*values),
    }
    return functions.get(case.check, program)  # type: ignore[return-value]  # there is a program


def float_arguments(case: Case) -> tuple[int, ...]:
    """The positions of the arguments that derivatives are taken with respect to."""
    return tuple(i for i, x in enumerate(case.arguments.values()) if is_float(x.dtype))


def given(case: Case) -> list[np.ndarray]:
    """The arguments; for a batched program two of each, of which the second is turned around."""
    values = list(case.arguments.values())
    if not case.check.startswith("batched"):
        return values
    axis = -1 if case.check == "batched" else 0
    return [np.stack([x, x[::-1] if x.ndim else x], axis) for x in values]


def is_wide(case: Case) -> bool:
    """Whether a program has 64-bit numbers, also in JAX."""
    return any(x.dtype.itemsize == 8 for x in case.arguments.values()) or "'float64'" in case.text()


def has_long_integers(case: Case) -> bool:
    """Whether JAX has results of 64-bit integers, such as sums of shorter ones."""
    with x64(is_wide(case)):
        values = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in case.arguments.items()}
        for name, expression in case.statements:
            values[name] = result(values, expression)
    return any(str(getattr(x, "dtype", "")) in ("int64", "uint64") for x in values.values())


def expected(case: Case, compiled: bool = True) -> list[np.ndarray]:
    """The results of JAX, compiled or op by op."""
    function = asked(case, jax_names(), jax)
    if compiled:
        # Each result is rounded to its dtype, as the program says.
        function = jax.jit(function, compiler_options=quick_options() | {"xla_allow_excess_precision": False})
    with x64(is_wide(case)):
        return [np.asarray(x) for x in jax.tree.leaves(function(*map(jnp.asarray, given(case))))]


_SCIPY = SimpleNamespace(
    digamma=special.digamma,
    lgamma=special.gammaln,
    erf=special.erf,
    erfc=special.erfc,
    erf_inv=special.erfinv,
    logistic=special.expit,
)


def by_numpy(case: Case) -> list[np.ndarray]:
    """The results if NumPy and SciPy compute all statements that they can, from the results before."""
    numpy_names = {"np": np, "onp": np, "lax": _SCIPY}
    values: dict[str, Any] = dict(case.arguments)
    with x64(is_wide(case)):
        for name, expression in case.statements:
            value = np.asarray(eval(expression, {**jax_names(), **{key: jnp.asarray(x) for key, x in values.items()}}))
            try:
                other = np.asarray(eval(expression, {**numpy_names, **values}))
            except Exception:  # NumPy has no such function
                other = value
            values[name] = other.astype(value.dtype) if other.shape == value.shape else value
    return [values[name] for name in case.outputs]


def found(case: Case) -> list[np.ndarray]:
    """The results of tvmfun, compiled unless the case is about ops outside of ``jit``."""
    function = asked(case, own_names(), tvmfun)
    arguments = [tnp.array(x) for x in given(case)]
    if case.check == "donated":
        function = tvmfun.jit(function, donate_argnums=tuple(range(len(arguments))))
    elif case.check != "eager":
        function = tvmfun.jit(function)
    return [np.asarray(x) for x in tvmfun.tree.leaves(function(*arguments))]


#: The names of all ops in the Programs of this process.
REACHED: set[str] = set()


class Meant:
    """The Program of a case, and what the reference evaluator makes of it."""

    def __init__(self, case: Case) -> None:
        arguments = given(case)
        self.program = tvmfun.trace(asked(case, own_names(), tvmfun))(*map(tnp.array, arguments))
        REACHED.update(_op_names(self.program))
        self._values = [*map(np.asarray, self.program.captured), *arguments]

    def evaluate(self, seed: int | None = None) -> list[np.ndarray]:
        """The results, with rounding errors drawn from a seed if there is one."""
        return reference.evaluate(self.program, self._values, None if seed is None else reference.Rounding(seed))

    def operations(self) -> int:
        """The number of equations, those of bodies among them."""
        return sum(1 for _ in _op_names(self.program))


def _op_names(program: tvmfun.Program) -> Iterator[str]:
    """The op of each equation, those of bodies among them."""
    for equation in program.equations:
        yield equation.op.name
        for value in equation.params.values():
            for one in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(one, tvmfun.Program):
                    yield from _op_names(one)


def is_float(dtype: Any) -> bool:
    """Whether numbers of the dtype are rounded."""
    return str(dtype) in ("float32", "float64", "bfloat16", "float16")
