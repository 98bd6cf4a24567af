"""Loops and branches on traced values, inside the compiled module.

Every function here takes part in every transform. Loops run without Python and without recursion, so their number of
steps is not limited and does not change what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun import numpy as tnp
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.batching import Axis, batch, repeat
from tvmfun.core.derivative import trace_leaves
from tvmfun.core.program import Program
from tvmfun.errors import ArgumentError, DtypeError, ShapeError, TreeError
from tvmfun.numpy.dtypes import weakly_typed
from tvmfun.numpy.promotion import convert
from tvmfun.numpy.shapes import known_integer, normalize_axis
from tvmfun.ops import control, pointwise
from tvmfun.ops.shape import slice as slice_op

__all__ = ["associative_scan", "cond", "fori_loop", "map", "scan", "switch", "while_loop"]


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    r"""Applies ``f`` to the rows of ``xs`` in order, carrying state along: ``(carry, ys)``.

    .. code-block:: python

        ys = []
        for x in xs:
            carry, y = f(carry, x)
            ys.append(y)
        return carry, stack(ys)

    Args:
        f: ``(carry, x) -> (carry, y)`` on trees of arrays; the carry keeps its tree, shapes and dtypes.
        init: the first carry.
        xs: a tree of arrays with one row per step along their first axis, or None.
        length: the number of steps, if there is no ``xs``.
        reverse: whether to go from the last row to the first; ``ys`` keep the order of ``xs``.
        unroll: how many steps become straight code inside the loop; ``True`` for all of them. Changes speed and
            nothing else. A loop of a dynamic number of steps stays as it is.

    Returns:
        The last carry, and the tree of the ``y`` of all steps, stacked along a new first axis.

    Raises:
        TreeError: if the carry changes its tree.
        ShapeError, DtypeError: if a leaf of the carry changes its shape or dtype, or rows do not agree in number.

    Source: follows ``jax.lax.scan``. The derivative keeps residuals of every step;
    ``checkpoint(f)`` as ``f`` keeps only the carry.

    >>> scan(lambda total, x: (total + x, total), 0, tnp.asarray([1, 2, 3]))
    (Array(6, dtype=int32), Array([0, 1, 3], dtype=int32))
    """
    rows, rows_tree = tree.flatten(xs)
    rows = [tnp.asarray(row) for row in rows]
    steps = _length(rows, length)
    if not isinstance(unroll, int) or (unroll < 1 and unroll is not False):
        raise ArgumentError("scan", "unroll must be a bool or a positive integer", got=repr(unroll))
    known = not isinstance(steps, dims.Dim)
    straight = known and steps > 0 and (unroll is True or unroll >= steps > 1)
    if known and not straight and not isinstance(unroll, bool) and steps > unroll > 1:
        return _partly_unrolled(f, init, rows, rows_tree, steps, reverse, unroll)
    one = [ShapeDtype(row.shape[1:], row.dtype, row.weak_type) for row in rows]
    start, init_tree = _carry_leaves(init)

    def step(*leaves: Any) -> Any:
        carry, x = leaves[: len(start)], leaves[len(start) :]
        result = f(tree.unflatten(init_tree, carry), tree.unflatten(rows_tree, x))
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TreeError("scan", "the function must return a pair (carry, y)", got=type(result).__name__)
        return tuple(result)

    program, start = _traced_step("scan", step, start, init_tree, one)
    if not program.outputs:
        return tree.unflatten(program.out_tree, ())
    _, ys_tree = program.out_tree.children()
    if straight:
        carry, ys = _unrolled(program, start, rows, steps, reverse)
        return tree.unflatten(init_tree, carry), tree.unflatten(ys_tree, ys)
    body, captured = control.closing(program)
    results = control.LoopOperands((), captured, start, rows).run(body, None, steps, bool(reverse))
    results = _weak_as(results, program.out_avals, start)
    return tree.unflatten(init_tree, results[: len(start)]), tree.unflatten(ys_tree, results[len(start) :])


def _length(rows: Sequence[Array], length: Any) -> Any:
    length = known_integer(length)
    for row in rows:
        if not row.ndim:
            raise ShapeError("scan", "every leaf of xs must have a first axis to go along", got=repr(row.aval))
        if length is None:
            length = row.shape[0]
        if row.shape[0] != length:
            raise ShapeError("scan", f"all leaves of xs must have {length} rows", got=repr(row.aval))
    if length is None:
        raise ArgumentError("scan", "without xs the number of steps must be given", got="None", hint="length=10")
    if not isinstance(length, int | np.integer | dims.Dim) or (not isinstance(length, dims.Dim) and length < 0):
        raise ArgumentError("scan", "the length must be an integer that is not negative", got=repr(length))
    return length


def _carry_leaves(init: Any) -> tuple[list[Array], tree.Structure]:
    leaves, structure = tree.flatten(init)
    return [tnp.asarray(leaf) for leaf in leaves], structure


def _traced_step(
    where: str, step: Callable, start: list[Array], init_tree: tree.Structure, rows: Sequence[ShapeDtype]
) -> tuple[Program, list[Array]]:
    """Traces a step that returns ``(carry, ...)``; a carry that began as a Python number takes the dtype it gets."""
    name = getattr(step, "__name__", where)
    for _ in range(3):
        program = trace_leaves(step, [*(x.aval for x in start), *rows], name)
        carry_tree, *_ = program.out_tree.children()
        tree.check_same_structure(where, init_tree, carry_tree, ("the first carry", "the next carry"), exact=True)
        got = program.out_avals[: len(start)]
        adapted = [
            tnp.astype(x, aval.dtype)
            if x.dtype != aval.dtype and x.shape == aval.shape and _adapts(x.aval, aval)
            else x
            for x, aval in zip(start, got, strict=True)
        ]
        if all(a is x for a, x in zip(adapted, start, strict=True)):
            break
        start = adapted
    program = _with_dtypes(where, program, [x.aval for x in start])
    paths = [path for path, _ in tree.flatten_with_path(tree.unflatten(init_tree, start))[0]]
    for x, aval, path in zip(start, program.out_avals, paths, strict=False):
        if (x.shape, x.dtype) != (aval.shape, aval.dtype):
            kind, hint = DtypeError, "x.astype(...)"
            if x.shape != aval.shape:
                kind, hint = ShapeError, f"an initial value of the shape {aval.shape}, or a result of {x.shape}"
            leaf = f"leaf {tree.keystr(path)} of the carry" if path else "the carry"
            raise kind(where, f"{leaf} must stay {ShapeDtype(x.shape, x.dtype)}", got=repr(aval), hint=hint)
    return program, start


def _adapts(aval: ShapeDtype, other: ShapeDtype) -> bool:
    """Whether it is weakly typed and may get the dtype of the other: a float does not become an integer."""
    return aval.weak and _rank(aval.dtype) <= _rank(other.dtype)


def _rank(dtype: np.dtype) -> int:
    return 2 if dtypes.is_float(dtype) else int(dtype != dtypes.bool_)


def _with_dtypes(where: str, program: Program, wanted: Sequence[ShapeDtype]) -> Program:
    """The Program with its leading results converted to the wanted dtypes, where weak types allow it."""
    outs = program.out_avals[: len(wanted)]
    changing = [out.dtype != aval.dtype and _adapts(out, aval) for out, aval in zip(outs, wanted, strict=True)]
    if not any(changing):
        return program

    def convert(*leaves: Any) -> Any:
        results = program.evaluate([*program.captured, *leaves])
        converted = [
            _converted(where, x, aval.dtype) if flag else x
            for x, flag, aval in zip(results, changing, wanted, strict=False)
        ]
        return tree.unflatten(program.out_tree, [*converted, *results[len(wanted) :]])

    return trace_leaves(convert, program.in_avals, program.name)


def _weak_as(results: Sequence[Any], avals: Sequence[ShapeDtype], start: Sequence[Array] = ()) -> list[Any]:
    """The results, weakly typed where they are in ``avals`` and where a carry was so at the ``start``."""
    weak = [aval.weak for aval in avals]
    weak[: len(start)] = [flag and x.aval.weak for flag, x in zip(weak, start, strict=False)]
    return [weakly_typed(x) if flag else x for x, flag in zip(results, weak, strict=False)]


def _converted(where: str, x: Any, dtype: np.dtype) -> Any:
    if isinstance(x, np.generic):
        return convert(where, x.item(), dtype)
    return pointwise.astype(x, dtype=dtypes.NAMES[dtype])


def _unrolled(step: Program, start: list, rows: list, length: Any, reverse: bool) -> tuple[list, list]:
    """The leaves of the last carry and of the stacked rows, without a loop."""
    carry, ys = list(start), []
    for i in reversed(range(length)) if reverse else range(length):
        results = [tnp.asarray(x) for x in step.evaluate([*step.captured, *carry, *(row[i] for row in rows)])]
        carry = results[: len(start)]
        ys.append(results[len(start) :])
    if reverse:
        ys.reverse()
    return carry, [tnp.stack(leaves) for leaves in zip(*ys, strict=True)]


def _partly_unrolled(
    f: Callable, init: Any, rows: list, rows_tree: Any, length: int, reverse: bool, unroll: int
) -> tuple[Any, Any]:
    """A loop over groups of ``unroll`` rows, and one over the rows that are left."""
    groups, rest = divmod(length, unroll)
    cut = length - rest

    def part(begin: int, end: int) -> list:
        return [row[begin:end] for row in rows]

    def group(carry: Any, rows: list) -> tuple[Any, Any]:
        return scan(f, carry, tree.unflatten(rows_tree, rows), unroll, reverse, unroll=True)

    def run_groups(carry: Any) -> tuple[Any, Any]:
        grouped = [tnp.reshape(row, (groups, unroll, *row.shape[1:])) for row in part(0, cut)]
        carry, ys = scan(group, carry, grouped, groups, reverse)
        return carry, tree.map(lambda y: tnp.reshape(y, (cut, *y.shape[2:])), ys)

    def run_rest(carry: Any) -> tuple[Any, Any]:
        return scan(f, carry, tree.unflatten(rows_tree, part(cut, length)), rest, reverse)

    if not rest:
        return run_groups(init)
    carry, first = (run_rest if reverse else run_groups)(init)
    carry, second = (run_groups if reverse else run_rest)(carry)
    early, late = (second, first) if reverse else (first, second)
    return carry, tree.map(lambda a, b: tnp.concat([a, b]), early, late)


def while_loop(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any, *, max_steps: int | None = None
) -> Any:
    """Applies ``body_fun`` to the state as long as ``cond_fun`` holds for it.

    .. code-block:: python

        val = init_val
        while cond_fun(val):
            val = body_fun(val)
        return val

    Args:
        cond_fun: from the state to one bool.
        body_fun: from the state to the next state, of the same tree, shapes and dtypes.
        init_val: the first state, a tree of arrays.
        max_steps: a bound on the number of steps; the loop ends there in any case. Reverse mode needs it:
            it keeps the state of every step in memory of this size. Forward mode and everything else do not.

    Raises:
        TreeError, ShapeError, DtypeError: if the state changes its tree, or a leaf its shape or dtype.
        GradientError: in reverse mode without ``max_steps``.

    Source: follows ``jax.lax.while_loop``, which has no reverse mode.

    >>> int(while_loop(lambda x: x < 100, lambda x: x * 2, 3))
    192
    """
    start, init_tree = _carry_leaves(init_val)
    step = lambda *leaves: (body_fun(tree.unflatten(init_tree, leaves)),)
    program, start = _traced_step("while_loop", step, start, init_tree, ())
    test = trace_leaves(lambda *leaves: cond_fun(tree.unflatten(init_tree, leaves)), [x.aval for x in start], "cond")
    _check_predicate("while_loop", test.out_avals)
    if max_steps is not None and (not isinstance(max_steps, int | np.integer) or max_steps < 0):
        raise ArgumentError("while_loop", "max_steps must be an integer that is not negative", got=repr(max_steps))
    body, body_consts = control.closing(program)
    cond, cond_consts = control.closing(test)
    body, cond = _sharing_consts(body, len(body_consts), cond, len(cond_consts))
    results = control.LoopOperands((), (*body_consts, *cond_consts), start, ()).run(body, cond, max_steps, False)
    results = _weak_as(results, program.out_avals, start)
    return tree.unflatten(init_tree, results[: len(start)])


def _check_predicate(where: str, avals: Sequence[ShapeDtype]) -> None:
    if len(avals) != 1 or avals[0].shape or avals[0].dtype != dtypes.bool_:
        got = ", ".join(repr(aval) for aval in avals)
        raise DtypeError(where, "the condition must return one scalar bool", got=got, hint="(x < 3).all()")


def _sharing_consts(body: Program, body_consts: int, cond: Program, cond_consts: int) -> tuple[Program, Program]:
    """Body and condition as functions of the constants of both."""
    consts = [v.aval for v in (*body.inputs[:body_consts], *cond.inputs[:cond_consts])]
    carry = [v.aval for v in cond.inputs[cond_consts:]]
    if cond_consts:
        inner = body
        run = lambda *values: inner.evaluate([*values[:body_consts], *values[len(consts) :]])
        body = trace_leaves(run, [*consts, *carry], body.name)
    if body_consts:
        test = cond
        cond = trace_leaves(lambda *values: test.evaluate(values[body_consts:]), [*consts, *carry], cond.name)
    return body, cond


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool = 1,
    max_steps: int | None = None,
) -> Any:
    """Applies ``body_fun(i, val)`` for ``i`` from ``lower`` to ``upper - 1``.

    Args:
        lower: the first index, an integer or a scalar array.
        upper: the index after the last.
        body_fun: ``(i, val) -> val`` with the tree, shapes and dtypes of ``init_val``.
        init_val: the first value, a tree of arrays.
        unroll: as for :func:`scan`; only with bounds that are Python integers.
        max_steps: a bound on the number of steps, which reverse mode needs where the bounds are arrays.

    Source: follows ``jax.lax.fori_loop``.

    >>> int(fori_loop(0, 5, lambda i, total: total + i, 0))
    10
    """
    if isinstance(lower, int | np.integer) and isinstance(upper, int | np.integer):
        indices = weakly_typed(tnp.arange(int(lower), max(int(lower), int(upper)), dtype="int32"))
        return scan(lambda val, i: (body_fun(i, val), None), init_val, indices, unroll=unroll)[0]
    if all(isinstance(bound, int | np.integer | dims.Dim) for bound in (lower, upper)) and dims.always_le(lower, upper):
        indices = weakly_typed(tnp.arange(lower, upper, dtype="int32"))
        return scan(lambda val, i: (body_fun(i, val), None), init_val, indices, unroll=unroll)[0]
    lower, upper = tnp.asarray(lower), tnp.asarray(upper)
    for bound in (lower, upper):
        if bound.shape or not dtypes.is_integer(bound.dtype):
            raise DtypeError("fori_loop", "the bounds must be scalar integers", got=repr(bound.aval))
    dtype = tnp.result_type(lower, upper)
    lower, upper = tnp.astype(lower, dtype), tnp.astype(upper, dtype)
    _, val = while_loop(
        lambda state: state[0] < upper,
        lambda state: (state[0] + 1, body_fun(state[0], state[1])),
        (lower, init_val),
        max_steps=max_steps,
    )
    return val


#: No operand: None is one.
_ABSENT: Any = object()


def cond(pred: Any, true_fun: Callable, false_fun: Callable, *operands: Any, operand: Any = _ABSENT) -> Any:
    """Returns ``true_fun(*operands)`` or ``false_fun(*operands)``; only the chosen one runs.

    Under ``vmap`` with a predicate that differs between examples, both run and each example chooses.

    Args:
        pred: a scalar bool, or a scalar number, which is true unless it is 0.
        true_fun: a function of the operands.
        false_fun: another one whose result has the same tree, shapes and dtypes.
        operands: trees of arrays.
        operand: one more of them.

    The older form ``cond(pred, true_operand, true_fun, false_operand, false_fun)``, with an operand for each branch, is
    understood as well.

    Raises:
        TreeError, ShapeError, DtypeError: if the results of the branches differ in tree, shape or dtype.

    Source: follows ``jax.lax.cond``.

    >>> float(cond(tnp.asarray(True), lambda x: x + 1, lambda x: x - 1, 2.0))
    3.0
    """
    operands = operands if operand is _ABSENT else (*operands, operand)
    if len(operands) == 2 and not callable(true_fun) and callable(false_fun) and callable(operands[1]):
        of_true, of_false, operands = false_fun, operands[1], (true_fun, operands[0])
        true_fun, false_fun = lambda own, other: of_true(own), lambda other, own: of_false(own)
    pred = tnp.asarray(pred)
    if pred.shape:
        raise ShapeError("cond", "the predicate must be a scalar", got=repr(pred.aval), hint="where, or vmap")
    index = pointwise.astype(pred if pred.dtype == dtypes.bool_ else tnp.not_equal(pred, 0), dtype="int32")
    return _branch("cond", index, (false_fun, true_fun), ("false_fun", "true_fun"), operands)


def switch(index: Any, branches: Sequence[Callable], *operands: Any, operand: Any = _ABSENT) -> Any:
    """Returns ``branches[index](*operands)``; only the chosen branch runs.

    Args:
        index: a scalar integer; one outside the branches means the nearest.
        branches: functions of the operands whose results have the same tree, shapes and dtypes.
        operands: trees of arrays.
        operand: one more of them.

    Raises:
        TreeError, ShapeError, DtypeError: if the results of the branches differ in tree, shape or dtype.

    Source: follows ``jax.lax.switch``.

    >>> float(switch(1, [lambda x: x, lambda x: x * x], 3.0))
    9.0
    """
    operands = operands if operand is _ABSENT else (*operands, operand)
    if not branches:
        raise ArgumentError("switch", "there must be at least one branch", got="none")
    index = tnp.asarray(index)
    if index.shape or not dtypes.is_integer(index.dtype):
        raise DtypeError("switch", "the index must be a scalar integer", got=repr(index.aval))
    if len(branches) == 1:
        return branches[0](*operands)
    last = index.dtype.type(len(branches) - 1)
    index = pointwise.astype(pointwise.minimum(pointwise.maximum(index, index.dtype.type(0)), last), dtype="int32")
    names = [f"branches[{i}]" for i in range(len(branches))]
    return _branch("switch", index, tuple(branches), names, operands)


def _branch(where: str, index: Any, functions: Sequence[Callable], names: Sequence[str], operands: tuple) -> Any:
    leaves, structure = tree.flatten(operands)
    leaves = [tnp.asarray(leaf) for leaf in leaves]
    avals = [leaf.aval for leaf in leaves]
    programs = [trace_leaves(lambda *x, f=f: f(*tree.unflatten(structure, x)), avals, where) for f in functions]
    first, *others = programs
    for name, other in zip(names[1:], others, strict=True):
        results = (f"the result of {names[0]}", f"the result of {name}")
        tree.check_same_structure(where, first.out_tree, other.out_tree, results, exact=True)
    wanted = [_common(where, names, avals) for avals in zip(*(p.out_avals for p in programs), strict=True)]
    closed = [control.closing(_with_dtypes(where, program, wanted)) for program in programs]
    functions = [lambda *x, p=p, c=c: p.evaluate([*c, *x]) for p, c in closed]
    branches, captured = control.closed_branches(functions, avals, where)
    results = _weak_as(control.switch(index, *captured, *leaves, branches=branches), wanted)
    return tree.unflatten(first.out_tree, results)


def _common(where: str, names: Sequence[str], avals: Sequence[ShapeDtype]) -> ShapeDtype:
    """The type of one result of all branches; weakly typed ones adapt to the others."""
    strong = next((aval for aval in avals if not aval.weak), None) or max(avals, key=lambda a: _rank(a.dtype))
    got = ", ".join(f"{aval} from {name}" for name, aval in zip(names, avals, strict=True))
    for aval in avals:
        if aval.shape != strong.shape:
            raise ShapeError(where, "the results of the branches must have one shape", got=got)
        if aval.dtype != strong.dtype and not _adapts(aval, strong):
            raise DtypeError(where, "the results of the branches must have one dtype", got=got, hint="x.astype(...)")
    return strong


def map(f: Callable, xs: Any, *, batch_size: int | None = None) -> Any:
    """Applies ``f`` to the rows of ``xs`` one by one, and stacks the results.

    Unlike ``vmap``, which does all rows at once and needs memory for all of them.

    Args:
        f: a function of one row.
        xs: a tree of arrays with one row per call along their first axis.
        batch_size: the number of rows to do together, with ``vmap``.

    Source: follows ``jax.lax.map``.

    >>> map(lambda x: x * x, tnp.asarray([1.0, 2.0]))
    Array([1., 4.], dtype=float32)
    """
    if batch_size is None:
        return scan(lambda _, x: (None, f(x)), None, xs)[1]
    rows, structure = tree.flatten(xs)
    rows = [tnp.asarray(row) for row in rows]
    length = _length(rows, None)
    groups, rest = divmod(length, batch_size)
    cut = groups * batch_size
    grouped = [tnp.reshape(row[:cut], (groups, batch_size, *row.shape[1:])) for row in rows]
    many = lambda rows: _batched(f, rows)
    done = map(many, tree.unflatten(structure, grouped))
    done = tree.map(lambda y: tnp.reshape(y, (cut, *y.shape[2:])), done)
    if not rest:
        return done
    left = many(tree.unflatten(structure, [row[cut:] for row in rows]))
    return tree.map(lambda a, b: tnp.concat([a, b]), done, left)


def _batched(f: Callable, xs: Any) -> Any:
    """``f`` of all rows of ``xs``, by ``vmap``."""
    rows, structure = tree.flatten(xs)
    size = rows[0].shape[0]
    one = [ShapeDtype(row.shape[1:], row.dtype, row.weak_type) for row in rows]
    program = trace_leaves(lambda *leaves: f(tree.unflatten(structure, leaves)), one, "map")
    flags = [False] * len(program.captured) + [True] * len(rows)
    outputs, is_batched = batch(program, [*program.captured, *rows], flags, Axis(size))
    every = [out if flag else repeat(out, size) for out, flag in zip(outputs, is_batched, strict=True)]
    return tree.unflatten(program.out_tree, every)


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    r"""Returns all partial results :math:`x_0,\ x_0 \circ x_1,\ \dots` of an associative function, in parallel.

    About :math:`2 n` applications in :math:`2 \log_2 n` rounds, each on many elements at once.

    Args:
        fn: an associative function of two trees like ``elems``, applied along ``axis`` to many elements at once.
        elems: a tree of arrays of the same size along ``axis``.
        reverse: whether to combine from the last element to the first.
        axis: the axis to go along.

    Source: follows ``jax.lax.associative_scan``; Blelloch, "Prefix sums and their applications" (1990).

    >>> associative_scan(tnp.add, tnp.asarray([1, 2, 3, 4]))
    Array([ 1,  3,  6, 10], dtype=int32)
    """
    leaves, structure = tree.flatten(elems)
    arrays = [tnp.asarray(leaf) for leaf in leaves]
    if not arrays:
        return elems
    axis = normalize_axis("associative_scan", axis, arrays[0].ndim)
    if any(x.ndim <= axis or x.shape[axis] != arrays[0].shape[axis] for x in arrays):
        got = ", ".join(repr(x.aval) for x in arrays)
        raise ShapeError("associative_scan", f"all leaves must have one size along axis {axis}", got=got)
    if reverse:
        arrays = [tnp.flip(x, axis=axis) for x in arrays]

    def combine(a: list, b: list) -> list:
        results = [tnp.asarray(x) for x in tree.leaves(fn(tree.unflatten(structure, a), tree.unflatten(structure, b)))]
        if [x.shape for x in results] != [x.shape for x in a]:
            got = ", ".join(repr(x.aval) for x in results)
            raise ShapeError("associative_scan", "the function must return arrays of the shapes it gets", got=got)
        return results

    def part(x: Array, begin: int, end: int, step: int = 1) -> Array:
        start, stop, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
        start[axis], stop[axis], steps[axis] = begin, end, step
        return slice_op(x, start=tuple(start), stop=tuple(stop), step=tuple(steps))

    def prefixes(xs: list) -> list:
        n = xs[0].shape[axis]
        if n < 2:
            return xs
        pairs = combine([part(x, 0, n - 1, 2) for x in xs], [part(x, 1, n, 2) for x in xs])
        odd = prefixes(pairs)
        inner = odd if n % 2 else [part(x, 0, n // 2 - 1) for x in odd]
        even = [part(x, 0, 1) for x in xs]
        if n > 2:
            later = combine(inner, [part(x, 2, n, 2) for x in xs])
            even = [tnp.concat(pair, axis=axis) for pair in zip(even, later, strict=True)]
        return [_interleaved(*pair, axis) for pair in zip(even, odd, strict=True)]

    results = prefixes(arrays)
    if reverse:
        results = [tnp.flip(x, axis=axis) for x in results]
    return tree.unflatten(structure, results)


def _interleaved(even: Array, odd: Array, axis: int) -> Array:
    """Elements of ``even`` and ``odd`` in turns, beginning with ``even``, which has as many or one more."""
    n = odd.shape[axis]
    begin = tuple(slice(0, n) if i == axis else slice(None) for i in range(even.ndim))
    pairs = tnp.stack([even[begin], odd], axis=axis + 1)
    result = tnp.reshape(pairs, (*odd.shape[:axis], 2 * n, *odd.shape[axis + 1 :]))
    if even.shape[axis] == n:
        return result
    last = tuple(slice(n, None) if i == axis else slice(None) for i in range(even.ndim))
    return tnp.concat([result, even[last]], axis=axis)
