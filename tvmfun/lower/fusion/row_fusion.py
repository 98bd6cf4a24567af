"""Row fusion: kernels that pass over the same rows one after another become one kernel, row by row.

A normalization takes a mean, a mean of squares and a final pass. Row by row, the row stays in the cache, and the
intermediate results are never stored. A row is all elements with the same indices along some leading axes, such as an
image of a batch, and may be reduced along some of its trailing axes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tvmfun.core.dims import typical
from tvmfun.core.program import Atom, Equation, Variable
from tvmfun.lower.fusion.device_ops import device_bits
from tvmfun.lower.fusion.fuse import MAX_EQUATIONS
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.ops.index import gather
from tvmfun.ops.shape import broadcast_to, iota, reshape

# Fewer rows would not keep the cores busy, and longer rows would not stay in the cache.
_MIN_ROWS = 16
_MAX_ROW = 1 << 16
# The fewest columns for which vectors pay: row by row, a log-sum-exp along the middle axis of (100000, 3, 2) takes
# three times as long.
_FEWEST_COLUMNS = 16
# On GPUs a kernel may be set aside if its results have at most 1/256 of the elements of the cluster's largest array.
_LITTLE = 256
# An array of at least this many bytes is worth another kernel that takes a few elements of it earlier.
_WORTH_A_KERNEL = 1 << 24


def merge_rows(kernels: Sequence[Kernel], returned: Sequence[Atom], is_gpu: bool = False) -> list[Kernel]:
    """Merges neighbouring kernels in which each row depends only on the same row of the kernels before.

    Args:
        kernels: in an order in which they can run.
        returned: the outputs of the Program.
        is_gpu: whether kernels run on a GPU, where sums of a row's gradient over columns do not end a merger.

    Returns:
        Kernels with the same results, in an order in which they can run.
    """
    readers: dict[Atom, set[int]] = {}
    for i, kernel in enumerate(kernels):
        for atom in kernel.inputs:
            readers.setdefault(atom, set()).add(i)
    for atom in returned:
        readers.setdefault(atom, set()).add(len(kernels))
    result: list[Kernel] = []
    cluster = _Cluster(is_gpu)
    for i, kernel in enumerate(kernels):
        if not cluster.accepts(kernel):
            if cluster.may_set_aside(kernel):
                cluster.set_aside(kernel)
                continue
            result += cluster.merged(readers)
            cluster = _Cluster(is_gpu)
            if not cluster.accepts(kernel):
                result.append(kernel)
                continue
        cluster.add(i, kernel)
    return result + cluster.merged(readers)


def reads_in_rows(kernel: Kernel, variable: Atom) -> bool:
    """Whether a kernel of rows reads each element of an input only where the same row of the results is computed."""
    rows = _rows(kernel)
    if not rows or variable.aval.shape[: len(rows)] != rows:
        return False
    values = {variable, *_computed_by(kernel)}
    return all(
        _is_regular(equation, is_gpu=True) and _stays_in_rows(equation, rows, values) for equation in kernel.equations
    )


@dataclass
class _Cluster:
    """Kernels to merge, views of their results in between, and small kernels that are set aside.

    Kernels that are set aside run before the merged kernel if they do not need it, and after it otherwise.
    """

    is_gpu: bool
    members: dict[int, Kernel] = field(default_factory=dict)
    equations: dict[int, Equation] = field(default_factory=dict)
    computed: set[Variable] = field(default_factory=set)
    rows: tuple[int, ...] | None = None  # the axes along which nothing is reduced; None before the first reduction
    before: list[Kernel] = field(default_factory=list)
    after: list[Kernel] = field(default_factory=list)
    computed_after: set[Variable] = field(default_factory=set)

    def accepts(self, kernel: Kernel) -> bool:
        """Whether a kernel can become the next member."""
        if self.computed_after.intersection(kernel.inputs):
            return False
        added = {id(equation): equation for equation in kernel.equations}
        if not all(_is_regular(equation, self.is_gpu) for equation in kernel.equations):
            return False
        if not self.members:
            return not kernel.is_view
        if not self.computed.intersection(kernel.inputs) or len({**self.equations, **added}) > MAX_EQUATIONS:
            return False
        rows = _rows(kernel) if self.rows is None else self.rows
        if rows is None:  # only a reduction starts a merger
            return False
        if typical(math.prod(rows)) < _MIN_ROWS:
            return False
        computed = self.computed.union(_computed_by(kernel))
        return all(_stays_in_rows(equation, rows, computed) for equation in {**self.equations, **added}.values())

    def may_set_aside(self, kernel: Kernel) -> bool:
        """Whether a kernel may be set aside, so that later kernels become members: one with at most a number per row.

        The labels and the mean of a cross-entropy are such kernels, between the softmax and its gradient; on GPUs also
        sums of the gradient's columns.
        """
        if self.rows is None:
            return False
        largest = max(typical(out.aval.size) for one in self.equations.values() for out in one.outputs)
        most = max(typical(math.prod(self.rows)), largest // _LITTLE if self.is_gpu else 0)
        small = all(typical(out.aval.size) <= most for out in kernel.outputs)
        return small and all(equation.op.kind not in ("contraction", "control") for equation in kernel.equations)

    def add(self, i: int, kernel: Kernel) -> None:
        """Makes a kernel the next member."""
        self.members[i] = kernel
        self.equations.update((id(equation), equation) for equation in kernel.equations)
        self.computed.update(_computed_by(kernel))
        self.rows = _rows(kernel) if self.rows is None else self.rows

    def set_aside(self, kernel: Kernel) -> None:
        """Sets a kernel aside; results that do not depend on the cluster are computed first, for later members."""
        needed = self.computed | self.computed_after
        if not needed.intersection(kernel.inputs):
            self.before.append(kernel)
            return
        waiting = _depending(kernel, needed)
        early = tuple(out for out in kernel.outputs if out not in waiting)
        late = tuple(out for out in kernel.outputs if out in waiting)
        early += self.taken_early(kernel, waiting)
        if early:
            self.before.append(_restricted(kernel, early, ()))
            kernel = _restricted(kernel, late, early)
        self.after.append(kernel)
        self.computed_after.update(late)

    def taken_early(self, kernel: Kernel, waiting: set[Atom]) -> tuple[Variable, ...]:
        """Elements that a kernel takes of large arrays; once they are taken, the cluster may overwrite the arrays.

        Args:
            kernel: a kernel that is set aside.
            waiting: the values that cannot be computed before the cluster.
        """
        if not self.is_gpu:
            return ()
        read = {atom for equation in self.equations.values() for atom in equation.inputs}
        large = {atom for atom in read - self.computed if typical(atom.aval.nbytes) >= _WORTH_A_KERNEL}
        gathers = (equation for equation in kernel.equations if equation.op is gather and equation.inputs[0] in large)
        return tuple(equation.outputs[0] for equation in gathers if equation.outputs[0] not in waiting)

    def merged(self, readers: dict[Atom, set[int]]) -> list[Kernel]:
        """The members as one kernel and the views that others need, between the kernels set aside."""
        return [*self.before, *self._merged_members(readers), *self.after]

    def _merged_members(self, readers: dict[Atom, set[int]]) -> list[Kernel]:
        kernels = [kernel for kernel in self.members.values() if not kernel.is_view]
        if len(kernels) < 2:
            return list(self.members.values())
        inside = self.members.keys()
        views = [k for k in self.members.values() if k.is_view and not readers.get(k.outputs[0], set()) <= inside]
        viewed = {view.inputs[0] for view in views}
        outputs = [
            out
            for kernel in kernels
            for out in kernel.outputs
            if out in viewed or not readers.get(out, set()) <= inside
        ]
        inputs = dict.fromkeys(a for kernel in self.members.values() for a in kernel.inputs if a not in self.computed)
        return [Kernel(tuple(_in_order(self.equations.values())), tuple(inputs), tuple(outputs)), *views]


def _depending(kernel: Kernel, values: set[Variable]) -> set[Atom]:
    """The values, and all values that a kernel computes from any of them."""
    depending: set[Atom] = set(values)
    for equation in kernel.equations:
        if not depending.isdisjoint(equation.inputs):
            depending.update(equation.outputs)
    return depending


def _restricted(kernel: Kernel, outputs: tuple[Variable, ...], known: Sequence[Variable]) -> Kernel:
    """The part of a kernel that computes some of its results, from its inputs and from known results."""
    live: set[Atom] = set(outputs)
    equations: list[Equation] = []
    for equation in reversed(kernel.equations):
        if not live.isdisjoint(equation.outputs) and not set(known).issuperset(equation.outputs):
            equations.append(equation)
            live.update(equation.inputs)
    inputs = tuple(atom for atom in (*kernel.inputs, *known) if atom in live)
    return Kernel(tuple(reversed(equations)), inputs, outputs)


def _in_order(equations: Iterable[Equation]) -> list[Equation]:
    """Equations in order of dependence: a member may recompute what an earlier one read."""
    maker = {out: equation for equation in equations for out in equation.outputs}
    ordered: dict[int, Equation] = {}

    def visit(equation: Equation) -> None:
        for atom in equation.inputs:
            if atom in maker and id(maker[atom]) not in ordered:
                visit(maker[atom])
        ordered.setdefault(id(equation), equation)

    for equation in maker.values():
        visit(equation)
    return list(ordered.values())


def _computed_by(kernel: Kernel) -> set[Variable]:
    """The values that a kernel computes, except iotas, which every kernel can compute itself."""
    return {out for equation in kernel.equations if equation.op is not iota for out in equation.outputs}


def _rows(kernel: Kernel) -> tuple[int, ...] | None:
    """The sizes of the axes before the first one that a kernel reduces; None if it reduces none."""
    for equation in kernel.equations:
        if equation.op.kind == "reduction":
            return equation.inputs[0].aval.shape[: min(equation.params["axis"], default=0)]
    return None


def _is_regular(equation: Equation, is_gpu: bool) -> bool:
    """Whether an equation may be in a kernel of rows: a reduction to part of a row, or work on each element."""
    op = equation.op
    if op.kind == "reduction":
        axis = equation.params.get("axis")
        source = equation.inputs[0].aval
        if not isinstance(axis, tuple) or not axis or not isinstance(source.size, int):
            return False
        if not _row_size(source.shape, axis):
            return False
        if axis == tuple(range(min(axis), source.ndim)):
            return True
        # The remaining axes are columns; a CPU adds up neighbouring columns in the lanes of vectors.
        return not is_gpu and math.prod(source.shape[max(axis) + 1 :]) >= _FEWEST_COLUMNS
    return op.kind == "pointwise" or op in (broadcast_to, iota, reshape, device_bits)


def _row_size(shape: tuple[int, ...], axis: tuple[int, ...]) -> bool:
    return 1 < math.prod(shape[min(axis) :]) <= _MAX_ROW


def _stays_in_rows(equation: Equation, rows: tuple[int, ...], computed: Collection[Atom]) -> bool:
    """Whether each row of an equation's result depends only on the same row of values of the cluster."""
    count = len(rows)
    shape = equation.outputs[0].aval.shape
    needed = [atom.aval.shape for atom in equation.inputs if atom in computed]
    if shape == ():
        return not needed and equation.op.kind == "pointwise"
    if equation.op is iota:
        return True
    if shape[:count] != rows or any(source[:count] != rows for source in needed):
        return False
    if equation.op.kind == "reduction":
        source = equation.inputs[0].aval.shape
        return source[:count] == rows and min(equation.params["axis"]) >= count
    return equation.op is reshape or all(len(source) == len(shape) for source in needed)
