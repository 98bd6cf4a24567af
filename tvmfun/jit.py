"""``jit``: whole functions compiled into one module; and how ops and Programs run when nothing is traced."""

from __future__ import annotations

import inspect
import itertools
import operator
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property, partial, update_wrapper
from operator import attrgetter
from threading import local
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm.target import Target

from tvmfun import dtypes, runtime, tree
from tvmfun.core import dims
from tvmfun.core import program as programs
from tvmfun.core import trace as tracing
from tvmfun.core.array import (
    Array,
    DeviceArray,
    Donation,
    ShapeDtype,
    claim,
    device_array,
    discard,
    duplicate,
    foreign_array,
    give_back,
    interned,
    move,
)
from tvmfun.core.dims import Dim
from tvmfun.core.inline import inlined
from tvmfun.core.leaf import abstract, scalar
from tvmfun.core.op import Op
from tvmfun.core.program import Equation, Immutable, Program, Variable
from tvmfun.core.trace import Tracer, is_tracing, trace_flat
from tvmfun.dynamic import DynamicShapes
from tvmfun.errors import ArgumentError, ConcretizationError, DtypeError, NanError, TargetError
from tvmfun.lower import compile as compiling
from tvmfun.lower import target as targets
from tvmfun.lower.cost import CostAnalysis, cost_analysis
from tvmfun.lower.fuse import is_view
from tvmfun.lower.memory import MemoryAnalysis
from tvmfun.lower.tuning.database import ACTIVE, using
from tvmfun.tree_flattener import Flattener

_CPU = tvm.cpu()
_AVAL, _ADDRESS = attrgetter("aval"), attrgetter("address")


# -- running a Program ---------------------------------------------------------------------------------------------


def as_device_array(leaf: Any, where: str = "jit") -> DeviceArray:
    """A leaf of the arguments as an array with data."""
    if isinstance(leaf, DeviceArray):
        return leaf
    if isinstance(leaf, Tracer):
        leaf.concrete(where)  # explains
    if dtypes.is_scalar(leaf):
        return device_array(scalar(leaf), weak=True)
    if isinstance(leaf, np.generic | np.ndarray):
        return device_array(leaf)
    if isinstance(leaf, Dim):
        int(leaf)  # explains
    if isinstance(leaf, ShapeDtype):
        raise DtypeError(where, "a call needs arrays", got=repr(leaf), hint="eval_shape, trace, or jit(f).lower(...)")
    abstract(leaf, where)  # explains what cannot be an array
    return foreign_array(leaf, where)


def _with_ours(arrays: list[DeviceArray], leaves: Sequence[Any]) -> list[DeviceArray]:
    """The arrays that leaves became; numbers and arrays of other libraries where ours are, if these are on a GPU."""
    own = [array.device for array, leaf in zip(arrays, leaves, strict=True) if array is leaf]
    if _CPU in own or not own:
        return arrays
    return [move(array, own[0]) if array is not leaf else array for array, leaf in zip(arrays, leaves, strict=True)]


def _common_device(arrays: Sequence[DeviceArray], where: str) -> Any:
    device = None
    for array in arrays:
        if device is None:
            device = array.device
        elif array.device != device:
            raise TargetError(
                where,
                "all arrays must be on one device",
                got=f"{device} and {array.device}",
                hint="tvmfun.device_put(tree, device)",
            )
    return device or _CPU


def _target_of(device: Any) -> Target:
    return targets.host() if device == _CPU else targets.resolve(Target.from_device(device))


class _Ready:
    """A Program, compiled for a device, with its captured arrays on it.

    Args:
        program: what to compile.
        target: what for.
        donated: the places of leaves of the arguments whose buffers may be overwritten.
    """

    def __init__(self, program: Program, target: Target, donated: Sequence[int] = ()) -> None:
        self.program = program
        self.donated = donated
        self.pick_donated = runtime.getter(donated)
        self.executable = compiling.compile_program(program, target, _places(program, donated))
        self.device = self.executable.device
        if not runtime.exists(self.device):
            raise TargetError(
                program.name, "it is compiled for a device this machine lacks", got=str(self.device), hint="target=None"
            )
        self.captured = [move(as_device_array(array), self.device) for array in program.captured]
        self.out_avals = tuple(map(interned, program.out_avals))
        self.single = program.out_tree.is_leaf()
        self.unflatten = program.out_tree.unflatten
        self.aliases = list(_aliases(program, donated))
        self.sizes: dict[str, int] = {}

    def at(self, sizes: dict[str, int]) -> _Ready:
        """The same, for arguments that give the dynamic sizes these values."""
        if not sizes:
            return self
        compiling.check_sizes(self.program, sizes)
        ready = copy(self)
        ready.sizes = sizes
        ready.out_avals = tuple(interned(replace(a, shape=dims.at(a.shape, sizes))) for a in self.out_avals)
        return ready

    def __call__(self, arrays: list[DeviceArray], addresses: list[int]) -> list[DeviceArray]:
        """Runs the Program on arrays whose addresses are given besides; donated ones are gone then.

        Raises:
            DonatedArrayError: if a donated one is gone already.
        """
        given = arrays
        captured = _addresses(self.captured) if self.captured else []
        copied: list[tuple[DeviceArray, int]] = []
        if self.donated:
            exclusive = donated = self.pick_donated(arrays)
            claimed = self.pick_donated(addresses)
            reading = claim(donated, claimed, self.program.name, lists=2)
            if reading or _STATE.debug_nans:
                reading = reading or [0] * len(donated)
                arrays, addresses, copied = self._unshared(arrays, addresses, reading)
                # Memory that others read stays as long as the array, which they have.
                exclusive = [a for a, count in zip(donated, reading, strict=True) if count == hasattr(a, "shared")]
        if captured:
            given, arrays, addresses = self.captured + given, self.captured + arrays, captured + addresses
        try:
            memories, places = self.executable(arrays, addresses, self.out_avals)
        except BaseException:
            give_back(copied)
            raise
        outputs = list(map(DeviceArray, memories, places, self.out_avals))
        for output, source in self.aliases:
            outputs[output].shared = places[output]
            if source is not None:
                given[source].shared = addresses[source]
        if _STATE.debug_nans and any(map(_has_nan, outputs)):
            give_back(copied)
            program = self.program.with_sizes(self.sizes)
            _blame(program, given)
        if self.donated:
            donation: Donation = self._receiver, list(map(id, donated))
            for array in exclusive:
                array.memory = donation  # type: ignore[assignment]  # whoever wants memory asks for the address first
        return outputs

    def _receiver(self, position: int) -> str:
        """The function and an argument of it, among the donated ones, in an error."""
        return f"{self.program.name} as {self.program.leaf_name(self.donated[position])}"

    def _unshared(self, arrays: list[DeviceArray], addresses: list[int], reading: Sequence[int]) -> tuple:
        """Arrays and addresses with copies in the places of donated arrays that something else reads, now or later.

        Args:
            arrays: all arguments.
            addresses: theirs.
            reading: how many read each donated one.

        Returns:
            Arrays, addresses, and the donated arrays that were copied with their addresses.
        """
        arrays, addresses, copied = arrays.copy(), addresses.copy(), []
        given = [(i, arrays[i], addresses[i]) for i in self.donated]
        try:
            for (i, array, address), count in zip(given, reading, strict=True):
                if count or _STATE.debug_nans:
                    arrays[i] = duplicate(array, address)
                    addresses[i] = arrays[i].address
                    copied.append((array, address))
        except BaseException:  # such as that there is no memory
            give_back((array, address) for _, array, address in given)
            raise
        return arrays, addresses, copied


def _addresses(arrays: Sequence[DeviceArray]) -> list[int]:
    try:
        return list(map(_ADDRESS, arrays))
    except AttributeError:
        return [array.held() for array in arrays]  # explains


def _moved(arrays: list[DeviceArray], ready: _Ready) -> tuple[list[DeviceArray], list[int]]:
    """The arrays where they are needed, and their addresses; donated ones that are elsewhere are gone then."""
    moved = [move(array, ready.device) for array in arrays]
    discard([arrays[i] for i in ready.donated if moved[i] is not arrays[i]], ready.program.name)
    return moved, _addresses(moved)


def _places(program: Program, donated: Sequence[int]) -> list[int]:
    """The places of leaves of the arguments among all inputs: those after the captured arrays."""
    return [len(program.captured) + i for i in donated]


def _aliases(program: Program, donated: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """Results that lie in the same buffer as an input which is not donated, or as another result.

    Yields:
        The place of the result, and that of the input or None.
    """
    program = inlined(program)
    source = {equation.outputs[0]: equation.inputs[0] for equation in program.equations if is_view(equation)}
    places = {variable: i for i, variable in enumerate(program.inputs)}
    gone = {program.inputs[i] for i in _places(program, donated)}
    roots = []
    for atom in program.outputs:
        while atom in source:
            atom = source[atom]
        roots.append(atom)
    uses = Counter(root for root in roots if isinstance(root, Variable))
    for output, root in enumerate(roots):
        if root in places and root not in gone:
            yield output, places[root]
        elif uses[root] > 1:
            yield output, None


def _run_program(program: Program, leaves: list) -> list:
    """Calls a Program: its equations become part of the current trace, or it is compiled and run."""
    sizes = program.solve([abstract(leaf, program.name) for leaf in leaves]) if program.sizes else {}
    if is_tracing():
        return (program.with_sizes(sizes) if sizes else program).evaluate([*program.captured, *leaves])
    arrays = _with_ours([as_device_array(leaf, program.name) for leaf in leaves], leaves)
    device = _common_device(arrays, program.name)
    return _Ready(program, _target_of(device)).at(sizes)(arrays, _addresses(arrays))


# -- ops one by one -------------------------------------------------------------------------------------------------

_OPS: OrderedDict[tuple, _Ready] = OrderedDict()
_OPS_KEPT = 1024


def _run_op(op: Op, args: tuple, params: dict) -> Any:
    """Applies one op to arrays with data. Numbers are passed as arrays: another number needs no other module."""
    arrays = [_operand(arg, op.name) for arg in args]
    device = arrays[0].device if arrays else _CPU
    if any(array.device != device for array in arrays[1:]):
        own = [array for array, arg in zip(arrays, args, strict=True) if array is arg and array.shape]
        device = _common_device(own or arrays, op.name)
        arrays = [move(array, device) for array in arrays]
    key = (op.name, tuple(params.items()), tuple(array.aval for array in arrays), device, ACTIVE.key)
    ready = _OPS.get(key)
    if ready is None:
        avals = op.shape(*(array.aval for array in arrays), **params)
        outputs = tuple(map(Variable, avals)) if isinstance(avals, tuple) else (Variable(avals),)
        inputs = tuple(Variable(array.aval) for array in arrays)
        program = Program(
            inputs,
            (Equation(op, inputs, params, outputs, tracing.user_line()),),
            outputs,
            tree.structure((inputs, {})),
            tree.structure(outputs if isinstance(avals, tuple) else outputs[0]),
            name=op.name,
        )
        _OPS[key] = ready = _Ready(program, _target_of(device))
        if len(_OPS) > _OPS_KEPT:
            _OPS.popitem(last=False)
    results = ready(arrays, _addresses(arrays))
    return results[0] if ready.single else tuple(results)


def _operand(value: Any, where: str) -> DeviceArray:
    # Within the library a NumPy scalar stands for a Python scalar that has found its dtype.
    if isinstance(value, np.generic):
        return device_array(value, weak=True)
    return as_device_array(value, where)


tracing.install_eager(_run_op)
programs.install_runner(_run_program)


# -- NaNs -----------------------------------------------------------------------------------------------------------


class _State(local):
    debug_nans = False


_STATE = _State()


@contextmanager
def debug_nans(enabled: bool = True) -> Iterator[None]:
    """Within this context, a NaN in a result raises a ``NanError`` that names the op that made it.

    A compiled function whose result has a NaN is run again op by op to find the culprit.

    >>> import tvmfun.numpy as tnp
    >>> with debug_nans():
    ...     tnp.log(tnp.asarray(-1.0))
    Traceback (most recent call last):
    tvmfun.errors.NanError: [log] the op made a NaN, got arguments within [-1, -1]...
    """
    before, _STATE.debug_nans = _STATE.debug_nans, enabled
    try:
        yield
    finally:
        _STATE.debug_nans = before


def _has_nan(array: DeviceArray) -> bool:
    return dtypes.is_float(array.dtype) and bool(np.isnan(array.read(lambda view: view.astype(np.float64))).any())


def _blame(program: Program, inputs: list[DeviceArray]) -> None:
    """Runs the equations one by one and raises for the first that turns numbers into a NaN."""
    for array, variable in zip(inputs, program.inputs, strict=True):
        if _has_nan(array):
            place = program.inputs.index(variable) - len(program.captured)
            which = program.leaf_name(place) if place >= 0 else "a captured array"
            raise NanError(program.name, f"{which} has a NaN already", got=repr(array.aval))

    def check(equation: Equation, arguments: list) -> Any:
        result = _run_op(equation.op, tuple(arguments), equation.params)
        for array in result if isinstance(result, tuple) else (result,):
            if _has_nan(array):
                _raise_nan(equation, arguments)
        return result

    with debug_nans(False):
        program.evaluate(inputs, check)


def _raise_nan(equation: Equation, arguments: list) -> None:
    values = [np.asarray(a, np.float64) for a in arguments if np.size(a)]
    low, high = min(v.min() for v in values), max(v.max() for v in values)
    source = f" at {equation.source}" if equation.source else ""
    raise NanError(
        equation.op.name,
        "the op made a NaN",
        got=f"arguments within [{low:g}, {high:g}]{source}",
        hint="keeping its arguments in the op's domain",
    )


# -- jit ------------------------------------------------------------------------------------------------------------


def jit(
    fun: Callable | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    keep_unused: bool = False,
    inline: bool = False,
    dynamic_shapes: Any = None,
    target: Any = None,
) -> Any:
    """Compiles a function as a whole: one module, one call, for each kind of arguments it meets.

    Args:
        fun: a pure function of trees of arrays. Without it, ``jit`` returns a decorator.
        static_argnums: positions of arguments that are Python values, not arrays: hashable, part of the
            function; another value compiles another module.
        static_argnames: the same by name.
        donate_argnums: positions of arguments the caller gives up: their memory may be used for the results, and
            using them afterwards raises ``DonatedArrayError``.
        donate_argnames: the same by name.
        keep_unused: has no effect: arguments that are not used are not copied, and may be donated.
        inline: has no effect: calls of compiled functions by others are always compiled into these.
        dynamic_shapes: axes whose size is known at call time only, so that one module serves every size: by argument
            name, ``{"images": {0: "b"}, "labels": {0: "b"}}``, or one item per positional argument. An item is
            None, ``{axis: name}``, a tuple with a name or None per axis, or a tree of such items that the argument's
            tree begins with. Equal names are equal sizes; ``Dim("b", min=2)`` is a name with bounds.
        target: what to compile for, e.g. ``{"kind": "cuda", "arch": "sm_90"}``; by default the device the
            arguments are on.

    Returns:
        A function with the arguments and results of ``fun``, and a method ``lower``.

    Raises:
        ConcretizationError: when called, if ``fun`` needs the data of a traced value.
        ArgumentError: if an argument is named that ``fun`` does not have, or a static one is not hashable.
        DimensionError: if ``fun`` needs to know a dynamic size better than its bounds tell.
        ShapeError: if arguments disagree about a dynamic size.

    Source: follows ``jax.jit``; ``dynamic_shapes`` follows ``torch.export.export``.

    >>> import tvmfun.numpy as tnp
    >>> @jit
    ... def norm(x):
    ...     return tnp.sqrt(tnp.sum(x * x))
    >>> float(norm(tnp.asarray([3.0, 4.0])))
    5.0
    """
    options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "dynamic_shapes": dynamic_shapes,
        "target": target,
    }
    if fun is None:
        return lambda fun: Jitted(fun, **options)
    return Jitted(fun, **options)


def _several(value: Any) -> tuple:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(value)
    return () if value is None else (value,)


def _positions(value: Any, option: str) -> list[int]:
    """The positions of arguments: one, several, or None for none."""
    try:
        return [operator.index(number) for number in _several(value)]
    except TypeError:
        raise ArgumentError("jit", f"{option} must be an integer, or several", got=repr(value)) from None


def _names(value: Any, option: str) -> tuple[str, ...]:
    """The names of arguments: one, several, or None for none."""
    names = _several(value)
    if not all(isinstance(name, str) for name in names):
        raise ArgumentError("jit", f"{option} must be a name, or several", got=repr(value))
    return names


class _Places:
    """Arguments given by position or name, found wherever the caller puts them."""

    def __init__(self, fun: Callable, nums: Any, names: Any, what: str) -> None:
        self.nums = set(_positions(nums, f"{what}_argnums"))
        self.names = set(_names(names, f"{what}_argnames"))
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        if not parameters:
            return
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        variadic = {p.kind for p in parameters}
        if not variadic & {inspect.Parameter.VAR_POSITIONAL}:
            for num in self.nums:
                if not -len(positional) <= num < len(positional):
                    raise ArgumentError(
                        "jit", f"{what}_argnums must be a position", got=str(num), hint=f"0 to {len(positional) - 1}"
                    )
        elif any(num < 0 for num in self.nums):
            raise ArgumentError("jit", f"{what}_argnums must not be negative where *args has no end", got=str(nums))
        known = {p.name for p in parameters}
        if not variadic & {inspect.Parameter.VAR_KEYWORD} and self.names - known:
            raise ArgumentError(
                "jit", f"{what}_argnames must be arguments of the function", got=", ".join(sorted(self.names - known))
            )
        self.nums = {num % len(positional) if num < 0 else num for num in self.nums}
        # A position and a name are the same argument: the caller may use either.
        self.names |= {positional[num] for num in self.nums if num < len(positional)}
        self.nums |= {positional.index(name) for name in self.names if name in positional}

    def __bool__(self) -> bool:
        return bool(self.nums or self.names)

    def split(self, args: tuple, kwargs: dict) -> tuple[tuple, dict, tuple]:
        """The other arguments, and these as ``((place, value), ...)``."""
        chosen: list[tuple[Any, Any]] = [(i, value) for i, value in enumerate(args) if i in self.nums]
        chosen += [(name, kwargs[name]) for name in sorted(kwargs) if name in self.names]
        rest = tuple(value for i, value in enumerate(args) if i not in self.nums)
        return rest, {name: value for name, value in kwargs.items() if name not in self.names}, tuple(chosen)

    def leaves(self, structure: tree.Structure, static: tuple) -> list[int]:
        """Which leaves belong to these arguments, given the structure of all that are not static."""
        positional, by_name = structure.children()
        taken = {place for place, _ in static}
        positions = (i for i in itertools.count() if i not in taken)
        found: list[int] = []
        start = 0
        for places, arguments in ((positions, positional), (by_name.entries(), by_name)):
            for place, argument in zip(places, arguments.children(), strict=False):
                if place in self.nums or place in self.names:
                    found += range(start, start + argument.num_leaves)
                start += argument.num_leaves
        return found


def _with_static(fun: Callable, static: tuple) -> Callable:
    """``fun`` as a function of its other arguments only."""
    if not static:
        return fun
    by_place = dict(static)
    names = {name: value for name, value in static if isinstance(name, str)}

    def rest_only(*args: Any, **kwargs: Any) -> Any:
        others = iter(args)
        count = len(args) + len(by_place) - len(names)
        full = [by_place[i] if i in by_place else next(others) for i in range(count)]
        return fun(*full, **kwargs, **names)

    return rest_only


def _static_key(static: tuple) -> tuple:
    """What makes static arguments the same: their places, values and types, because 1, 1.0 and True are equal."""
    if not static:
        return ()
    for place, value in static:
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                "jit",
                f"the static argument {place!r} must be hashable",
                got=type(value).__name__,
                hint="a tuple instead of a list, or passing it as an array",
            ) from None
    return static, tuple(type(value) for _, value in static)


class _Kind(NamedTuple):
    """What tells that a call is like an earlier one, and what such a call does."""

    structure: tree.Structure
    static: tuple
    avals: list[ShapeDtype]
    device: Any
    tuning: str
    ready: _Ready


# Kinds of calls that a function recognizes by looking at them one by one; the others are found by their hash.
_KINDS_KEPT = 4

# Combinations of dynamic sizes that a function remembers the types of the results for.
_SIZES_KEPT = 1024


class Jitted(Immutable):
    """A function that is compiled when it is called; made by :func:`jit`."""

    def __init__(self, fun: Callable, **options: Any) -> None:
        if not callable(fun):
            raise ArgumentError("jit", "the first argument must be a function", got=type(fun).__name__)
        self._fun = fun
        self._options = options
        target, dynamic_shapes = options["target"], options["dynamic_shapes"]
        self._name = getattr(inspect.unwrap(getattr(fun, "func", fun)), "__name__", type(fun).__name__)
        self._static = _Places(fun, options["static_argnums"], options["static_argnames"], "static")
        self._has_static = bool(self._static)
        self._donated = _Places(fun, options["donate_argnums"], options["donate_argnames"], "donate")
        self._target = None if target is None else targets.resolve(target)
        self._dynamic = None if dynamic_shapes is None else DynamicShapes(fun, dynamic_shapes)
        self._programs: dict[tuple, Program] = {}
        self._ready: dict[tuple, _Ready] = {}
        self._sizes_seen: deque[tuple] = deque()
        # Replaced as a whole: other threads may be looking.
        self._kinds: tuple[_Kind, ...] = ()
        self._flattener = Flattener()
        update_wrapper(self, fun, updated=())  # not the attributes: `fun` may be jitted itself

    def __reduce__(self) -> Any:
        path = getattr(self, "__qualname__", "")
        module = sys.modules.get(getattr(self, "__module__", ""))
        try:
            if attrgetter(path)(module) is self:
                return path  # pickle finds it by its name
        except AttributeError:
            pass
        return partial(jit, **self._options), (self._fun,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compiles the function for arguments like these unless that is done, and runs it."""
        static: tuple = ()
        if self._has_static:
            args, kwargs, static = self._static.split(args, kwargs)
        leaves, structure = self._flattener((args, kwargs))
        if is_tracing():
            program = self._program(self._checked(self._avals(leaves, structure), structure, static), structure, static)
            return tree.unflatten(program.out_tree, program.evaluate([*program.captured, *leaves]))
        try:
            avals, addresses = list(map(_AVAL, leaves)), list(map(_ADDRESS, leaves))
        except AttributeError:  # numbers, arrays of other libraries, and arrays that are gone
            given, leaves = leaves, self._arrays(leaves, structure)
            avals, addresses = list(map(_AVAL, leaves)), _addresses(leaves)
            if addresses and min(addresses) < 0:
                leaves = _with_ours(leaves, given)
                addresses = _addresses(leaves)
        key = _static_key(static) if static else ()
        device = leaves[0].device if addresses and addresses[0] < 0 else _CPU
        for kind in self._kinds:
            if (
                kind.avals == avals
                and (kind.structure is structure or kind.structure == structure)
                and kind.static == key
                and (kind.device is device or kind.device == device)
                and kind.tuning == ACTIVE.key
            ):
                break
        else:
            kind = self._kind(leaves, structure, static, device)
        arrays = leaves
        if self._target:
            arrays, addresses = _moved(leaves, kind.ready)
        outputs = kind.ready(arrays, addresses)
        return kind.ready.unflatten(outputs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # A jitted method: bind `self` as Python does for functions.
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Traces the function for arguments like these: arrays, numbers or ``ShapeDtype``."""
        leaves, structure, static = self._flatten(args, kwargs)
        avals = self._general(self._avals(leaves, structure), structure, static)
        program = self._program(avals, structure, static)
        return Lowered(program, self._target or targets.host(), self._donated_leaves(structure, static))

    def _donated_leaves(self, structure: tree.Structure, static: tuple) -> list[int]:
        return self._donated.leaves(structure, static) if self._donated else []

    def _flatten(self, args: tuple, kwargs: dict) -> tuple[list, tree.Structure, tuple]:
        """The leaves and the structure of the arguments that are not static, and the static ones."""
        static: tuple = ()
        if self._has_static:
            args, kwargs, static = self._static.split(args, kwargs)
        leaves, structure = self._flattener((args, kwargs))
        return leaves, structure, static

    def _avals(self, leaves: Sequence[Any], structure: tree.Structure) -> tuple[ShapeDtype, ...]:
        return programs.abstract_leaves(leaves, structure, self._name)

    def _arrays(self, leaves: Sequence[Any], structure: tree.Structure) -> list[DeviceArray]:
        try:
            return [as_device_array(leaf, self._name) for leaf in leaves]
        except DtypeError:
            self._avals(leaves, structure)  # says which leaf it is
            raise

    def _general(self, avals: tuple[ShapeDtype, ...], structure: tree.Structure, static: tuple) -> tuple:
        """The types of the leaves that one Program serves: with names for dynamic sizes."""
        return self._dynamic.named(avals, structure, [place for place, _ in static]) if self._dynamic else avals

    def _checked(self, avals: tuple[ShapeDtype, ...], structure: tree.Structure, static: tuple) -> tuple:
        """The types of the leaves, if equal names in ``dynamic_shapes`` are equal sizes."""
        patterns = [aval.shape for aval in self._general(avals, structure, static)] if self._dynamic else []
        shapes = [aval.shape for aval in avals]
        if patterns:
            dims.solve(patterns, shapes, self._name, lambda i: programs.argument_name(structure.accessors()[i]))
        return avals

    def _program(self, avals: tuple[ShapeDtype, ...], structure: tree.Structure, static: tuple) -> Program:
        key = (structure, *_static_key(static), avals)
        if key in self._programs:
            return self._programs[key]
        program = trace_flat(_with_static(self._fun, static), list(avals), structure, self._name)
        if not any(isinstance(value, Tracer) for value in program.captured):
            self._programs[key] = program  # values of an outer trace belong to that trace only
        return program

    def _kind(self, arrays: list[DeviceArray], structure: tree.Structure, static: tuple, device: Any) -> _Kind:
        """The kind of a call, now the first to be recognized."""
        avals = [array.aval for array in arrays]
        key = (structure, *_static_key(static), tuple(avals), device, ACTIVE.key)
        ready = self._ready.get(key) or self._prepare(key, arrays, structure, static)
        kind = _Kind(structure, _static_key(static), avals, device, ACTIVE.key, ready)
        self._kinds = (kind, *self._kinds[: _KINDS_KEPT - 1])
        return kind

    def _prepare(self, key: tuple, arrays: list[DeviceArray], structure: tree.Structure, static: tuple) -> _Ready:
        given = self._avals(arrays, structure)
        avals = self._general(given, structure, static)
        general = (structure, *_static_key(static), avals, *key[-2:])
        ready = self._ready.get(general)
        if ready is None:
            program = self._program(avals, structure, static)
            device = _common_device(arrays, self._name)
            donated = self._donated_leaves(structure, static)
            self._ready[general] = ready = _Ready(program, self._target or _target_of(device), donated)
        if ready.program.sizes:
            self._ready[key] = ready = ready.at(ready.program.solve(given))
            self._sizes_seen.append(key)
            if len(self._sizes_seen) > _SIZES_KEPT:
                self._ready.pop(self._sizes_seen.popleft(), None)
        return ready


class Lowered(Immutable):
    """A traced function, ready to be compiled; made by ``jit(f).lower(...)``."""

    def __init__(self, program: Program, target: Target, donated: Sequence[int] = ()) -> None:
        self.program = program
        self.target = target
        self.donated = donated

    def as_text(self, dialect: str = "program") -> str:
        """The Program as text: its equations, or (``dialect="relax"``) the Relax function as TVMScript."""
        if dialect not in ("program", "relax"):
            raise ArgumentError("as_text", "the dialect must be 'program' or 'relax'", got=repr(dialect))
        return self.program.text if dialect == "program" else self.program.function.script()

    def compile(self) -> Compiled:
        """Generates code."""
        return Compiled(self.program, self.target, self.donated)


class Compiled(Immutable):
    """A compiled function: takes exactly the arguments it was lowered for; made by ``Lowered.compile()``."""

    def __init__(self, program: Program, target: Target, donated: Sequence[int] = ()) -> None:
        self.program = program
        self.target = target
        self.donated = donated
        self._tuning = ACTIVE.database
        self.executable = compiling.compile_program(program, target, _places(program, donated))

    def as_text(self) -> str:
        """The scheduled kernels and the function that calls them, as TVMScript."""
        with using(self._tuning):
            return compiling.text(self.program, self.target, _places(self.program, self.donated))

    def memory_analysis(self) -> MemoryAnalysis:
        """The bytes that a call takes, known before the first one.

        Raises:
            TargetError: for a GPU, or where sizes are dynamic.

        Source: follows ``jax.stages.Compiled.memory_analysis``.

        >>> import tvmfun
        >>> step = jit(lambda w, x: w - 0.5 * (x.T @ (x @ w)), donate_argnums=0)
        >>> w, x = tvmfun.ShapeDtype((64, 8), "float32"), tvmfun.ShapeDtype((32, 64), "float32")
        >>> step.lower(w, x).compile().memory_analysis()
        MemoryAnalysis(arguments=10240, outputs=0, aliased=2048, temporaries=1024, workspaces=...)
        """
        if not isinstance(self.executable, runtime.NativeExecutable):
            raise TargetError("memory_analysis", "memory is planned by us for the CPU and static sizes only")
        return self.executable.plan.analysis

    def cost_analysis(self) -> CostAnalysis:
        """What a call computes and moves: floating-point operations, and bytes that kernels read and write.

        Source: follows ``jax.stages.Compiled.cost_analysis``.

        >>> import tvmfun
        >>> x = tvmfun.ShapeDtype((64, 64), "float32")
        >>> jit(lambda x: x @ x + 1).lower(x).compile().cost_analysis()
        CostAnalysis(flops=528384, bytes=32768)
        """
        return cost_analysis(self.program, self.target, _places(self.program, self.donated))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it.

        Raises:
            TreeError: if the arguments have another structure.
            ShapeError: if a leaf has another shape or dtype.
        """
        leaves = self.program.check_arguments(args, kwargs)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise ConcretizationError(
                "Compiled", "machine code cannot be traced", got=self.program.name, hint="the function that jit made"
            )
        ready = self._ready
        arrays, addresses = _moved([as_device_array(leaf) for leaf in leaves], ready)
        if self.program.sizes:
            ready = ready.at(self.program.solve([array.aval for array in arrays]))
        outputs = ready(arrays, addresses)
        return ready.unflatten(outputs)

    @cached_property
    def _ready(self) -> _Ready:
        # Made at the first call: compiling for a device does not need the device.
        with using(self._tuning):
            return _Ready(self.program, self.target, self.donated)


def clear_caches() -> None:
    """Forgets what was compiled in this process for ops, Programs and kernels, and so frees its memory.

    Functions made by :func:`jit` keep what they have compiled; the disk cache stays.
    """
    _OPS.clear()
    compiling.clear_caches()
    runtime.clear_memory()


def eval_shape(fun: Callable, *args: Any, **kwargs: Any) -> Any:
    """Returns the tree of ``ShapeDtype`` that ``fun(*args, **kwargs)`` would return, without computing anything.

    >>> import tvmfun
    >>> eval_shape(lambda x: x @ x.T, tvmfun.ShapeDtype((2, 3), "float32"))
    float32[2,2]
    """
    program = tracing.trace(fun)(*args, **kwargs)
    return tree.unflatten(program.out_tree, program.out_avals)


# -- devices ---------------------------------------------------------------------------------------------------------


def device_put(values: Any, device: Any = "cpu") -> Any:
    """Returns the tree with every leaf an array on ``device`` (``"cpu"``, ``"cuda"``, ``"cuda:1"``).

    Raises:
        TargetError: if this machine has no such device.

    >>> device_put({"w": [1.0, 2.0]}, "cpu")["w"][1]
    Array(2., dtype=float32)
    """
    place = runtime.device(device)
    return tree.map(lambda leaf: move(as_device_array(leaf, "device_put"), place), values)


def device_get(values: Any) -> Any:
    """Returns the tree with every array as a NumPy array.

    >>> device_get(device_put({"w": 1.5}))
    {'w': array(1.5, dtype=float32)}
    """
    return tree.map(lambda leaf: leaf.concrete("device_get").numpy() if isinstance(leaf, Array) else leaf, values)


def block_until_ready(values: Any) -> Any:
    """Waits until the devices have computed all arrays of a tree, and returns the tree.

    Source: ``jax.block_until_ready``.

    >>> block_until_ready({"w": device_put(1.5), "name": "kept"})
    {'w': Array(1.5, dtype=float32), 'name': 'kept'}
    """
    return tree.map(lambda leaf: leaf.block_until_ready() if isinstance(leaf, DeviceArray) else leaf, values)


def typeof(value: Any) -> ShapeDtype:
    """Returns the shape and the dtype of an array or a number.

    Source: ``jax.typeof``.

    >>> typeof(1.5)
    float32[]
    """
    return abstract(value, "typeof")
