"""Column sums: sums over the rows of a kernel's values, such as gradients of biases, become part of the kernel.

Otherwise a separate kernel would read, or compute, all terms once more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Variable
from tvmfun.lower.fusion.fuse import MAX_EQUATIONS
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.fusion.products import is_product
from tvmfun.ops.dot import dot_general
from tvmfun.ops.reduce import sum as sum_op


def attach_column_sums(kernels: Sequence[Kernel], returned: Collection[Atom]) -> list[Kernel]:
    """Returns the kernels with at most one column sum in each product and each kernel of maps.

    Maps that compute the sum's terms move with it. The sum can join a kernel that computes some of its inputs, if all
    others are stored before that kernel runs.

    Args:
        kernels: in an order in which they can run.
        returned: the outputs of the Program.
    """
    return _Attaching(kernels, set(returned)).result()


class _Attaching:
    """Kernels by position, and the kernels that compute and that read each value."""

    def __init__(self, kernels: Sequence[Kernel], returned: set[Atom]) -> None:
        self.kernels: list[Kernel | None] = list(kernels)
        self.returned = returned
        self.ready: dict[Atom, int] = {}  # the kernels after which values are stored
        self.makers: dict[Atom, list[int]] = {}  # the kernels that compute values, whether or not they store them
        self.readers: dict[Atom, set[int]] = {}
        for i, kernel in enumerate(kernels):
            self.ready.update((out, i) for out in kernel.outputs)
            for out in (out for equation in kernel.equations for out in equation.outputs):
                self.makers.setdefault(out, []).append(i)
            for atom in kernel.inputs:
                self.readers.setdefault(atom, set()).add(i)

    def result(self) -> list[Kernel]:
        """The kernels once all sums that can join others have done so."""
        for i, kernel in enumerate(self.kernels):
            if kernel is None or kernel.equations[-1].op is not sum_op:
                continue
            if kernel.outputs == kernel.equations[-1].outputs:
                self.attach(i, kernel)
        return [kernel for kernel in self.kernels if kernel is not None]

    def attach(self, i: int, kernel: Kernel) -> None:
        """Makes a kernel that ends in a sum part of the first one that takes it."""
        *maps, total = kernel.equations
        for j in self.candidates(i, kernel):
            into = self.kernels[j]
            known = set() if into is None else set(map(id, into.equations))
            added = [equation for equation in maps if id(equation) not in known]
            if into is not None and self.is_readable(kernel, j) and _takes(into, added, total):
                self.kernels[i] = None
                self.kernels[j] = self.joined((i, kernel), (j, into), added, total)
                return

    def candidates(self, i: int, kernel: Kernel) -> list[int]:
        """The earlier kernels that compute inputs of a sum."""
        values = (*kernel.inputs, *kernel.equations[-1].inputs)
        return sorted({j for value in values for j in self.makers.get(value, ()) if j < i})

    def is_readable(self, kernel: Kernel, j: int) -> bool:
        """Whether all inputs of a kernel are computed in another one, or are stored before that runs."""
        return all(j in self.makers.get(atom, ()) or self.ready.get(atom, -1) < j for atom in kernel.inputs)

    def joined(
        self, own: tuple[int, Kernel], other: tuple[int, Kernel], added: Sequence[Equation], total: Equation
    ) -> Kernel:
        """The other kernel with the sum, and without results that were only read by the sum's former kernel."""
        (i, kernel), (j, into) = own, other
        equations = (*into.equations, *added)
        computed = {out for equation in equations for out in equation.outputs}
        for atom in kernel.inputs:
            self.readers[atom].discard(i)
        inputs = dict.fromkeys((*into.inputs, *(atom for atom in kernel.inputs if atom not in computed)))
        for atom in inputs:
            self.readers.setdefault(atom, set()).add(j)
        self.ready[total.outputs[0]] = j
        kept = (out for out in into.outputs if self.readers.get(out) or out in self.returned)
        return Kernel((*equations, total), tuple(inputs), (*kept, *total.outputs))


def _takes(kernel: Kernel, maps: Sequence[Equation], total: Equation) -> bool:
    """Whether a kernel can add up the columns of a value that it, or a map of its values, computes."""
    if kernel.is_view or len(kernel.equations) + len(maps) >= MAX_EQUATIONS:
        return False
    terms = total.inputs[0].aval
    if not all(equation.op.kind == "pointwise" and equation.outputs[0].aval.shape == terms.shape for equation in maps):
        return False
    if terms.dtype != dtypes.float32 or dims.is_dynamic(terms.shape):
        return False
    axis = total.params["axis"]
    products = [equation for equation in kernel.equations if is_product(equation)]
    if products:
        (product, *others) = products
        has_sum = any(equation.op.kind == "reduction" for equation in kernel.equations)
        return not (others or has_sum) and _sums_rows(axis, terms.shape, product)
    is_map = all(equation.op.kind in ("pointwise", "injective") for equation in kernel.equations)
    same = all(isinstance(out, Variable) and out.aval.shape == terms.shape for out in kernel.outputs)
    return is_map and same and terms.ndim > 1 and axis == (*range(terms.ndim - 1),)


def _sums_rows(axis: tuple[int, ...], shape: tuple[int, ...], product: Equation) -> bool:
    """Whether axes are the rows of a product of two matrices, or the positions of a convolution."""
    rows = len(shape) - 1
    if product.op is dot_general:
        rows = product.inputs[0].aval.ndim - len(product.params["contract"][0])
        if product.params["batch"][0]:
            return False
    return axis == (*range(rows),) and shape == product.outputs[0].aval.shape
