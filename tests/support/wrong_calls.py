"""Call public functions with wrong arguments, as a script: ``wrong_calls.py SEEDS COUNT HOW [MODULE ...]``.

``SEEDS`` are numbers with commas between them; each function is called ``COUNT`` times for each of them.
``HOW`` is ``compiled``, or ``evaluated``: then NumPy computes what most calls return, and little must be compiled.
Arguments are drawn by the names of the parameters, most of them right, so that code deep inside is reached, and one
or more wrong. Each line of the output is JSON: the call that comes next, so that whoever reads it knows what ended the
process, or what a call raised that is neither an error of the library nor one of Python about the signature.
"""

from __future__ import annotations

import collections
import enum
import faulthandler
import functools
import importlib
import inspect
import json
import math
import random
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tvmfun
import tvmfun.data
import tvmfun.numpy as tnp
import tvmfun.optim
from tvmfun.core.inline import inlined
from tvmfun.core.program import Program
from tvmfun.errors import TvmfunError
from tvmfun.execute import CPU, as_device_array
from tvmfun.lower import cache
from tvmfun.reference import evaluate

MODULES = (
    "numpy", "numpy.linalg", "lax", "lax.linalg", "nn", "nn.functional", "nn.losses", "nn.init", "optim", "optim.tree",
    "optim.projections", "optim.contrib", "optim.assignment", "optim.perturbations", "random", "scipy.special",
    "scipy.linalg", "scipy.stats", "scipy.signal", "scipy.ndimage", "scipy.optimize", "scipy.interpolate",
    "scipy.sparse.linalg", "tree", "tree_util", "flatten_util", "image", "data", "checkpoints",
)  # fmt: skip
SECONDS = 120
# Elements of an array.
MANY = 10_000


@tvmfun.tree.register_dataclass
@dataclass
class Node:
    w: Any = 1.0


class Plain:
    def __repr__(self) -> str:
        return "Plain()"


def floats(*shape: int) -> np.ndarray:
    return np.linspace(0.1, 1, math.prod(shape), dtype="float32").reshape(shape)


def name_of(value: Any) -> str:
    """A value as text in a report."""
    if isinstance(value, np.ndarray | tvmfun.Array):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, types.FunctionType):
        return value.__name__
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return f"{'(' if type(value) is tuple else '['}{', '.join(map(name_of, value))}]"
    if type(value) is dict:
        return "{" + ", ".join(f"{k!r}: {name_of(v)}" for k, v in value.items()) + "}"
    return repr(value)[:80]


def named(name: str, function: Callable) -> Callable:
    function.__name__ = name
    return function


def wrong(r: random.Random) -> Any:
    """Something that most parameters are not."""
    return r.choice(
        [
            lambda: None, lambda: "text", lambda: "", lambda: b"bytes", Plain, lambda: -1, lambda: 0, lambda: 7,
            lambda: -7, lambda: 2.5, lambda: -0.5, lambda: True, lambda: math.nan, lambda: math.inf, lambda: 2**70,
            lambda: -(2**70), lambda: 1j, lambda: (), lambda: [], lambda: {}, lambda: (1,), lambda: (-1, 0),
            lambda: (0, 0), lambda: (0, 9), lambda: (2.5,), lambda: ("x",), lambda: [None], lambda: [1, [2, 3]],
            lambda: {"w": floats(2)}, lambda: {"v": floats(3), "w": None}, lambda: {"w": "text"}, lambda: {1, 2},
            lambda: floats(), lambda: floats(0), lambda: floats(3), lambda: floats(2, 3), lambda: floats(3, 0, 2),
            lambda: floats(1, 2, 3, 2), lambda: floats(2, 2).astype("float64"), lambda: floats(3).astype("int32"),
            lambda: floats(2, 2) > 0.5, lambda: floats(2, 2).astype("complex64"), lambda: np.array(["a", "b"]),
            lambda: np.array([1, None], object), lambda: np.array(["2020-01-01"], "datetime64[D]"),
            lambda: tnp.ones((2, 3)), lambda: tnp.zeros(0, "int32"), lambda: tnp.asarray(3), lambda: np.int64(5),
            lambda: np.float16(2), lambda: range(3), lambda: iter([1, 2]), lambda: slice(None), lambda: ...,
            lambda: int, lambda: np.float32, lambda: "float7", lambda: "int32", lambda: tvmfun.random.key(1),
            lambda: tvmfun.ShapeDtype((2, 3), "float32"), lambda: Node(floats(2)), lambda: tvmfun.Dim("n"),
            lambda: tvmfun.optim.sgd(0.1), lambda: tvmfun.tree.structure({"w": 0}),
            lambda: named("returns_text", lambda *a, **k: "text"), lambda: named("returns_none", lambda *a, **k: None),
            lambda: named("takes_nothing", lambda: 0), lambda: named("returns_pair", lambda *a, **k: (floats(2), 1)),
            lambda: collections.OrderedDict(w=floats(2)), lambda: [floats(2), floats(3)],
        ]
    )()  # fmt: skip


def params() -> dict:
    return {"b": tnp.ones(3), "w": tnp.ones((2, 3))}


FUNCTIONS = ("f", "fun", "func", "fn", "body_fun", "true_fun", "false_fun", "cond_fun", "body", "function", "op",
             "predicate", "map_nested_fn", "matvec", "transform", "where", "apply", "loss")  # fmt: skip
#: What parameters of these names are, by the first that fits.
RIGHT: list[tuple[tuple[str, ...], Callable[[random.Random], Any]]] = [
    (("axis", "dimension", "axis1", "dim", "k", "num", "n", "offset", "decimals"), lambda r: r.choice([0, 1, -1])),
    (("axis2",), lambda r: 1),
    (("axes", "dimensions", "permutation"), lambda r: r.choice([(0,), (1, 0), (0, 1)])),
    (("shape", "newshape", "new_sizes", "sizes"), lambda r: r.choice([(2, 3), (3,), (6,), ()])),
    (("dtype", "new_dtype", "param_dtype", "accumulator_dtype", "mu_dtype"), lambda r: r.choice(["float32", "int32"])),
    (("key", "rng", "seed"), lambda r: tvmfun.random.key(0)),
    (("tree", "params", "updates", "grads", "model", "tree_x", "tree_y", "new_tensors"), lambda r: params()),
    (("outer", "inner", "structure"), lambda r: tvmfun.tree.structure({"w": 0, "b": 0})),
    (("indices", "labels", "segment_ids", "ids", "targets", "lengths", "repeats"), lambda r: np.array([0, 1])),
    (("pred", "condition", "mask"), lambda r: r.choice([True, floats(2, 3) > 0.5])),
    (("inner_tx", "tx", "optimizer", "inner", "base_optimizer"), lambda r: tvmfun.optim.sgd(0.1)),
    (("learning_rate", "decay", "b1", "b2", "eps", "rate", "p", "alpha", "beta"), lambda r: 0.5),
    (("mode", "padding", "side", "method", "kind", "reduction"), lambda r: r.choice(["clip", "SAME", "left", "sum"])),
    (("features", "in_features", "out_features", "num_heads", "length", "steps", "num_features"), lambda r: 2),
    (("path", "directory", "file", "filename"), lambda r: "no such directory/file"),
    (("subscripts",), lambda r: r.choice(["ij,ij->i", "ij->ji", "ij"])),
    (("arrays", "xs", "operands", "tup"), lambda r: [floats(2, 3), floats(2, 3)]),
    (("source", "sources"), lambda r: tvmfun.data.ArraySource({"x": np.arange(6.0)})),
    (("stream",), lambda r: tvmfun.data.batches(tvmfun.data.ArraySource({"x": np.arange(6.0)}), 2)),
    (("batch_size", "size", "max_steps", "num_segments", "window", "count"), lambda r: 2),
    (FUNCTIONS, lambda r: named("first", lambda *a, **k: a[0])),
]  # fmt: skip


def right(r: random.Random, name: str) -> Any:
    """Likely values of a parameter of this name."""
    for names, make in RIGHT:
        if name in names:
            return make(r)
    return r.choice([floats(2, 3), floats(2, 3), floats(3), floats(3, 3), np.arange(3), 0.5])


def arguments(r: random.Random, function: Callable) -> tuple[list, dict]:
    """Arguments of which some are wrong."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    args: list = []
    kwargs: dict = {}
    spoiled = r.choice([0.15, 0.3, 0.6])
    draw = lambda name: wrong(r) if r.random() < spoiled else right(r, name)
    for p in parameters:
        if p.kind == p.VAR_POSITIONAL:
            args += [draw(p.name) for _ in range(r.choice([0, 1, 2, 2]))]
        elif p.kind == p.VAR_KEYWORD:
            if r.random() < 0.1:
                kwargs["no_such_argument"] = wrong(r)
        elif p.kind == p.KEYWORD_ONLY or kwargs:
            if p.default is p.empty or r.random() < 0.3:
                kwargs[p.name] = draw(p.name)
        elif p.default is p.empty or r.random() < 0.5:
            args.append(draw(p.name))
        elif p.kind == p.POSITIONAL_OR_KEYWORD and r.random() < 0.5:
            kwargs[p.name] = draw(p.name)
        else:
            break
    if r.random() < 0.04:
        args = args[:-1] if r.random() < 0.5 else [*args, wrong(r), wrong(r)]
    return args, kwargs


def public(module: Any) -> Iterator[tuple[str, Callable]]:
    listed = getattr(module, "__all__", None)
    for name in sorted(listed or (name for name in vars(module) if not name.startswith("_"))):
        value = getattr(module, name, None)
        if not listed and not str(getattr(value, "__module__", "")).startswith(module.__name__):
            continue
        if not callable(value) or not str(getattr(value, "__module__", "")).startswith("tvmfun"):
            continue
        if isinstance(value, types.ModuleType | enum.EnumMeta) or inspect.isabstract(value):
            continue
        if isinstance(value, type) and issubclass(value, BaseException | functools.partial | tuple | tvmfun.Array):
            continue  # they store any value
        yield name, value


def use(r: random.Random, result: Any) -> Iterator[tuple[str, Callable, list, dict]]:
    """Calls of what a call has made: a transformation, a layer, a stream, a function."""
    draw = lambda other: wrong(r) if r.random() < 0.4 else other
    if isinstance(result, tvmfun.optim.GradientTransformation):
        yield "init", result.init, [draw(params())], {}
        made: list = []
        yield "init", lambda p: made.append(result.init(p)), [params()], {}
        if made:
            given = [draw(params()), draw(made[0])]
            yield "update", result.update, given + ([draw(params())] if r.random() < 0.7 else []), {}
    elif isinstance(result, tvmfun.data.Stream):
        yield "next", lambda: next(result), [], {}
        yield "restore", result.restore, [wrong(r)], {}
    elif isinstance(result, types.FunctionType) or (
        type(result).__module__.startswith("tvmfun.nn") and callable(result)
    ):
        args, kwargs = arguments(r, result)
        yield "result", result, args, kwargs


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one of the library, or what Python says of a wrong signature or of a missing file."""
    if isinstance(error, TvmfunError):
        return bool(error.where and error.what)
    if isinstance(error, TypeError) and "argument" in str(error) and "()" in str(error):
        return True
    return isinstance(error, FileNotFoundError)


def attempt(r: random.Random, text: str, function: Callable, args: list, kwargs: dict) -> Any:
    given = ", ".join([*map(name_of, args), *(f"{k}={name_of(v)}" for k, v in kwargs.items())])
    call = f"{text}({given})"
    print(json.dumps({"call": call}), flush=True)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if not is_refusal(error):
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rpartition('tvmfun/')[2]}:{where.lineno}"
            report = {"raw": type(error).__name__, "message": str(error)[:200], "at": place, "call": call}
            print(json.dumps(report), flush=True)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None


class Evaluated:
    """An executable that evaluates a Program with NumPy."""

    device = CPU

    def __init__(self, program: Program) -> None:
        self.program = program

    def at(self, device: Any) -> Evaluated:
        return self

    def __call__(self, arrays: list, addresses: list[int], avals: Any) -> tuple[list, list[int]]:
        results = [as_device_array(result) for result in evaluate(self.program, list(map(np.asarray, arrays)))]
        return [result.memory for result in results], [result.address for result in results]


def is_little(program: Program) -> bool:
    """Whether NumPy evaluates a Program in no time: it has few loops, and no large arrays, for which memory may end."""
    equations = inlined(program).equations
    loops = sum(e.op.kind == "control" for e in equations)
    # The derivatives of incomplete gamma functions have four, of thousands of steps.
    return loops < 4 and all(out.aval.size < MANY for e in equations for out in e.outputs)


def main() -> None:
    seeds, count, how, *modules = sys.argv[1:]
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if how == "evaluated":
        compiled = cache.compile_program
        cache.compile_program = lambda program, *options: (
            Evaluated(program) if is_little(program) else compiled(program, *options)
        )
    for module in modules or MODULES:
        for name, function in public(importlib.import_module(f"tvmfun.{module}")):
            for r in [random.Random(f"{seed} {module} {name}") for seed in seeds.split(",")] * int(count):
                args, kwargs = arguments(r, function)
                result = attempt(r, f"{module}.{name}", function, args, kwargs)
                for part, further, more, options in use(r, result):
                    attempt(r, f"{module}.{name}(...).{part}", further, more, options)
    print(json.dumps({"done": True}))


if __name__ == "__main__":
    main()
