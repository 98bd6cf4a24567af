"""The memory plan: the address of every value of a ``main``, decided at compile time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tvm import ir, relax

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.dims import Dim
from tvmfun.core.expressions import to_size
from tvmfun.runtime.formulas import Formula
from tvmfun.runtime.offsets import Lifetime, assign_offsets
from tvmfun.runtime.plan import Address, DynamicPlan, MemoryAnalysis, Plan, Size

#: A slot that stands for zero instead of a word of the table.
NO_SLOT = -1


class Call(NamedTuple):
    """A step of ``main`` that calls a kernel.

    Args:
        kernel: the name of its function.
        arguments: the addresses of its parameters, and the dynamic sizes among them.
        written: the slots of the arguments that it may write.
    """

    kernel: str
    arguments: list[Any]
    written: frozenset[int] = frozenset()


class Store(NamedTuple):
    """A step of ``main`` that writes a constant, given as the integer of its bits."""

    address: Address
    bits: np.integer


def number(value: int) -> Address:
    """An integer as an argument."""
    return Address(NO_SLOT, value)


@dataclass(eq=False)
class _Buffer:
    """A piece of memory that is in use from its first to its last binding."""

    size: Any
    first: int
    last: int

    @property
    def lifetime(self) -> Lifetime:
        """The bindings that use it."""
        return Lifetime(self.first, self.last)


def plan_memory(main: relax.Function, names: Sequence[str] = ()) -> tuple[Plan | DynamicPlan, list[Call | Store]]:
    """Decides the address of every value of ``main``.

    Args:
        main: calls kernels with ``call_tir`` and ``call_tir_inplace``.
        names: the names of the dynamic sizes.

    Returns:
        The plan, and the steps of the native ``main``.
    """
    values = Values(main)
    plan, address_of = values.dynamic_plan(names) if names else values.plan()
    steps: list[Call | Store] = []
    for step in values.steps:
        if isinstance(step, Store):
            steps.append(step._replace(address=address_of[step.address.slot]))
            continue
        arguments: list[Address | Size] = []
        for argument in step.arguments:
            if isinstance(argument, Dim):
                assert isinstance(plan, DynamicPlan) and argument.name
                arguments.append(Size(plan.size_slot(argument.name)))
            else:
                arguments.append(address_of[argument.slot])
        steps.append(step._replace(arguments=arguments))
    return plan, steps


class Values:
    """The values of ``main`` and its steps, before the values have addresses.

    In these steps each piece of memory has a slot of its own: the inputs first, and then the buffers of intermediates
    and of results.

    Args:
        main: calls kernels with ``call_tir`` and ``call_tir_inplace``.
        workspaces: for the name of a kernel and the arguments of a call (slots, and dynamic sizes) the bytes of each
            piece of memory that the kernel gets for itself, or their formulas. The addresses of these pieces are the
            last arguments of the call.
    """

    def __init__(
        self, main: relax.Function, workspaces: Callable[[str, Sequence[Any]], Sequence[Any]] = lambda name, args: ()
    ) -> None:
        self._workspaces = workspaces
        self._owners: dict[ir.Var, Any] = {parameter: i for i, parameter in enumerate(main.params)}
        self._buffers: list[_Buffer] = []
        self._constants: list[tuple[int, Store]] = []
        self._calls: list[tuple[int, Call]] = []
        self._aliased: dict[int, Any] = {}
        self._inputs = len(main.params)
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        for i, binding in enumerate(bindings):
            self._read(i, binding)
        self._results = [self._owner(len(bindings), field) for field in main.body.body.fields]
        self._arguments = sum(_nbytes(parameter.ty) for parameter in main.params)

    @property
    def steps(self) -> list[Call | Store]:
        """The steps of ``main``, in order; constants are written just before they are used."""
        return [step for _, step in sorted([*self._constants, *self._calls], key=lambda item: item[0])]

    @property
    def results(self) -> set[int]:
        """The slots of the results."""
        return set(self._results)

    @property
    def sizes(self) -> dict[int, int]:
        """The bytes of the intermediates, by slot."""
        intermediates = enumerate(self._buffers, self._inputs)
        return {slot: buffer.size for slot, buffer in intermediates if slot not in self.results}

    def plan(self, uses: Mapping[int, tuple[int, int]] | None = None) -> tuple[Plan, dict[int, Address]]:
        """Gives every slot an address.

        Args:
            uses: the first and the last step that uses an intermediate, by slot; those that are missing get no memory.
                By default these are the steps of ``main``.

        Returns:
            The plan, and the address of each slot of the steps.
        """
        buffers = dict(enumerate(self._buffers, self._inputs))
        kept = [slot for slot in dict.fromkeys(self._results) if slot in buffers]
        fresh = sorted(kept, key=lambda slot: buffers[slot].size)
        intermediates = {slot: buffer for slot, buffer in buffers.items() if slot not in kept}
        if uses is not None:
            used = {slot: uses[slot] for slot in intermediates if slot in uses}
            intermediates = {slot: _Buffer(buffers[slot].size, *pair) for slot, pair in used.items()}
        pieces = intermediates.values()
        offsets, temporaries = assign_offsets([b.size for b in pieces], [b.lifetime for b in pieces])
        block = self._inputs + len(fresh)
        addresses = self._addresses(fresh)
        addresses |= {slot: Address(block, offset) for slot, offset in zip(intermediates, offsets, strict=True)}
        sizes = tuple(buffers[slot].size for slot in fresh)
        analysis = MemoryAnalysis(self._arguments, sum(sizes), sum(self._aliased.values()), temporaries)
        return Plan(self._inputs, sizes, tuple(addresses[slot].slot for slot in self._results), analysis), addresses

    def dynamic_plan(
        self, names: Sequence[str], constants: Collection[int] = ()
    ) -> tuple[DynamicPlan, dict[int, Address]]:
        """Gives every slot an address, whose offset is computed where the sizes are known.

        Args:
            names: the names of the dynamic sizes.
            constants: the slots that need no memory, because they are stored elsewhere.
        """
        buffers = dict(enumerate(self._buffers, self._inputs))
        kept = [slot for slot in dict.fromkeys(self._results) if slot in buffers]
        order = lambda slot: (isinstance(buffers[slot].size, Dim), dims.typical(buffers[slot].size))
        fresh = sorted(kept, key=order)
        elsewhere = {*kept, *constants}
        intermediates = {slot: buffer for slot, buffer in buffers.items() if slot not in elsewhere}
        addresses = self._addresses(fresh)
        plan = DynamicPlan(
            tuple(names),
            self._inputs,
            tuple(dims.postfix(buffers[slot].size) for slot in fresh),
            tuple(addresses[slot].slot for slot in self._results),
            tuple(_formula(buffer.size) for buffer in intermediates.values()),
            tuple(buffer.lifetime for buffer in intermediates.values()),
            dims.postfix(self._arguments),
            dims.postfix(sum(self._aliased.values())),
        )
        addresses |= {slot: Address(plan.block, 0, plan.offset_slot(k)) for k, slot in enumerate(intermediates)}
        return plan, addresses

    def _addresses(self, fresh: Sequence[int]) -> dict[int, Address]:
        """The addresses of the inputs, and of the slots that are new memory for results."""
        slots = [*range(self._inputs), *fresh]
        return {slot: Address(k) for k, slot in enumerate(slots)}

    def _read(self, i: int, binding: relax.VarBinding) -> None:
        """Records the memory of a binding's value, and the use of its arguments."""
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem):
            self._owners[var] = self._owners[value.tuple_value][value.index]
        elif _is_kernel(value):
            arguments = [self._argument(i, argument) for argument in value.args[1].fields]
            results: list[int] = []
            passed = list(arguments)
            for ty, source in zip(_types(var), _sources(value), strict=True):
                if source is None:
                    results.append(self._new(i, _nbytes(ty)))
                    passed.append(results[-1])
                else:
                    results.append(arguments[source])
                    if arguments[source] < self._inputs:
                        self._aliased[arguments[source]] = _nbytes(ty)
            name = value.args[0].name_hint
            own = [self._new(i, size) for size in self._workspaces(name, passed)]
            addresses = [slot if isinstance(slot, Dim) else Address(slot) for slot in (*passed, *own)]
            self._calls.append((i, Call(name, addresses, frozenset([*results, *own]))))
            self._owners[var] = results if isinstance(var.ty, relax.TupleType) else results[0]
        elif value.op.name == "relax.reshape":
            self._owners[var] = self._owner(i, value.args[0])
        else:  # memory of no bytes
            self._owners[var] = self._new(i, _nbytes(var.ty))

    def _argument(self, i: int, value: relax.Expr) -> Any:
        """The slot of an argument of the binding at ``i``, or the dynamic size that it is."""
        return to_size(value) if isinstance(value.ty, ir.PrimType) else self._owner(i, value)

    def _new(self, i: int, size: Any) -> int:
        """The slot of a buffer of a size for the binding at ``i``."""
        self._buffers.append(_Buffer(size, i, i))
        return self._inputs + len(self._buffers) - 1

    def _owner(self, i: int, value: relax.Expr) -> int:
        """The slot of a value that the binding at ``i`` uses."""
        if isinstance(value, ir.GenericConst):
            slot = self._new(i, _nbytes(value.ty))
            self._constants.append((i, Store(Address(slot), _bits(value))))
            return slot
        owner = self._owners[value]
        if owner >= self._inputs:
            self._buffers[owner - self._inputs].last = i
        return owner


def _formula(size: Any) -> Formula:
    """The formula of a number of bytes, which may be one already."""
    return size if isinstance(size, str) else dims.postfix(size)


def _bits(constant: ir.GenericConst) -> np.integer:
    """The bits of a scalar constant."""
    size = 8 * dtypes.canonical(str(constant.ty.dtype)).itemsize
    return np.from_dlpack(constant.value._create_view((), f"int{size}"))[()]


def _is_kernel(value: relax.Call) -> bool:
    return value.op.name in ("relax.call_tir", "relax.call_tir_inplace")


def _types(var: ir.Var) -> Sequence[relax.TensorType]:
    return var.ty.fields if isinstance(var.ty, relax.TupleType) else [var.ty]


def _sources(value: relax.Call) -> list[int | None]:
    """For each result of a kernel the position of the argument that it is written over, or None."""
    if value.op.name == "relax.call_tir":
        results = value.ty_args[0]
        return [None] * (len(results.fields) if isinstance(results, relax.TupleType) else 1)
    return [i if i >= 0 else None for i in map(int, value.attrs.inplace_indices)]


def _nbytes(ty: relax.TensorType) -> Any:
    """The bytes of an array: an integer or a Dim."""
    return math.prod(map(to_size, ty.shape.values)) * dtypes.canonical(str(ty.dtype)).itemsize
