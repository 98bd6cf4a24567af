"""``jit``: whole functions compiled into one module."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial, update_wrapper
from operator import attrgetter
from typing import Any, NamedTuple

from tvmfun import tree
from tvmfun.arguments import ArgumentSelector, argument_names, static_key, with_static
from tvmfun.core import dims
from tvmfun.core import trace as tracing
from tvmfun.core.array import DeviceArray, ShapeDtype
from tvmfun.core.interpreter import EVALUATOR, STACK
from tvmfun.core.leaf import abstract_leaves, argument_name
from tvmfun.core.program import Immutable, Program
from tvmfun.core.trace import Tracer, trace_flat
from tvmfun.dynamic import DynamicShapes
from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.exact_keys import same_structure, structure_key
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
from tvmfun.names import missing_attribute
from tvmfun.stages import Lowered
from tvmfun.tree_flattener import Flattener, expectation, never_matches
from tvmfun.typing import PyTree

_AVAL = attrgetter("aval")
_ADDRESS = attrgetter("address")


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
    """Compiles a function as a whole: one module, called once per call, for each combination of argument types.

    Args:
        fun: a pure function of trees of arrays. Without it, ``jit`` returns a decorator.
        static_argnums: positions of arguments that are hashable Python values instead of arrays; each value compiles
            a module.
        static_argnames: the same by name; with ``static_argnums``, only where they are passed by name.
        donate_argnums: positions of arguments to donate: their memory may be reused for the results, and using them
            afterwards raises ``DonatedArrayError``.
        donate_argnames: the same by name.
        keep_unused: has no effect: unused arguments are not copied, and may be donated.
        inline: has no effect: calls of compiled functions within others are always inlined.
        dynamic_shapes: axes with dynamic sizes, so that one module serves every size: by argument name,
            ``{"images": {0: "b"}, "labels": {0: "b"}}``, or one item per positional argument. An item is None,
            ``{axis: name}``, a tuple with a name or None per axis, or a tree of such items that is a prefix of the
            argument's tree. Equal names are equal sizes; ``Dim("b", min=2)`` is a name with bounds.
        target: the target to compile for, e.g. ``{"kind": "cuda", "arch": "sm_90"}``; by default the device the
            arguments are on.

    Returns:
        A function with the arguments and results of ``fun``, and a method ``lower``.

    Raises:
        ConcretizationError: when called, if ``fun`` needs the data of a traced value.
        ArgumentError: if ``fun`` has no argument of a given name, or a static one is not hashable.
        DimensionError: if the bounds of a dynamic size do not decide a comparison in ``fun``.
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
    """The properties of a call that its Program depends on."""

    structure: tree.Structure
    static: tuple
    avals: tuple[ShapeDtype, ...]

    def key(self) -> tuple:
        """The signature as the key of a dictionary."""
        return self.structure, structure_key(self.structure), static_key(self.static), self.avals


class _CacheEntry(NamedTuple):
    """A call signature with the target's properties, laid out for comparison, and the compiled Program.

    ``expect`` returns the arrays and addresses of arguments with this signature, and None for most others.
    """

    structure: tree.Structure
    static: Hashable
    avals: list[ShapeDtype]
    device: Any
    tuning: str
    loaded: LoadedProgram
    expect: Callable[[PyTree], tuple[list, list[int]] | None]


_NO_STATIC = static_key(())

# The latest entries are compared one by one, which is faster than a hash.
_ENTRIES_KEPT = 4

# Combinations of dynamic sizes whose result types are kept.
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
        self._loaded: dict[tuple, LoadedProgram] = {}
        self._sizes_seen: deque[tuple] = deque()
        # Replaced as a whole: other threads may be iterating.
        self._entries: tuple[_CacheEntry, ...] = ()
        self._flattener = Flattener()
        update_wrapper(self, fun, updated=())  # not the attributes: `fun` may be jitted itself

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute("compiled", "jit", name)

    def __reduce__(self) -> Any:
        path = getattr(self, "__qualname__", "")
        module = sys.modules.get(getattr(self, "__module__", ""))
        try:
            if attrgetter(path)(module) is self:
                return path  # pickle finds it by its name
        except AttributeError:
            pass
        return partial(jit, **self._options), (self._fun,)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Runs the function, compiled at the first call with arguments of these types."""
        static: tuple = ()
        if self._has_static:
            args, kwargs, static = self._static.split(args, kwargs)
        arguments = args, kwargs
        if STACK.interpreters[-1] is not EVALUATOR:  # inlined `is_tracing`
            return self._traced(*self._flattener(arguments), static)
        key = static_key(static) if static else _NO_STATIC
        for entry in self._entries:
            if (taken := entry.expect(arguments)) and entry.static == key and entry.tuning == ACTIVE.key:
                loaded, (arrays, addresses) = entry.loaded, taken
                break
        else:
            loaded, arrays, addresses = self._prepared(arguments, static, key)
        outputs = loaded(arrays, addresses)
        return outputs[0] if loaded.single else loaded.unflatten(outputs)

    def _prepared(self, arguments: PyTree, static: tuple, key: Hashable) -> tuple[LoadedProgram, list, list[int]]:
        """Returns the compiled Program for any arguments, and these as arrays with their addresses."""
        leaves, structure = self._flattener(arguments)
        try:
            avals, addresses = list(map(_AVAL, leaves)), list(map(_ADDRESS, leaves))
        except AttributeError:  # numbers, arrays of other libraries, and donated arrays
            given, leaves = leaves, self._arrays(leaves, structure)
            avals, addresses = list(map(_AVAL, leaves)), addresses_of(leaves)
            if addresses and min(addresses) < 0:
                leaves = on_one_device(leaves, given)
                addresses = addresses_of(leaves)
        device = leaves[0].device if addresses and addresses[0] < 0 else CPU
        for entry in self._entries:
            if (
                entry.avals == avals
                and same_structure(entry.structure, structure)
                and entry.static == key
                and (entry.device is device or entry.device == device)
                and entry.tuning == ACTIVE.key
            ):
                break
        else:
            entry = self._entry(leaves, CallSignature(structure, static, tuple(avals)), device)
        if self._target:
            leaves, addresses = moved(leaves, entry.loaded)
        return entry.loaded, leaves, addresses

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # A jitted method: bind `self` like a function.
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def lower(self, *args: PyTree, **kwargs: PyTree) -> Lowered:
        """Traces the function for arguments like these: arrays, numbers or ``ShapeDtype``."""
        static: tuple = ()
        if self._has_static:
            args, kwargs, static = self._static.split(args, kwargs)
        leaves, structure = self._flattener((args, kwargs))
        signature = self._with_dynamic_sizes(self._signature(leaves, structure, static))
        donated = self._donated_leaves(structure, static)
        names = argument_names(self._fun, structure, static)
        return Lowered(self._program(signature), self._target or targets.host(), donated, names)

    def _traced(self, leaves: Sequence[Any], structure: tree.Structure, static: tuple) -> PyTree:
        """Adds the equations of the function to the current trace."""
        signature = self._signature(leaves, structure, static)
        if self._dynamic:  # only to check that equal names are equal sizes
            patterns = [aval.shape for aval in self._with_dynamic_sizes(signature).avals]
            shapes = [aval.shape for aval in signature.avals]
            dims.solve(patterns, shapes, self._name, lambda i: argument_name(structure.accessors()[i]))
        program = self._program(signature)
        return tree.unflatten(program.out_tree, program.evaluate([*program.captured, *leaves]))

    def _signature(self, leaves: Sequence[Any], structure: tree.Structure, static: tuple) -> CallSignature:
        return CallSignature(structure, static, abstract_leaves(leaves, structure, self._name))

    def _with_dynamic_sizes(self, signature: CallSignature) -> CallSignature:
        """Returns a signature with the names of dynamic sizes."""
        if not self._dynamic:
            return signature
        structure, static, avals = signature
        return signature._replace(avals=self._dynamic.named(avals, structure, [key for key, _ in static]))

    def _arrays(self, leaves: Sequence[Any], structure: tree.Structure) -> list[DeviceArray]:
        try:
            return [as_device_array(leaf, self._name) for leaf in leaves]
        except DtypeError:
            self._signature(leaves, structure, ())  # raises with the name of the leaf
            raise

    def _donated_leaves(self, structure: tree.Structure, static: tuple) -> list[int]:
        return self._donated.leaves(structure, static) if self._donated else []

    def _program(self, signature: CallSignature) -> Program:
        """Returns the Program for a signature, traced at the first request."""
        key = signature.key()
        if key in self._programs:
            return self._programs[key]
        structure, static, avals = signature
        program = trace_flat(with_static(self._fun, static), list(avals), structure, self._name)
        if not any(isinstance(value, Tracer) for value in program.captured):
            self._programs[key] = program  # tracers of an outer trace belong to that trace only
        return program

    def _entry(self, arrays: list[DeviceArray], signature: CallSignature, device: Any) -> _CacheEntry:
        """Returns the cache entry of a call, from now on the first."""
        structure, static, avals = signature
        loaded = self._load(arrays, signature, device)
        # Arrays for a GPU, or for a target, may have to be moved.
        is_direct = device is CPU and not self._target
        expect = expectation(structure, avals) if is_direct else never_matches
        entry = _CacheEntry(structure, static_key(static), list(avals), device, ACTIVE.key, loaded, expect)
        self._entries = (entry, *self._entries[: _ENTRIES_KEPT - 1])
        return entry

    def _load(self, arrays: list[DeviceArray], signature: CallSignature, device: Any) -> LoadedProgram:
        """Returns the compiled Program for arguments of a signature."""
        key = (*signature.key(), device, ACTIVE.key)
        if key in self._loaded:
            return self._loaded[key]
        named = self._with_dynamic_sizes(signature)
        named_key = (*named.key(), device, ACTIVE.key)
        loaded = self._loaded.get(named_key)
        if loaded is None:
            target = self._target or target_of(common_device(arrays, self._name))
            donated = self._donated_leaves(signature.structure, signature.static)
            self._loaded[named_key] = loaded = LoadedProgram(self._program(named), target, donated, device)
        if loaded.program.sizes:
            self._loaded[key] = loaded = loaded.at(loaded.program.solve(signature.avals))
            self._sizes_seen.append(key)
            if len(self._sizes_seen) > _SIZES_KEPT:
                self._loaded.pop(self._sizes_seen.popleft(), None)
        return loaded


def eval_shape(fun: Callable, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """Returns the tree of ``ShapeDtype`` that ``fun(*args, **kwargs)`` would return, without computing anything.

    >>> import tvmfun
    >>> eval_shape(lambda x: x @ x.T, tvmfun.ShapeDtype((2, 3), "float32"))
    float32[2,2]
    """
    program = tracing.trace(fun)(*args, **kwargs)
    return tree.unflatten(program.out_tree, program.out_avals)
