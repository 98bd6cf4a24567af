"""Results written over inputs: which pairs of an output and an input of a kernel may share memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from tvm.target import Target

from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Program, Variable
from tvmfun.lower import target as targets
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.fusion.row_fusion import reads_in_rows
from tvmfun.ops.control import switch


class Overwrite(NamedTuple):
    """A result of a kernel that is written over an input.

    Args:
        input: the position of the input.
        output: the position of the output.
    """

    input: int
    output: int


#: The results that a kernel writes over inputs.
InPlace = tuple[Overwrite, ...]

# The fewest bytes of an intermediate that is worth another variant of a kernel.
_WORTH_ANOTHER_FORM = 1 << 20


def plan_in_place(
    kernels: Sequence[Kernel], program: Program, target: Target, donated: Collection[int]
) -> list[InPlace]:
    """Returns for each kernel the results to write over inputs that nothing reads later.

    Such inputs are donated inputs of the Program. They may also be intermediates: for control flow, because a copy
    would cost a pass over the state of a whole training step; for updates of some elements, which would copy all
    others; and for large arrays on GPUs, to save memory.

    Args:
        kernels: in the order in which they run.
        program: the Program that they compute.
        target: the target.
        donated: the positions of inputs that may be overwritten with results.
    """
    planner = _Planner(kernels, program, target, donated)
    return [planner.overwrites(kernel, i) for i, kernel in enumerate(kernels)]


def can_be_in_place(equation: Equation, sources: set[int], output: int) -> bool:
    """Whether a control op can write a result over the memory of these arguments.

    Branches are written so that results may share memory with arguments. A loop reads a first carry before it writes
    the last one, and a row before the one of the same index.
    """
    if equation.op is switch:
        return True
    params = equation.params
    first = params["counted"] + params["consts"]
    carry = params["carry"]
    if output < carry:
        return sources == {first + output}
    fills = params["counted"] or params["cond"] is not None
    return not fills and min(sources) >= first + carry


class _Planner:
    """Walks the kernels in order and keeps track of the inputs whose memory is free."""

    def __init__(self, kernels: Sequence[Kernel], program: Program, target: Target, donated: Collection[int]) -> None:
        self.program = program
        self.target = target
        self.is_gpu = not targets.is_cpu(target)
        self.is_dynamic = any(dims.is_dynamic(variable.aval.shape) for variable in program.inputs)
        self.replaced = self.usually_replaced(donated)
        self.viewed: dict[Atom, Atom] = {}  # the value that each view shows
        self.intermediates: set[Atom] = set()  # the intermediates computed so far
        for kernel in kernels:
            if kernel.is_view:
                (argument,) = kernel.inputs
                self.viewed[kernel.outputs[0]] = self.viewed.get(argument, argument)
        self.last_use = {self.viewed.get(atom, atom): i for i, kernel in enumerate(kernels) for atom in kernel.inputs}
        self.returned = set(program.outputs)
        # A value that is returned unchanged, or as a view, must not be overwritten.
        self.kept = {self.viewed.get(atom, atom) for atom in self.returned}
        self.donated = {program.inputs[i] for i in donated} - self.kept
        self.carried: dict[Variable, list[tuple[Variable, Variable]]] = {}
        for variable, *pair in self.carriers(kernels):
            self.carried.setdefault(variable, []).append(tuple(pair))

    def usually_replaced(self, donated: Collection[int]) -> dict[Atom, Variable]:
        """The input that each result probably replaces: the first result gets the first input of its type."""
        unused: dict[tuple, deque[Variable]] = {}
        for i in donated:
            unused.setdefault(_type(self.program.inputs[i]), deque()).append(self.program.inputs[i])
        return {out: queue.popleft() for out in self.program.outputs if (queue := unused.get(_type(out)))}

    def carriers(self, kernels: Sequence[Kernel]) -> Iterator[tuple[Variable, Variable, Variable]]:
        """Intermediates that a kernel may write over an input before branches or updates write a result over them.

        Yields:
            The intermediate, the input and the result.
        """
        makers = {out: kernel for kernel in kernels for out in kernel.outputs}
        readers = Counter(self.viewed.get(atom, atom) for kernel in kernels for atom in kernel.inputs)
        for kernel in kernels:
            if kernel.equations[0].op.overwrites is not None and kernel.outputs[0] in self.returned:
                yield from self.updates_before(kernel, makers)
            if kernel.equations[0].op is not switch:
                continue
            sources = [a for a in kernel.inputs if a in makers and readers[a] == 1 and a not in self.kept]
            for result in filter(self.returned.__contains__, kernel.outputs):
                replaced = self.replaced.get(result)
                for source in sources:
                    if _type(source) == _type(result) and replaced in makers[source].inputs:
                        yield source, replaced, result

    def updates_before(
        self, kernel: Kernel, makers: Mapping[Atom, Kernel]
    ) -> Iterator[tuple[Variable, Variable, Variable]]:
        """Like :meth:`carriers`, for a chain of updates of one array that ends with ``kernel``."""
        value = _updated(kernel)
        while value in makers and value not in self.kept and makers[value].equations[0].op.overwrites is not None:
            source = _updated(makers[value])
            yield value, source, kernel.outputs[0]
            value = source

    def overwrites(self, kernel: Kernel, position: int) -> InPlace:
        """The results that the kernel at ``position`` writes over inputs that nothing reads after it."""
        read = Counter(self.viewed.get(atom, atom) for atom in kernel.inputs)
        is_control = kernel.is_control and not self.is_dynamic
        is_update = kernel.equations[0].op.overwrites is not None and not self.is_dynamic
        would_copy = is_control or is_update
        dead = [
            i
            for i, a in enumerate(kernel.inputs)
            if (a in self.donated or (a in self.intermediates and (would_copy or self.is_worthwhile(a))))
            and self.last_use[a] == position
            and read[a] == 1
        ]
        pairs = []
        for output, variable in enumerate(kernel.outputs):
            carried = ((i, out) for a, out in self.carried.get(variable, ()) for i in dead if kernel.inputs[i] is a)
            carried = [
                (i, out) for i, out in carried if kernel.inputs[i] in self.donated and self.can_write(kernel, i, output)
            ]
            if carried and not is_control:
                source, result = carried[0]
                dead.remove(source)
                pairs.append(Overwrite(source, output))
                self.donated.add(variable)
                self.replaced[result] = variable
                continue
            if variable not in self.returned and not would_copy and not self.is_worthwhile(variable):
                continue
            fitting = [i for i in dead if _type(kernel.inputs[i]) == _type(variable)]
            # A returned result may not share memory with intermediates.
            fitting = [i for i in fitting if (kernel.inputs[i] in self.donated) == (variable in self.kept)]
            fitting = [i for i in fitting if self.can_write(kernel, i, output)]
            if fitting:
                source = min(fitting, key=lambda i: kernel.inputs[i] is not self.replaced.get(variable))
                dead.remove(source)
                pairs.append(Overwrite(source, output))
        if not kernel.is_view:
            self.intermediates.update(out for out in kernel.outputs if out not in self.kept)
        return tuple(pairs)

    def is_worthwhile(self, value: Atom) -> bool:
        """Whether an intermediate is written over another one to save memory."""
        return (
            self.is_gpu and not self.is_dynamic and value not in self.kept and value.aval.nbytes >= _WORTH_ANOTHER_FORM
        )

    def can_write(self, kernel: Kernel, source: int, output: int) -> bool:
        """Whether a schedule may exist in which the kernel writes a result over an input."""
        if kernel.is_control:
            return targets.is_cpu(self.target) and can_be_in_place(kernel.equations[0], {source}, output)
        atom = kernel.inputs[source]
        return kernel.reads_in_step(atom) or (self.is_gpu and reads_in_rows(kernel, atom))


def _updated(kernel: Kernel) -> Atom:
    """The array that an update changes."""
    first = kernel.equations[0]
    assert first.op.overwrites is not None
    return first.inputs[first.op.overwrites]


def _type(atom: Atom) -> tuple:
    return atom.aval.shape, atom.aval.dtype
