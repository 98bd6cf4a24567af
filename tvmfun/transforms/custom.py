"""Custom derivatives: ``custom_vjp`` and ``custom_jvp``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, update_wrapper, wraps
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import trace_leaves, zeros
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.leaf import abstract
from tvmfun.core.program import Program, Variable
from tvmfun.core.trace import Tracer, current, stand_ins, standing_in
from tvmfun.errors import ArgumentError, GradientError
from tvmfun.ops import calls, pointwise
from tvmfun.ops.control import closing
from tvmfun.typing import PyTree

# The most functions and objects that are searched for traced values.
_MOST_SEARCHED = 1000
# Leaves that carry nothing.
_PLAIN = frozenset({bool, int, float, str, bytes, complex, np.ndarray})


class _Custom:
    """A function with a custom derivative."""

    def __init__(
        self,
        fun: Callable,
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
        where: str = "",
    ) -> None:
        if not callable(fun):
            raise ArgumentError(where, "the first argument must be a function", got=type(fun).__name__)
        self._fun = fun
        self._where = where
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else tuple(nondiff_argnames)
        self._static = sorted({*numbers, *(_position(where, fun, name) for name in names)})
        update_wrapper(self, fun, updated=())

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Calls the function, with the custom derivative."""
        raise NotImplementedError

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def _positional(self, args: tuple, kwargs: dict) -> tuple[list, list]:
        """The static and the other arguments, keyword arguments in their positions."""
        try:
            bound = inspect.signature(self._fun).bind(*args, **kwargs)
        except (TypeError, ValueError) as error:
            if kwargs:
                raise ArgumentError(self._where, "the arguments do not fit the function", got=str(error)) from error
            full = args
        else:
            bound.apply_defaults()
            if bound.kwargs:
                names = ", ".join(bound.kwargs)
                raise ArgumentError(self._where, "all arguments must have a position", got=f"keyword-only {names}")
            full = bound.args
        return [full[i] for i in self._static], [x for i, x in enumerate(full) if i not in self._static]

    def _call(self, static: list, others: list) -> PyTree:
        return self._fun(*self._all_arguments(static, others))

    def _all_arguments(self, static: Sequence[Any], others: Sequence[Any]) -> list:
        """All arguments, in order."""
        full = list(others)
        for i, value in zip(self._static, static, strict=True):
            full.insert(i, value)
        return full

    def _traced(
        self, static: list, others: list, rules: Sequence[Callable]
    ) -> tuple[list, tree.Structure, Program, tuple, tree.Structure]:
        """The leaves and structure of the arguments, the Program, what it and the rules close over, and its tree."""
        leaves, structure = tree.flatten(tuple(others))
        name = getattr(self._fun, "__name__", "fun")
        run = lambda *leaves: self._call(static, list(tree.unflatten(structure, leaves)))
        traced = trace_leaves(run, [abstract(leaf, name) for leaf in leaves], name)
        program, captured = closing(traced)
        used = {value.atom for value in captured if isinstance(value, Tracer)}
        extra = {value.atom: value for value in _closed_over([*rules, *static]) if value.atom not in used}
        if extra:
            inner, avals = program, [*(atom.aval for atom in extra), *(v.aval for v in program.inputs)]
            program = trace_leaves(lambda *values: inner.evaluate(values[len(extra) :]), avals, name)
        return leaves, structure, program, (*extra.values(), *captured), traced.out_tree


def _closed_over(functions: Iterable[Any]) -> Iterator[Tracer]:
    """The values of traces in progress that functions carry, and what else they carry, up to a number of objects."""
    waiting, seen = list(functions), set()
    while waiting and len(seen) < _MOST_SEARCHED:
        carrier = waiting.pop()
        if id(carrier) in seen:
            continue
        seen.add(id(carrier))
        for content in _contents(carrier):
            try:
                leaves = [leaf for leaf in tree.leaves(content) if type(leaf) not in _PLAIN]
            except Exception:  # a tree that has no end, or a container that cannot be flattened
                continue
            for leaf in map(current, leaves):
                if not isinstance(leaf, Array):
                    waiting.append(leaf)
                elif isinstance(leaf, Tracer) and isinstance(leaf.atom, Variable) and not leaf.trace.ended:
                    yield leaf


def _contents(carrier: Any) -> Iterator[Any]:
    """The values that a function, a bound method, a partial application or another object carries."""
    if isinstance(carrier, type | ModuleType):
        return
    if isinstance(carrier, partial):
        yield from (carrier.func, carrier.args, carrier.keywords)
    if isinstance(carrier, MethodType):
        yield from (carrier.__func__, carrier.__self__)
    if isinstance(carrier, FunctionType):
        yield from (carrier.__defaults__, carrier.__kwdefaults__)
        for cell in carrier.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
    yield from getattr(carrier, "__dict__", {}).values()


def _later(rule: Callable[..., list], captured: Sequence[Any]) -> calls.Rule:
    """A flat rule ``(*captured, *values)`` that may run once the traces of what it closes over have ended."""
    known = stand_ins()

    @wraps(rule)
    def run(*values: Any) -> list:
        with standing_in(values[: len(captured)], captured, known):
            return [current(value) for value in rule(*values[len(captured) :])]

    return calls.Rule(run)


def _position(where: str, fun: Callable, name: str) -> int:
    """The position of a parameter of a function."""
    parameters = list(inspect.signature(fun).parameters)
    if name not in parameters:
        raise ArgumentError(where, f"it has no parameter {name!r}", got=", ".join(parameters))
    return parameters.index(name)


class custom_vjp(_Custom):  # JAX's name
    r"""A function with a custom reverse mode derivative: ``defvjp(forward, backward)``.

    Args:
        fun: a function of trees of arrays.
        nondiff_argnums: positions of arguments that are Python values and not arrays. ``backward`` gets them
            first, ``forward`` at their positions.
        nondiff_argnames: the names of such arguments.

    Forward mode and higher orders follow from the same two functions: ``backward`` is linear, so its transpose maps
    tangents to tangents, and both can be differentiated.

    Raises:
        GradientError: when differentiated, if there is no rule, or ``backward`` returns other trees or shapes than
            those of the arguments, or the function closes over a value that is being differentiated.

    Source: follows ``jax.custom_vjp``, which has no forward mode.

    >>> import tvmfun
    >>> import tvmfun.numpy as tnp
    >>> @custom_vjp
    ... def clipped(x):
    ...     return x * 1.0
    >>> clipped.defvjp(lambda x: (clipped(x), None), lambda _, g: (tnp.clip(g, -1.0, 1.0),))
    >>> float(tvmfun.grad(lambda x: 100.0 * clipped(x))(1.0))
    1.0
    """

    def __init__(
        self,
        fun: Callable,
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames, "custom_vjp")
        self._rules: tuple[Callable, Callable] | None = None

    def defvjp(
        self,
        fwd: Callable[..., tuple[PyTree, PyTree]],
        bwd: Callable[..., tuple],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Sets the derivative.

        Args:
            fwd: takes the arguments and returns the result and a tree of residuals for ``bwd``.
            bwd: ``(*static, residuals, cotangent) -> cotangents``, a tuple with one tree per argument; None in the
                place of an argument, or of a part of one, is zeros.
            symbolic_zeros: for JAX, where it may be true: here rules get arrays of zeros.
            optimize_remat: for JAX; has no effect, since what is not used is never computed.

        Raises:
            ArgumentError: if a rule is not a function, or ``symbolic_zeros`` is true.
        """
        _refuse_symbolic_zeros("defvjp", symbolic_zeros)
        for name, rule in (("fwd", fwd), ("bwd", bwd)):
            if not callable(rule):
                raise ArgumentError("defvjp", f"{name} must be a function", got=repr(rule))
        self._rules = (fwd, bwd)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Calls the function, with the custom derivative."""
        static, others = self._positional(args, kwargs)
        if not is_tracing():
            return self._call(static, others)
        if self._rules is None:
            raise GradientError("custom_vjp", "there is no derivative", got=repr(self._fun), hint="f.defvjp(fwd, bwd)")
        fwd, bwd = self._rules
        leaves, structure, program, captured, out_tree = self._traced(static, others, self._rules)
        residual_trees: list[tree.Structure] = []

        def forward(*leaves: Any) -> list:
            pair = fwd(*self._all_arguments(static, tree.unflatten(structure, leaves)))
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise GradientError("custom_vjp", "fwd must return (result, residuals)", got=type(pair).__name__)
            results, got_tree = tree.flatten(pair[0])
            if got_tree != out_tree:
                names = ("the result of the function", "the result of fwd")
                tree.check_same_structure("custom_vjp", out_tree, got_tree, names)
            residuals, residual_tree = tree.flatten(pair[1])
            residual_trees[:] = [residual_tree]
            return [*results, *residuals]

        def backward(*values: Any) -> list:
            (residual_tree,) = residual_trees
            count = residual_tree.num_leaves
            residuals = tree.unflatten(residual_tree, values[:count])
            cotangents = bwd(*static, residuals, tree.unflatten(out_tree, values[count:]))
            if not isinstance(cotangents, tuple | list) or len(cotangents) != len(others):
                raise GradientError(
                    "custom_vjp",
                    f"bwd must return a tuple with one cotangent for each of {len(others)} arguments",
                    got=type(cotangents).__name__,
                )
            return self._cotangent_leaves(cotangents, tree.unflatten(structure, avals))

        avals = [abstract(leaf) for leaf in leaves]
        results = calls.custom_vjp_call(
            *captured,
            *leaves,
            program=program,
            forward=_later(forward, captured),
            backward=_later(backward, captured),
            captured=len(captured),
        )
        return tree.unflatten(out_tree, results)

    def _cotangent_leaves(self, cotangents: Sequence[PyTree], primals: Sequence[PyTree]) -> list:
        result = []
        for i, (cotangent, primal) in enumerate(zip(cotangents, primals, strict=True)):
            for part, avals in self._cotangent_parts(i, cotangent, primal):
                if part is None:
                    result += [zeros(aval) for aval in avals]
                else:
                    result.append(_checked_tangent("custom_vjp", part, avals[0]))
        return result

    def _cotangent_parts(self, number: int, cotangent: PyTree, primal: PyTree) -> list[tuple[Any, list[ShapeDtype]]]:
        """The leaves of a cotangent, each with the type of its leaf of the argument, or for None with those below."""
        leaves, structure = tree.flatten(cotangent, is_leaf=lambda x: x is None)
        try:
            pairs = list(zip(leaves, structure.flatten_up_to(primal), strict=True))
        except (ValueError, TypeError):
            pairs = []
        fits = len(pairs) == len(leaves) and all(leaf is None or isinstance(part, ShapeDtype) for leaf, part in pairs)
        if not fits:
            names = (f"argument {number}", "its cotangent from bwd")
            tree.check_same_structure("custom_vjp", tree.structure(primal), tree.structure(cotangent), names)
        return [(leaf, tree.leaves(part)) for leaf, part in pairs]


def _refuse_symbolic_zeros(where: str, symbolic_zeros: bool) -> None:
    if symbolic_zeros:
        raise ArgumentError(
            where, "rules get arrays of zeros", got="symbolic_zeros=True", hint="a rule for arrays, without the option"
        )


def _checked_tangent(where: str, value: Any, aval: ShapeDtype) -> Any:
    """A tangent or cotangent from a user's rule, checked and converted to the dtype of ``aval``."""
    if not dtypes.is_float(aval.dtype):
        return zeros(aval)
    got = abstract(value, where)
    if got.shape != aval.shape:
        raise GradientError(where, f"the rule must return the shape of {aval}", got=repr(got))
    if got.dtype == aval.dtype:
        return value if hasattr(value, "aval") else pointwise.astype(value, dtype=dtypes.NAMES[aval.dtype])
    return pointwise.astype(value, dtype=dtypes.NAMES[aval.dtype])


class custom_jvp(_Custom):  # JAX's name
    r"""A function with a custom forward mode derivative: ``defjvp(rule)``.

    Args:
        fun: a function of trees of arrays.
        nondiff_argnums: positions of arguments that are Python values and not arrays; the rule gets them first.
        nondiff_argnames: the names of such arguments.

    Reverse mode is the transpose of the rule, which must be linear in the tangents.

    Raises:
        GradientError: when differentiated, if there is no rule, or it returns another tree or other shapes than the
            function, or the function closes over a value that is being differentiated.

    Source: follows ``jax.custom_jvp``.

    >>> import tvmfun
    >>> import tvmfun.numpy as tnp
    >>> @custom_jvp
    ... def log1pexp(x):
    ...     return tnp.log(1.0 + tnp.exp(x))
    >>> @log1pexp.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (dx,) = primals, tangents
    ...     return log1pexp(x), (1 - 1 / (1 + tnp.exp(x))) * dx
    >>> float(tvmfun.grad(log1pexp)(100.0))
    1.0
    """

    def __init__(
        self,
        fun: Callable,
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames, "custom_jvp")
        self._rule: Callable | None = None

    def defjvp(
        self, rule: Callable[..., tuple[PyTree, PyTree]], symbolic_zeros: bool = False
    ) -> Callable[..., tuple[PyTree, PyTree]]:
        """Sets the derivative: ``rule(*static, primals, tangents) -> (result, tangent)``; returns the rule.

        Raises:
            ArgumentError: if ``symbolic_zeros``, which JAX has, is true: rules get arrays of zeros.
        """
        _refuse_symbolic_zeros("defjvp", symbolic_zeros)
        self._rule = rule
        return rule

    def defjvps(self, *rules: Callable | None) -> None:
        """Sets one rule per argument: ``rule(tangent, result, *primals) -> tangent``; None is zero."""

        def rule(*values: Any) -> tuple[PyTree, PyTree]:
            *static, primals, tangents = values
            result = self(*self._all_arguments(static, primals))
            total = zeros(result)
            for own, tangent in zip(rules, tangents, strict=True):
                if own is not None:
                    total = pointwise.add(total, own(tangent, result, *static, *primals))
            return result, total

        self._rule = rule

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Calls the function, with the custom derivative."""
        static, others = self._positional(args, kwargs)
        if not is_tracing():
            return self._call(static, others)
        rule = self._rule
        if rule is None:
            raise GradientError("custom_jvp", "there is no derivative", got=repr(self._fun), hint="f.defjvp(rule)")
        leaves, structure, program, captured, out_tree = self._traced(static, others, [rule])
        avals = program.out_avals

        def flat(*values: Any) -> list:
            primals = tree.unflatten(structure, values[: len(leaves)])
            tangents = tree.unflatten(structure, values[len(leaves) :])
            pair = rule(*static, primals, tangents)
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise GradientError("custom_jvp", "the rule must return (result, tangent)", got=type(pair).__name__)
            parts = []
            for part, what in zip(pair, ("result", "tangent"), strict=True):
                leaves_of_part, got = tree.flatten(part)
                if got != out_tree:
                    names = ("the result of the function", f"the {what} from the rule")
                    tree.check_same_structure("custom_jvp", out_tree, got, names)
                parts.append(leaves_of_part)
            return [*parts[0], *(_checked_tangent("custom_jvp", *p) for p in zip(parts[1], avals, strict=True))]

        results = calls.custom_jvp_call(
            *captured, *leaves, program=program, rule=_later(flat, captured), captured=len(captured)
        )
        return tree.unflatten(out_tree, results)
