"""Whether a program means the same to JAX and to tvmfun, and if not, whether a rule explains it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from fuzz.case import Case
from fuzz.flushing import flushing
from fuzz.namespaces import jax_names, own_names
from tvmfun import errors

#: Rounding errors of one operation, in units of the dtype; a special function has a few.
_PER_OPERATION = 4
#: Draws of rounding errors that a program is run with to see what it makes of them, and how far it may be off then.
_DRAWS, _FACTOR = 4, 16
#: Functions that return elements of their arguments, or truths about them, or results without rounding.
_EXACT = frozenset(
    [
        "abs",
        "sign",
        "floor",
        "ceil",
        "round",
        "rint",
        "trunc",
        "positive",
        "isnan",
        "isfinite",
        "isinf",
        "signbit",
        "isposinf",
        "logical_not",
        "logical_and",
        "logical_or",
        "logical_xor",
        "invert",
        "bitwise_not",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "left_shift",
        "right_shift",
        "maximum",
        "minimum",
        "equal",
        "less",
        "greater",
        "greater_equal",
        "less_equal",
        "not_equal",
        "copysign",
        "fmax",
        "fmin",
        "heaviside",
        "max",
        "min",
        "any",
        "all",
        "nanmax",
        "nanmin",
        "count_nonzero",
        "cummax",
        "cummin",
        "transpose",
        "reshape",
        "ravel",
        "flip",
        "roll",
        "expand_dims",
        "concatenate",
        "stack",
        "tile",
        "repeat",
        "broadcast_to",
        "rot90",
        "tril",
        "triu",
        "diagonal",
        "squeeze",
        "moveaxis",
        "array_split",
        "diag",
        "at",
        "set",
        "get",
        "take",
        "take_along_axis",
        "sort",
        "argsort",
        "top_k",
        "argmax",
        "argmin",
        "sort_key_val",
        "searchsorted",
        "partition",
        "where",
        "clip",
        "select",
        "clamp",
        "zeros_like",
        "ones_like",
        "zeros",
        "ones",
        "asarray",
        "array",
        "dynamic_slice",
        "dynamic_update_slice",
        "dynamic_slice_in_dim",
        "dynamic_index_in_dim",
        "gather",
        "scatter",
        "scatter_min",
        "scatter_max",
        "pad",
        "swapaxes",
        "arange",
        "nan_to_num",
        "reduce_window",
        "segment_max",
        "segment_min",
        "cond",
        "switch",
        "vmap",
        "jit",
        "checkpoint",
        "relu",
        "stop_gradient",
        "T",
        "astype",
        "dtype",
        "type",
        "shape",
        "size",
        "ndim",
        "np",
        "lax",
        "nn",
        "onp",
        "lambda",
        "unique",
        "nonzero",
        "argwhere",
        "relu6",
        "hard_tanh",
        "jvp",
        "grad",
        "inf",
        "mode",
        "axis",
        "iinfo",
        "finfo",
        "axes",
        "keepdims",
        "descending",
        "int32",
        "float32",
        "float64",
        "bool",
        "int64",
        "fori_loop",
        "map",
        "sum",
    ]
)


@dataclass(frozen=True)
class Difference:
    """What differs, and the rule that explains it, if one does."""

    what: str
    because: str | None = None


def run(case: Case, names: dict[str, Any], module: Any, arguments: Sequence[Any], compiled: Callable) -> list[Any]:
    """The leaves of what ``case`` asks for, by the functions of ``names``."""
    xp = names["np"]
    scope: dict[str, Any] = dict(names)
    exec(compile(case.text(), f"<{case.check}>", "exec"), scope)
    program = scope["program"]
    floats = tuple(i for i, x in enumerate(case.arguments.values()) if is_float(x.dtype))

    def loss(*values: Any) -> Any:
        total = 0.0
        for result in jax.tree.leaves(program(*values)):
            if is_float(result.dtype):
                wide = "float64" if str(result.dtype) == "float64" else "float32"
                weights = np.cos(np.arange(np.prod(result.shape, dtype=int)).reshape(result.shape)).astype(wide)
                total = total + xp.sum(xp.where(xp.isfinite(result), result, 0).astype(wide) * weights)
        return total

    def forward(*values: Any) -> Any:
        place = floats[0]
        moved = lambda x: loss(*values[:place], x, *values[place + 1 :])
        return module.jvp(moved, (values[place],), (xp.ones_like(values[place]),))

    def second(*values: Any) -> Any:
        def slope(*values: Any) -> Any:
            slopes = module.grad(loss, argnums=floats)(*values)
            total = 0.0
            for g in slopes:
                weights = np.sin(1.0 + np.arange(np.prod(g.shape, dtype=int)).reshape(g.shape)).astype(str(g.dtype))
                total = total + xp.sum(xp.where(xp.isfinite(g), g, 0) * weights)
            return total

        return module.grad(slope, argnums=floats)(*values)

    gradient = module.value_and_grad(loss, argnums=floats)
    checks: dict[str, Callable[[], Any]] = {
        "value": lambda: compiled(program)(*arguments),
        "eager": lambda: program(*arguments),
        "donated": lambda: compiled(program, donate_argnums=tuple(range(len(arguments))))(*arguments),
        "gradient": lambda: compiled(gradient)(*arguments),
        "second": lambda: compiled(second)(*arguments),
        "forward": lambda: compiled(forward)(*arguments),
        "batched": lambda: compiled(module.vmap(program, in_axes=-1))(*arguments),
        "batched gradient": lambda: compiled(module.vmap(gradient))(*arguments),
        "checkpointed": lambda: compiled(module.grad(module.checkpoint(loss), argnums=floats))(*arguments),
    }
    return jax.tree.leaves(checks[case.check]()) if module is jax else tvmfun.tree.leaves(checks[case.check]())


def is_float(dtype: Any) -> bool:
    """Whether numbers of the dtype are rounded."""
    return str(dtype) in ("float32", "float64", "bfloat16", "float16")


def given(case: Case) -> list[np.ndarray]:
    """The arguments; for a batched program two of each, of which the second is turned around."""
    values = list(case.arguments.values())
    if not case.check.startswith("batched"):
        return values
    axis = -1 if case.check == "batched" else 0
    return [np.stack([x, x[::-1] if x.ndim else x], axis) for x in values]


def expected(case: Case, noise: np.random.Generator | None = None) -> list[np.ndarray]:
    """What JAX returns; with rounding errors drawn for inexact statements, if asked to."""
    options = {"xla_allow_excess_precision": False}
    compiled = lambda f, donate_argnums=(): jax.jit(f, compiler_options=options)
    if noise is not None:
        case = _with_noise(case, noise)
    with x64(_is_wide(case)):
        arguments = [jnp.asarray(x) for x in given(case)]
        return [np.asarray(x) for x in run(case, jax_names(), jax, arguments, compiled)]


def found(case: Case) -> list[np.ndarray]:
    """What tvmfun returns."""
    arguments = [tnp.asarray(x) for x in given(case)]
    if case.check == "donated":
        arguments = [tnp.array(x, copy=True) for x in arguments]
    return [np.asarray(x) for x in run(case, own_names(), tvmfun, arguments, tvmfun.jit)]


def difference(case: Case) -> Difference | None:
    """What is different in tvmfun, without what a rule explains; None where JAX refuses the program."""
    seen = compare(case)
    return seen if seen is not None and seen.because is None else None


def compare(case: Case) -> Difference | None:
    """What is different in tvmfun, with the rule that explains it if there is one."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            wanted = expected(case)
        except Exception:
            return None
        try:
            got = found(case)
        except errors.TvmfunError as error:
            return Difference(f"{type(error).__name__}: {error}", _refusal(error))
        except Exception as error:
            return Difference(f"{type(error).__name__}: {error}")
        tolerance = tolerance_of(case)
        what = unlike(wanted, got, tolerance)
        if what is None:
            return None
        return Difference(what, explanation(case, wanted, got, tolerance))


def explanation(case: Case, wanted: list[np.ndarray], got: list[np.ndarray], tolerance: float) -> str | None:
    """The rule that explains a difference."""
    with flushing():
        try:
            flushed = found(case)
        except Exception:
            flushed = None
    if flushed is not None and unlike(wanted, flushed, tolerance) is None:
        return "subnormal numbers are 0 to XLA"
    spread = _spread(case, wanted)
    if spread is not None and all(
        _within(w, g, s, tolerance) for w, g, s in zip(wanted, flushed if flushed else got, spread, strict=True)
    ):
        return "rounding errors grow so far in JAX, too"
    return None


def unlike(wanted: Sequence[np.ndarray], got: Sequence[np.ndarray], tolerance: float) -> str | None:
    """In words what differs between two lists of arrays, or None."""
    if len(wanted) != len(got):
        return f"{len(got)} results, and {len(wanted)} in JAX"
    for i, (x, y) in enumerate(zip(wanted, got, strict=True)):
        y = _widened(y, x.dtype)
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"result {i}: {y.dtype}{list(y.shape)}, and {x.dtype}{list(x.shape)} in JAX"
        if not x.size:
            continue
        if not is_float(x.dtype):
            if (x != y).any():
                place = np.unravel_index(np.argmax(x != y), x.shape)
                return f"result {i}{list(map(int, place))}: {y[place]}, and {x[place]} in JAX; {(x != y).sum()} of {x.size}"
            continue
        wrong = ~_close(x.astype(np.float64), y.astype(np.float64), tolerance)
        if wrong.any():
            place = np.unravel_index(np.argmax(wrong), x.shape)
            return f"result {i}{list(map(int, place))}: {y[place]}, and {x[place]} in JAX; {wrong.sum()} of {x.size}"
    return None


def _widened(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Places and counts are int32 with tvmfun, and int64 with JAX where it is allowed 64 bits; so are their fill values."""
    if (x.dtype, dtype) != (np.int32, np.int64):
        return x
    return np.where(x == np.iinfo(np.int32).min, np.iinfo(np.int64).min, x.astype(np.int64))


def tolerance_of(case: Case) -> float:
    """How far results may be apart in relation to their size: the errors of all operations in one direction."""
    dtypes = [str(x.dtype) for x in case.arguments.values() if is_float(x.dtype)]
    text = case.text()
    dtypes += [name for name in ("bfloat16", "float16", "float32") if name in text]
    epsilon = max((float(jnp.finfo(name).eps) for name in dtypes), default=1e-15)
    operations = len(re.findall(r"\w\(|[-+*/@%]", text))
    # Sums are made in some order of halves: their errors grow with the logarithm of their length.
    length = np.log2(2 + max((x.size for x in case.arguments.values()), default=0))
    return epsilon * _PER_OPERATION * (2 + operations) * length * (4 if case.check != "value" else 1)


def _close(x: np.ndarray, y: np.ndarray, tolerance: float) -> np.ndarray:
    finite = np.isfinite(x) & np.isfinite(y)
    largest = np.abs(x[finite]).max(initial=0.0)
    scale = np.maximum(np.abs(x), np.abs(y)) + 0.1 * min(largest, 1e3)
    return np.where(finite, np.abs(x - y) <= tolerance * scale + 1e-37, (x == y) | (np.isnan(x) & np.isnan(y)))


def _within(x: np.ndarray, y: np.ndarray, spread: np.ndarray, tolerance: float) -> bool:
    """Whether results are alike but for what rounding errors do to them in JAX."""
    if not is_float(x.dtype):
        return bool(((x == y) | (spread > 0)).all())
    x, y = x.astype(np.float64), y.astype(np.float64)
    most = np.max(spread[np.isfinite(spread)], initial=0.0)
    near = np.abs(x - y) <= _FACTOR * np.where(np.isfinite(spread), np.maximum(spread, 0.1 * min(most, 1e3)), np.inf)
    return bool((_close(x, y, tolerance) | near | ~np.isfinite(spread)).all())


def _spread(case: Case, wanted: list[np.ndarray]) -> list[np.ndarray] | None:
    """How far each result goes under a few draws of rounding errors; infinite where it changes its kind."""
    spread = [np.zeros(x.shape) for x in wanted]
    for draw in range(_DRAWS):
        try:
            moved = expected(case, np.random.default_rng(draw))
        except Exception:
            return None
        for i, (x, y) in enumerate(zip(wanted, moved, strict=True)):
            x, y = x.astype(np.float64), y.astype(np.float64)
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            off = np.where(same, 0.0, np.abs(x - y))
            spread[i] = np.maximum(spread[i], np.where(np.isnan(off), np.inf, off))
    return spread


def is_exact(expression: str) -> bool:
    """Whether an expression has no operation that rounds."""
    called = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", expression)))
    called = {name for name in called if not re.fullmatch(r"[a-z]\d*|u\d+|v\d+|True|False|None", name)}
    return called <= _EXACT and not re.search(r"\w\)? [-+*/%] |\*\*|@", expression)


def _with_noise(case: Case, noise: np.random.Generator) -> Case:
    """The program with a rounding error after each statement that rounds."""
    statements = []
    for name, expression in case.statements:
        statements.append((name, expression))
        if not is_exact(expression):
            phase = float(noise.uniform(0, 6))
            statements.append((name, _noisy(name, phase)))
    return Case(case.arguments, tuple(statements), case.outputs, case.check)


def _noisy(name: str, phase: float) -> str:
    error = f"onp.cos(onp.arange({name}.size) * 2.4 + {phase:.4f}).reshape({name}.shape)"
    size = f"np.asarray({error} * 2 * float(np.finfo({name}.dtype).eps), {name}.dtype)"
    return f"{name} + np.where(np.isfinite({name}), {name}, 0) * {size} if np.issubdtype({name}.dtype, np.inexact) else {name}"


def _is_wide(case: Case) -> bool:
    return any(x.dtype.name in ("float64", "int64", "uint64") for x in case.arguments.values())


#: Beginnings of errors by which tvmfun refuses on purpose, each documented where the function is.
REFUSED = ("does not fit", "keeps the carry of every step and needs a bound", "there is nothing to take from an axis")


def _refusal(error: Exception) -> str | None:
    text = str(error)
    return next((f"refused: {part}" for part in REFUSED if part in text), None)
