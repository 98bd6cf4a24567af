"""Branches and loops, which contain graphs, and values that may be left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax, random
from tvmfun.errors import ProgramError, TvmfunError
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.tensors import is_known
from tvmfun.transforms.vmap import vmap

if TYPE_CHECKING:
    from tvmfun.interop.onnx.graphs import Call
    from tvmfun.interop.onnx.nodes import Graph

onnx = Family(__name__)

#: The most steps of a loop that are written out, where the body needs to know which step it is.
MOST_STEPS = 4096


class _Undecided(Exception):
    """The condition of a loop depends on values that the loop computes."""


@onnx.reads("If", context=True)
def _if(call: Call, condition: Any, *, then_branch: Graph, else_branch: Graph) -> Any:
    """One branch where the condition is known, a choice while the program runs otherwise."""
    from tvmfun.interop.onnx.graphs import as_arrays

    if is_known(condition):
        return call.evaluate(then_branch if bool(condition) else else_branch, [])
    branches = [lambda graph=graph: as_arrays(call.evaluate(graph, [])) for graph in (then_branch, else_branch)]
    return lax.cond(tnp.reshape(condition, ()), *branches)


@onnx.reads("Loop", context=True)
def _loop(call: Call, limit: Any, condition: Any, *carries: Any, body: Graph) -> Any:
    """A loop up to the limit while the condition is true; each step may add an element to some results.

    Steps whose number is known are written out if all they compute is known, too, or if they need to know which
    step they are; otherwise they become a ``scan``, or a ``while_loop`` where the condition is computed.
    """
    if is_known(condition) and condition is not None and not bool(condition):
        limit = np.asarray(0)
    steps = int(limit.item()) if limit is not None and is_known(limit) else None
    open_end = condition is not None and not is_known(condition)
    if steps is not None and not open_end and 0 < steps <= MOST_STEPS and all(map(is_known, carries)):
        return _written_out(call, body, steps, carries)
    if steps is not None and not open_end:
        try:
            return _scanned(call, body, max(steps, 0), carries)
        except _Undecided:
            pass
        except TvmfunError:
            if not 0 < steps <= MOST_STEPS:
                raise
            return _written_out(call, body, steps, carries)
    return _while(call, body, limit, condition, carries)


def _scanned(call: Call, body: Graph, steps: int, carries: Sequence[Any]) -> list[Any]:
    from tvmfun.interop.onnx.graphs import as_arrays

    def step(carry: tuple, i: Any) -> tuple[tuple, tuple]:
        with _keyed(call, i):
            going, *results = call.evaluate(body, [i, np.asarray(True), *carry])
        if not is_known(going) or not bool(going):
            raise _Undecided
        arrays = as_arrays(results)
        return arrays[: len(carry)], arrays[len(carry) :]

    carry, ys = lax.scan(step, as_arrays(carries), tnp.arange(steps, dtype="int64"))
    return [*carry, *ys]


def _written_out(call: Call, body: Graph, steps: int, carries: Sequence[Any]) -> list[Any]:
    from tvmfun.interop.onnx.graphs import as_arrays

    values, rows = list(carries), []
    for i in range(steps):
        with _keyed(call, i):
            going, *results = call.evaluate(body, [np.asarray(i, np.int64), np.asarray(True), *values])
        values = results[: len(values)]
        rows.append(results[len(values) :])
        if not is_known(going):
            if len(body.outputs) == 1 + len(carries):
                return _while(call, body, np.asarray(steps), None, carries)
            what = f"the number of elements that {call.node} adds must be known when the function is traced"
            raise ProgramError("from_onnx", what, got="a condition that is computed from arguments")
        if not bool(going):
            break
    stacked = []
    for parts in zip(*rows, strict=True):
        known = all(map(is_known, parts))
        stacked.append(np.stack(parts) if known else tnp.stack(list(as_arrays(parts))))
    return [*values, *stacked]


def _while(call: Call, body: Graph, limit: Any, condition: Any, carries: Sequence[Any]) -> list[Any]:
    from tvmfun.interop.onnx.graphs import as_arrays

    if len(body.outputs) > 1 + len(carries):
        what = f"the number of elements that {call.node} adds must be known when the function is traced"
        raise ProgramError("from_onnx", what, got="a condition or a limit that is computed from arguments")
    most = None if limit is None else tnp.reshape(tnp.asarray(limit), ())
    start = tnp.asarray(True) if condition is None else tnp.reshape(tnp.asarray(condition), ())

    def is_going(state: tuple) -> Any:
        i, going, _ = state
        return going if most is None else going & (i < most)

    def step(state: tuple) -> tuple:
        i, going, carry = state
        with _keyed(call, i):
            going, *results = call.evaluate(body, [i, going, *carry])
        return i + 1, tnp.reshape(tnp.asarray(going), ()), as_arrays(results)

    steps = {"max_steps": int(limit.item())} if limit is not None and is_known(limit) and limit.item() < 1 << 20 else {}
    state = (tnp.asarray(np.asarray(0, np.int64)), start, as_arrays(carries))
    return list(lax.while_loop(is_going, step, state, **steps)[2])


class _keyed:
    """A block in which random numbers are those of one step of a loop."""

    def __init__(self, call: Call, step: Any) -> None:
        self.run, self.step = call.run, step

    def __enter__(self) -> None:
        self.key = self.run.key
        if self.key is not None:
            self.run.key = random.fold_in(self.key, tnp.astype(tnp.asarray(self.step), "int32"))

    def __exit__(self, *error: object) -> None:
        self.run.key = self.key


# -- scans -------------------------------------------------------------------------------------------------------------


@onnx.reads("Scan", since=9, context=True)
def _scan(
    call: Call,
    *inputs: Any,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> Any:
    """A scan over slices of the last inputs; the first ones are the state."""
    from tvmfun.interop.onnx.graphs import as_arrays

    count = len(inputs) - num_scan_inputs
    arrays = as_arrays(inputs)
    state, rows = arrays[:count], arrays[count:]
    axes, back = scan_input_axes or [0] * len(rows), scan_input_directions or [0] * len(rows)
    rows = [tnp.moveaxis(x, axis, 0) for x, axis in zip(rows, axes, strict=True)]
    rows = tuple(tnp.flip(x, 0) if backwards else x for x, backwards in zip(rows, back, strict=True))

    def step(carry: tuple, row: tuple) -> tuple[tuple, tuple]:
        i, state = carry
        with _keyed(call, i):
            results = as_arrays(call.evaluate(body, [*state, *row]))
        return (i + 1, results[:count]), results[count:]

    (_, state), ys = lax.scan(step, (tnp.asarray(np.asarray(0, np.int32)), state), rows)
    axes, back = scan_output_axes or [0] * len(ys), scan_output_directions or [0] * len(ys)
    ys = [tnp.flip(y, 0) if backwards else y for y, backwards in zip(ys, back, strict=True)]
    return [*state, *(tnp.moveaxis(y, 0, axis) for y, axis in zip(ys, axes, strict=True))]


@onnx.reads("Scan", context=True)
def _scan_of_batches(
    call: Call,
    lengths: Any,
    *inputs: Any,
    body: Graph,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
) -> Any:
    """Version 8, which scans each row of a batch."""
    from tvmfun.interop.onnx.graphs import as_arrays

    if lengths is not None:
        raise ProgramError("from_onnx", f"{call.node} must scan rows of equal lengths", got="sequence_lens")
    one = lambda *rows: tuple(
        _scan(call, *rows, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions)
    )
    return list(vmap(one)(*as_arrays(inputs)))


# -- values that may be left out ---------------------------------------------------------------------------------------


@onnx.reads("OptionalHasElement", shapes=True)
def _has_element(x: Any = None) -> Any:
    return np.asarray(x is not None)


onnx.reads("OptionalGetElement", bits=True)(lambda x: x)
onnx.reads("Optional", bits=True)(lambda x=None, type=None: x)
