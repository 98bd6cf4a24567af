"""The launches of a Program: records of the calls of host functions, joined, with addresses of the memory plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.target import Target

from tvmfun.core import dims
from tvmfun.core.expressions import to_size
from tvmfun.lower.codegen.cuda import cubins, lowering
from tvmfun.lower.codegen.cuda.compilers import Compiler, options_of
from tvmfun.lower.codegen.cuda.conditions import CONDITION
from tvmfun.lower.codegen.cuda.effects import Effects, effects, written_parameters
from tvmfun.lower.codegen.cuda.horizontal import fewest_launches, lifetimes
from tvmfun.lower.codegen.cuda.host_functions import CONSTANTS, Constants, HostFunction, workspace_bytes
from tvmfun.lower.codegen.cuda.joined import Joiner
from tvmfun.lower.codegen.memory_plan import Store, Values
from tvmfun.runtime.cuda_module import (
    Argument,
    ArrayType,
    Branch,
    Copy,
    CudaModule,
    Launch,
    Repeat,
    Step,
    TensorMap,
    While,
)
from tvmfun.runtime.plan import Address


def cuda_module(
    module: tvm.IRModule, target: Target, compiler: Compiler | None, missing: str = "", sizes: Sequence[str] = ()
) -> CudaModule:
    """Returns the machine code of a module, and the launches of a call.

    Args:
        module: scheduled functions, and the Relax function ``main`` that calls them.
        target: a GPU.
        compiler: makes the machine code; None for the launches alone.
        missing: why there is no compiler.
        sizes: the names of the dynamic sizes. With some, launches are not joined, because the sizes decide what fits.

    Raises:
        TargetError: if the target has no architecture, or the compiler refuses something.
    """
    options = options_of(target)
    main = module["main"]
    functions = {name: f for name, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}
    host, kernels = lowering.split(functions, target, bool(sizes))
    texts = lowering.sources(kernels, target)
    hosts = {name.name_hint: function for name, function in host.functions.items()}
    values = Values(main, lambda name, arguments: workspace_bytes(hosts[name], arguments))
    constants = Constants()
    of_constants: dict[int, Address] = {}
    steps: list[tuple[Step, frozenset[int]]] = []
    for call in values.steps:
        if not isinstance(call, Store):
            own = HostFunction(hosts[call.kernel], call.arguments, texts, constants).steps()
            steps += [(step, call.written) for step in own]
        elif call.address.slot in values.results:
            steps.append((constants.copy(call.address, call.bits.tobytes()), frozenset()))
        else:
            of_constants[call.address.slot] = constants.address(call.bits.tobytes())
    code = {texts[name.name_hint].name: function for name, function in kernels.functions.items()}
    joiner = Joiner(code, {source.name: source for source in texts.values()}, target)
    order = _Order(joiner, {name: written_parameters(function) for name, function in code.items()})
    if sizes:
        joined = [step for step, _ in steps]
        plan, planned = values.dynamic_plan(sizes, of_constants)
    else:
        joined, uses = order.joined(steps, values.sizes)
        plan, planned = values.plan({slot: use for slot, use in uses.items() if slot not in of_constants})
    table = {CONSTANTS: Address(plan.block + 1), **planned}
    table.update((slot, _sum(table[CONSTANTS], address)) for slot, address in of_constants.items())
    used = [*dict.fromkeys(joiner.sources[name] for name in _kernels(joined))]
    condition = CONDITION.name if _depends_on_data(joined) else ""
    used += [CONDITION] if condition else []
    return CudaModule(
        options.arch,
        compiler.version if compiler else "",
        tuple(cubins.compiled(used, compiler, options) if compiler else ()),
        tuple(placed(step, table) for step in joined),
        plan,
        bytes(constants.content),
        tuple(_array_type(parameter.ty) for parameter in main.params),
        tuple(_array_type(result.ty) for result in main.body.body.fields),
        missing,
        condition,
    )


class _Order:
    """Orders and joins steps.

    Args:
        joiner: joins launches.
        written: for each kernel the positions of the parameters that it may write.
    """

    def __init__(self, joiner: Joiner, written: Mapping[str, frozenset[int]]) -> None:
        self._joiner = joiner
        self._written = written

    def joined(
        self, steps: Sequence[tuple[Step, frozenset[int]]], sizes: Mapping[int, int]
    ) -> tuple[list[Step], dict[int, tuple[int, int]]]:
        """Returns the joined steps, and the lifetime of each slot.

        Args:
            steps: the steps, with the slots that the function of each may write.
            sizes: the bytes of the slots that are intermediates.
        """
        found = [effects(step, self._written, writable) for step, writable in steps]
        groups = self._groups([step for step, _ in steps], found, sizes)
        result = [step for group in groups for step in self._of_group([steps[i] for i in group])]
        return result, lifetimes(groups, found)

    def _groups(self, steps: Sequence[Step], found: Sequence[Effects], sizes: Mapping[int, int]) -> list[list[int]]:
        kinds = list(map(self._joiner.kind, steps))
        cost = lambda group: 1 if len(group) == 1 else len(self._joiner.parts([steps[i] for i in group]))
        return fewest_launches(found, kinds, sizes, cost)

    def _of_group(self, group: Sequence[tuple[Step, frozenset[int]]]) -> list[Step]:
        """The joined steps of independent ones of the same kind."""
        if len(group) > 1:
            return [self._joiner.joined(part) for part in self._joiner.parts([step for step, _ in group])]
        ((step, writable),) = group
        inside = lambda body: tuple(self.joined([(one, writable) for one in body], {})[0])
        if isinstance(step, Repeat | While):
            return [step._replace(body=inside(step.body))]
        if isinstance(step, Branch):
            return [step._replace(cases=tuple(map(inside, step.cases)))]
        return [step]


def _kernels(steps: Sequence[Step]) -> list[str]:
    """The names of the kernels that steps launch."""
    names: list[str] = []
    for step in steps:
        if isinstance(step, Launch):
            names.append(step.kernel)
        elif isinstance(step, Repeat | While):
            names += _kernels(step.body)
        elif isinstance(step, Branch):
            names += [name for case in step.cases for name in _kernels(case)]
    return names


def _depends_on_data(steps: Sequence[Step]) -> bool:
    """Whether a number in the device's memory decides which launches run."""
    return any(
        isinstance(step, While | Branch) or (isinstance(step, Repeat) and _depends_on_data(step.body)) for step in steps
    )


def placed(step: Step, table: Mapping[int, Address]) -> Step:
    """A record with the addresses of the memory plan."""

    def at(value: Argument) -> Argument:
        if isinstance(value, TensorMap):
            return value._replace(address=at(value.address))
        return _sum(table[value.slot], value) if isinstance(value, Address) else value

    inside = lambda body: tuple(placed(one, table) for one in body)
    if isinstance(step, Launch):
        return step._replace(arguments=tuple(map(at, step.arguments)))
    if isinstance(step, Copy):
        return step._replace(target=at(step.target), source=at(step.source))
    if isinstance(step, Repeat):
        return step._replace(body=inside(step.body))
    if isinstance(step, While):
        return step._replace(condition=at(step.condition), body=inside(step.body))
    return step._replace(index=at(step.index), cases=tuple(map(inside, step.cases)))


def _sum(base: Address, address: Address) -> Address:
    return Address(base.slot, base.offset + address.offset, base.offset_slot)


def _array_type(ty: relax.TensorType) -> ArrayType:
    return ArrayType(tuple(dims.postfix(to_size(size)) for size in ty.shape.values), str(ty.dtype))
