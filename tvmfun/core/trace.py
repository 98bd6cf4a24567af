"""Tracing: runs a Python function on values without data, and records the ops that it applies.

While a function is traced, every op it applies is added to the innermost trace, also when all arguments of the op have
data. Values of enclosing traces and arrays with data are captured: they become leading inputs of the Program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.core import dims
from tvmfun.core.array import Array, DeviceArray, ShapeDtype, device_array, foreign_array
from tvmfun.core.interpreter import EVALUATOR, STACK, Interpreter, interpreted_by
from tvmfun.core.leaf import abstract, abstract_leaves, scalar
from tvmfun.core.op import REGISTRY, Op
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.core.source import user_line
from tvmfun.errors import (
    ArgumentError,
    ConcretizationError,
    DimensionError,
    IndexingError,
    LeakedTracerError,
    ShapeError,
)

if TYPE_CHECKING:
    from tvmfun.typing import ArrayLike, PyTree


class Tracer(Array):
    """A value that is being traced: a shape and a dtype, and the variable that it is in the trace."""

    __slots__ = ("atom", "trace")

    def __init__(self, trace: Trace, atom: Atom) -> None:
        self.trace = trace
        self.atom = atom
        self.aval = atom.aval

    def concrete(self, what: str) -> DeviceArray:
        """Raises, because there is no data."""
        raise self.leak(what) if self.trace.ended else _no_data(self, what)

    def origin(self) -> str:
        """The traced function, for errors."""
        return f"traced in {self.trace.name!r}"

    def leak(self, what: str) -> LeakedTracerError:
        """The error for a tracer that outlived its trace."""
        return LeakedTracerError(
            what,
            "a traced value was used after its trace had ended",
            got=f"{self.aval} {self.origin()}",
            hint="returning it from the traced function instead of storing it outside",
        )

    def __repr__(self) -> str:
        return f"Tracer({self.aval})"

    def __copy__(self) -> Tracer:
        return self

    def __deepcopy__(self, memo: dict) -> Tracer:
        return self

    def __reduce__(self) -> Any:
        return self.concrete("pickle")


def _no_data(value: Tracer, what: str) -> ConcretizationError:
    """The error for a traced value used where Python needs data."""
    hints = {
        "bool()": "tvmfun.numpy.where(condition, x, y), or make the argument static with static_argnums",
        "an index": "static_argnums; tvmfun.lax.fori_loop for range(n), and tvmfun.numpy.take for a list",
        "np.asarray": "the same function of tvmfun.numpy, or x.astype(dtype)",
    }
    stay = "to keep the computation in tvmfun.numpy, or return the value from the jitted function"
    return ConcretizationError(
        what,
        "a value that is being traced has a shape and a dtype but no data yet",
        got=f"{value.aval} ({value.origin()})",
        hint=hints.get(what, stay),
    )


def traced_number(value: ArrayLike) -> Array:
    """A Python number as a value of the current trace: its dtype is weak, and it needs no equation."""
    interpreter = STACK.interpreters[-1]
    if isinstance(interpreter, _KnownValues):
        return device_array(scalar(value), weak=True)
    return Tracer(interpreter, Literal(scalar(value)))


class Trace:
    """The equations recorded so far while one function is traced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = False
        self.inputs: list[Variable] = []
        self.equations: list[Equation] = []
        self.producers: dict[Variable, Equation] = {}
        self._known: dict[tuple, tuple[Variable, ...] | Atom] = {}
        self._captured: dict[int, tuple[Array, Variable]] = {}
        self._converted: dict[int, tuple[np.ndarray, DeviceArray]] = {}

    def input(self, aval: ShapeDtype) -> Tracer:
        """A new input."""
        self.inputs.append(Variable(aval))
        return Tracer(self, self.inputs[-1])

    def apply(self, op: Op, args: tuple, params: dict) -> Any:
        """Adds an equation, unless there is an equal or simpler one already, and returns its results."""
        atoms = tuple(self.atom(arg, op.name) for arg in args)
        key = (op, *map(_identity, atoms), *params.items())
        if key not in self._known:
            self._known[key] = self._add(op, atoms, params)
        known = self._known[key]
        if isinstance(known, Variable | Literal):
            return Tracer(self, known)
        return tuple(Tracer(self, out) for out in known)

    def _add(self, op: Op, atoms: tuple[Atom, ...], params: dict) -> Atom | tuple[Variable, ...]:
        try:
            avals = op.shape(*(atom.aval for atom in atoms), **params)
        except DimensionError as error:
            raise dims.blame_op(error, op.name) from None
        if op.simplify is not None and _STATE.simplify:
            simpler = op.simplify(*(self.value(atom) for atom in atoms), **params)
            if isinstance(simpler, tuple):
                return tuple([self._typed(one, aval) for one, aval in zip(simpler, avals, strict=True)])
            if simpler is not None:
                return self._typed(simpler, avals)
        outputs = tuple(map(Variable, avals)) if isinstance(avals, tuple) else (Variable(avals),)
        equation = Equation(op, atoms, params, outputs, user_line())
        self.equations.append(equation)
        self.producers.update(dict.fromkeys(outputs, equation))
        return outputs if isinstance(avals, tuple) else outputs[0]

    def _typed(self, value: Any, aval: ShapeDtype) -> Atom:
        """The atom of a simpler result, whose dtype must not become weak or strong: promotion depends on it."""
        atom = self.atom(value, "simplify")
        if atom.aval.weak == aval.weak:
            return atom
        weak = {"weak": True} if aval.weak else {}
        return self.atom(REGISTRY["astype"](self.value(atom), dtype=dtypes.NAMES[aval.dtype], **weak), "simplify")

    def run(self, program: Program, leaves: list) -> list:
        """Adds the equations of a Program and returns its outputs."""
        sizes = program.solve([abstract(leaf, program.name) for leaf in leaves])
        return (program.with_sizes(sizes) if sizes else program).evaluate([*program.captured, *leaves])

    def variables(self) -> Iterator[Variable]:
        """The inputs of the traced function, and the captured values."""
        yield from self.inputs
        yield from (variable for _, variable in self._captured.values())

    def value(self, atom: Atom) -> Any:
        """The tracer of a variable, or the number of a literal."""
        return atom.value if isinstance(atom, Literal) else Tracer(self, atom)

    def atom(self, value: Any, where: str) -> Atom:
        """The atom of ``value`` in this trace; values of other traces and arrays with data are captured."""
        if isinstance(value, Tracer):
            if value.trace is self or isinstance(value.atom, Literal):
                return value.atom
            if not value.trace.ended:
                return self._capture(value)
            if value.atom in _STATE.stand_ins:
                return self.atom(current(value), where)
            raise value.leak(where)
        if isinstance(value, DeviceArray):
            return self._capture(value)
        is_foreign = not isinstance(value, np.generic | np.ndarray) and hasattr(value, "__dlpack__")
        if is_foreign or (isinstance(value, np.ndarray) and value.ndim):
            if id(value) not in self._converted:
                array = foreign_array(value, where) if is_foreign else device_array(value)
                self._converted[id(value)] = (value, array)
            return self._capture(self._converted[id(value)][1])
        if isinstance(value, dims.Dim):
            return self.atom(dims.as_array(value), where)
        return Literal(scalar(value))

    def _capture(self, value: Array) -> Variable:
        if id(value) not in self._captured:
            self._captured[id(value)] = (value, Variable(value.aval))
        return self._captured[id(value)][1]

    def finish(self, outputs: list[Any], in_tree: tree.Structure, out_tree: tree.Structure) -> Program:
        """The Program from the inputs to ``outputs``, without dead code."""
        atoms = tuple(self.atom(value, self.name) for value in outputs)
        captured = tuple(self._captured.values())
        return Program(
            (*(variable for _, variable in captured), *self.inputs),
            tuple(self.equations),
            atoms,
            in_tree,
            out_tree,
            tuple(value for value, _ in captured),
            self.name,
        ).without_dead_code()


def _identity(atom: Atom) -> Any:
    """The key of an atom; literals by dtype and bits, so that 1 and 1.0, or 0.0 and -0.0, differ."""
    return (atom.value.dtype, atom.value.tobytes()) if isinstance(atom, Literal) else atom


def producer(value: Any) -> Equation | None:
    """The equation of the innermost trace that computes a value, or None."""
    if isinstance(value, Tracer) and value.trace is STACK.interpreters[-1]:
        return value.trace.producers.get(value.atom)  # type: ignore[arg-type]
    return None


def argument(value: Tracer, i: int) -> Any:
    """Input ``i`` of the equation that computes ``value``: a tracer or a number."""
    equation = producer(value)
    assert equation is not None
    return value.trace.value(equation.inputs[i])


class _State(threading.local):
    def __init__(self) -> None:
        self.simplify = True
        self.axes: dict[str, Any] = {}
        self.stand_ins: dict[Atom, Any] = {}


_STATE = _State()


@contextmanager
def unsimplified() -> Iterator[None]:
    """Within this context, ops are not simplified when they are applied."""
    before, _STATE.simplify = _STATE.simplify, False
    try:
        yield
    finally:
        _STATE.simplify = before


def stand_ins() -> dict[Atom, Any]:
    """Values that stand in for variables of traces that have ended."""
    return _STATE.stand_ins


@contextmanager
def standing_in(others: Iterable[Any], values: Iterable[Any], known: dict[Atom, Any]) -> Iterator[None]:
    """Within this context, ``others`` stand in for the tracers among ``values`` once their traces have ended.

    Args:
        others: the values that stand in, which may be tracers that have a stand-in themselves.
        values: what they stand in for.
        known: :func:`stand_ins` of another time, which hold as well.
    """
    before = _STATE.stand_ins
    pairs = zip(values, others, strict=True)
    own = {value.atom: other for value, other in pairs if isinstance(value, Tracer)}
    _STATE.stand_ins = {**before, **known, **own}
    try:
        yield
    finally:
        _STATE.stand_ins = before


def current(value: Any) -> Any:
    """The stand-in of a tracer whose trace has ended; any other value itself."""
    while isinstance(value, Tracer) and value.trace.ended and value.atom in _STATE.stand_ins:
        value = _STATE.stand_ins[value.atom]
    return value


@contextmanager
def named_axis(name: str | None, size: Any) -> Iterator[None]:
    """Within this context, collectives can refer to an axis of this name and size."""
    before = _STATE.axes
    _STATE.axes = before if name is None else {**before, name: size}
    try:
        yield
    finally:
        _STATE.axes = before


def axis_size(name: str, where: str) -> Any:
    """The size of the axis of that name.

    Raises:
        ArgumentError: if no enclosing transform has an axis of this name.
    """
    if name not in _STATE.axes:
        known = ", ".join(map(repr, _STATE.axes)) or "none"
        raise ArgumentError(where, f"no axis has the name {name!r} here", got=known, hint="vmap(f, axis_name=...)")
    return _STATE.axes[name]


class _KnownValues:
    """The interpreter that evaluates what has data, while a function is being traced, and traces the rest."""

    def __init__(self, trace: Interpreter) -> None:
        self.trace = trace

    def apply(self, op: Op, args: tuple, params: dict) -> Any:
        """Runs the op, or adds it to the trace if an argument is being traced."""
        return self._interpreter(args).apply(op, args, params)

    def run(self, program: Program, leaves: list) -> list:
        """Runs the Program, or adds it to the trace if an argument or a captured value is being traced."""
        return self._interpreter([*program.captured, *leaves]).run(program, leaves)

    def _interpreter(self, values: Iterable[Any]) -> Interpreter:
        return self.trace if any(isinstance(value, Tracer) for value in values) else EVALUATOR


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """A context in which ops compute their results at once, even while a function is being traced.

    Ops with an argument that is being traced are traced as they are outside of the context.

    Source: ``jax.ensure_compile_time_eval``.

    >>> import tvmfun
    >>> import tvmfun.numpy as tnp
    >>> @tvmfun.jit
    ... def shifted(x):
    ...     with ensure_compile_time_eval():
    ...         offset = float(tnp.sin(tnp.asarray(0.5)))  # a number, computed once
    ...     return x + offset
    >>> round(float(shifted(1.0)), 4)
    1.4794
    """
    interpreter = STACK.interpreters[-1]
    with interpreted_by(EVALUATOR if interpreter is EVALUATOR else _KnownValues(interpreter)):
        yield


def equations() -> list[Equation]:
    """The equations recorded so far in the innermost trace."""
    return STACK.interpreters[-1].equations


def trace(fun: Callable) -> Callable[..., Program]:
    """Returns a function that traces ``fun`` on its arguments and returns the Program.

    Args:
        fun: a pure function of trees of arrays.

    Returns:
        A function with the arguments of ``fun``; leaves may be arrays, numbers or ``ShapeDtype``. Only their
        shapes and dtypes matter.

    Raises:
        ConcretizationError: if ``fun`` needs the data of a traced value.
        LeakedTracerError: if ``fun`` uses a value of a trace that has ended.

    >>> import tvmfun
    >>> program = trace(lambda x: x + x)(tvmfun.ShapeDtype((2,), "int32"))
    >>> program.out_avals
    (int32[2],)
    """

    @wraps(fun)
    def traced(*args: PyTree, **kwargs: PyTree) -> Program:
        leaves, in_tree = tree.flatten((args, kwargs))
        name = getattr(fun, "__name__", type(fun).__name__)
        return trace_flat(fun, abstract_leaves(leaves, in_tree, name), in_tree, name)

    return traced


def trace_flat(fun: Callable, avals: list[ShapeDtype], in_tree: tree.Structure, name: str) -> Program:
    """Traces ``fun`` for leaves of the types ``avals`` in the tree ``in_tree`` of ``(args, kwargs)``."""
    current = Trace(name)
    inputs = [current.input(aval) for aval in avals]
    try:
        with interpreted_by(current):
            args, kwargs = tree.unflatten(in_tree, inputs)
            outputs, out_tree = tree.flatten(fun(*args, **kwargs))
            result = lambda path: f"the result{tree.keystr(path)}"
            abstract_leaves(outputs, out_tree, name, result, hint="to return arrays and numbers alone")
            return current.finish(outputs, in_tree, out_tree)
    except (ShapeError, IndexingError) as error:
        raise dims.explained(error, tuple(v.aval.shape for v in current.variables())) from error.__cause__
    finally:
        current.ended = True
