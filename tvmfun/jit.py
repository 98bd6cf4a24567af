"""``jit``: whole functions compiled into one module."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from operator import attrgetter
from typing import Any, NamedTuple

from tvmfun import tree
from tvmfun.arguments import ArgumentSelector, static_key, with_static
from tvmfun.core import dims
from tvmfun.core import program as programs
from tvmfun.core import trace as tracing
from tvmfun.core.array import DeviceArray, ShapeDtype
from tvmfun.core.interpreter import is_tracing
from tvmfun.core.program import Immutable, Program
from tvmfun.core.trace import Tracer, trace_flat
from tvmfun.dynamic import DynamicShapes
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.execute import (
    CPU,
    LoadedProgram,
    addresses_of,
    as_device_array,
    common_device,
    moved,
    on_one_device,
    target_of,
)
from tvmfun.lower import target as targets
from tvmfun.lower.tuning.database import ACTIVE
from tvmfun.stages import Lowered
from tvmfun.tree_flattener import Flattener

_AVAL, _ADDRESS = attrgetter("aval"), attrgetter("address")


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


class CallSignature(NamedTuple):
    """The cache entry for one kind of call."""

    structure: tree.Structure
    static: tuple
    avals: list[ShapeDtype]
    device: Any
    tuning: str
    ready: LoadedProgram


# The latest entries are compared one by one, which is faster than a hash.
_SIGNATURES_KEPT = 4

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
        self._static = ArgumentSelector(fun, options["static_argnums"], options["static_argnames"], "static")
        self._has_static = bool(self._static)
        self._donated = ArgumentSelector(fun, options["donate_argnums"], options["donate_argnames"], "donate")
        self._target = None if target is None else targets.resolve(target)
        self._dynamic = None if dynamic_shapes is None else DynamicShapes(fun, dynamic_shapes)
        self._programs: dict[tuple, Program] = {}
        self._ready: dict[tuple, LoadedProgram] = {}
        self._sizes_seen: deque[tuple] = deque()
        # Replaced as a whole: other threads may be looking.
        self._signatures: tuple[CallSignature, ...] = ()
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
            program = self._program(
                self._with_checked_sizes(self._avals(leaves, structure), structure, static), structure, static
            )
            return tree.unflatten(program.out_tree, program.evaluate([*program.captured, *leaves]))
        try:
            avals, addresses = list(map(_AVAL, leaves)), list(map(_ADDRESS, leaves))
        except AttributeError:  # numbers, arrays of other libraries, and arrays that are gone
            given, leaves = leaves, self._arrays(leaves, structure)
            avals, addresses = list(map(_AVAL, leaves)), addresses_of(leaves)
            if addresses and min(addresses) < 0:
                leaves = on_one_device(leaves, given)
                addresses = addresses_of(leaves)
        key = static_key(static) if static else ()
        device = leaves[0].device if addresses and addresses[0] < 0 else CPU
        for signature in self._signatures:
            if (
                signature.avals == avals
                and (signature.structure is structure or signature.structure == structure)
                and signature.static == key
                and (signature.device is device or signature.device == device)
                and signature.tuning == ACTIVE.key
            ):
                break
        else:
            signature = self._signature(leaves, structure, static, device)
        arrays = leaves
        if self._target:
            arrays, addresses = moved(leaves, signature.ready)
        outputs = signature.ready(arrays, addresses)
        return signature.ready.unflatten(outputs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # A jitted method: bind `self` as Python does for functions.
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Traces the function for arguments like these: arrays, numbers or ``ShapeDtype``."""
        leaves, structure, static = self._flatten(args, kwargs)
        avals = self._with_dynamic_sizes(self._avals(leaves, structure), structure, static)
        program = self._program(avals, structure, static)
        return Lowered(program, self._target or targets.host(), self._donated_leaves(structure, static))

    def _donated_leaves(self, structure: tree.Structure, static: tuple) -> list[int]:
        return self._donated.leaves(structure, static) if self._donated else []

    def _flatten(self, args: tuple, kwargs: dict) -> tuple[list, tree.Structure, tuple]:
        """Returns the leaves and the structure of the arguments that are not static, and the static ones."""
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

    def _with_dynamic_sizes(self, avals: tuple[ShapeDtype, ...], structure: tree.Structure, static: tuple) -> tuple:
        """Returns the types of the leaves with names for dynamic sizes."""
        return self._dynamic.named(avals, structure, [key for key, _ in static]) if self._dynamic else avals

    def _with_checked_sizes(self, avals: tuple[ShapeDtype, ...], structure: tree.Structure, static: tuple) -> tuple:
        """Returns the types of the leaves after checking that equal names in ``dynamic_shapes`` are equal sizes."""
        patterns = [aval.shape for aval in self._with_dynamic_sizes(avals, structure, static)] if self._dynamic else []
        shapes = [aval.shape for aval in avals]
        if patterns:
            dims.solve(patterns, shapes, self._name, lambda i: programs.argument_name(structure.accessors()[i]))
        return avals

    def _program(self, avals: tuple[ShapeDtype, ...], structure: tree.Structure, static: tuple) -> Program:
        key = (structure, *static_key(static), avals)
        if key in self._programs:
            return self._programs[key]
        program = trace_flat(with_static(self._fun, static), list(avals), structure, self._name)
        if not any(isinstance(value, Tracer) for value in program.captured):
            self._programs[key] = program  # values of an outer trace belong to that trace only
        return program

    def _signature(
        self, arrays: list[DeviceArray], structure: tree.Structure, static: tuple, device: Any
    ) -> CallSignature:
        """Returns the cache entry of a call, from now on the first."""
        avals = [array.aval for array in arrays]
        key = (structure, *static_key(static), tuple(avals), device, ACTIVE.key)
        ready = self._ready.get(key) or self._prepare(key, arrays, structure, static)
        signature = CallSignature(structure, static_key(static), avals, device, ACTIVE.key, ready)
        self._signatures = (signature, *self._signatures[: _SIGNATURES_KEPT - 1])
        return signature

    def _prepare(
        self, key: tuple, arrays: list[DeviceArray], structure: tree.Structure, static: tuple
    ) -> LoadedProgram:
        given = self._avals(arrays, structure)
        avals = self._with_dynamic_sizes(given, structure, static)
        general = (structure, *static_key(static), avals, *key[-2:])
        ready = self._ready.get(general)
        if ready is None:
            program = self._program(avals, structure, static)
            device = common_device(arrays, self._name)
            donated = self._donated_leaves(structure, static)
            self._ready[general] = ready = LoadedProgram(program, self._target or target_of(device), donated)
        if ready.program.sizes:
            self._ready[key] = ready = ready.at(ready.program.solve(given))
            self._sizes_seen.append(key)
            if len(self._sizes_seen) > _SIZES_KEPT:
                self._ready.pop(self._sizes_seen.popleft(), None)
        return ready


def eval_shape(fun: Callable, *args: Any, **kwargs: Any) -> Any:
    """Returns the tree of ``ShapeDtype`` that ``fun(*args, **kwargs)`` would return, without computing anything.

    >>> import tvmfun
    >>> eval_shape(lambda x: x @ x.T, tvmfun.ShapeDtype((2, 3), "float32"))
    float32[2,2]
    """
    program = tracing.trace(fun)(*args, **kwargs)
    return tree.unflatten(program.out_tree, program.out_avals)
