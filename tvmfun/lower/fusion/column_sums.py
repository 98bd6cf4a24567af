"""Column sums: sums over the rows of what a kernel computes, such as gradients of biases, become part of the kernel.

Otherwise a kernel of its own would read, or compute, all terms once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Variable
from tvmfun.lower.fusion.fuse import MAX_EQUATIONS
from tvmfun.lower.fusion.kernel import Kernel
from tvmfun.lower.fusion.products import is_product
from tvmfun.ops.dot import dot_general
from tvmfun.ops.reduce import sum as sum_op


def attach_column_sums(kernels: Sequence[Kernel], returned: Sequence[Atom]) -> list[Kernel]:
    """Returns the kernels with at most one column sum in each product and each kernel of maps.

    Args:
        kernels: in an order in which they can run.
        returned: the outputs of the Program.
    """
    result: list[Kernel | None] = list(kernels)
    makers: dict[int, list[int]] = {}  # the positions of the kernels that have an equation
    for i, kernel in enumerate(kernels):
        for equation in kernel.equations:
            makers.setdefault(id(equation), []).append(i)
    readers: dict[Atom, set[int]] = {}
    for i, kernel in enumerate(kernels):
        for atom in kernel.inputs:
            readers.setdefault(atom, set()).add(i)
    producers = {id(out): equation for kernel in kernels for equation in kernel.equations for out in equation.outputs}
    for i, kernel in enumerate(kernels):
        *maps, last = kernel.equations
        if last.op is not sum_op or kernel.outputs != last.outputs:
            continue
        source = producers.get(id(last.inputs[0]))
        if source is None:
            continue
        for j in makers[id(source)]:
            into = result[j]
            has_maps = all(j in makers[id(equation)] for equation in maps)
            if j < i and into is not None and has_maps and _takes(into, last):
                result[i] = None
                for atom in kernel.inputs:
                    readers[atom].discard(i)
                is_needed = lambda out: bool(readers.get(out)) or out in returned
                kept = tuple(out for out in into.outputs if is_needed(out))
                result[j] = Kernel((*into.equations, last), into.inputs, (*kept, *last.outputs))
                break
    return [kernel for kernel in result if kernel is not None]


def _takes(kernel: Kernel, total: Equation) -> bool:
    """Whether a kernel can add up the columns of a value that it computes."""
    if kernel.is_view or len(kernel.equations) >= MAX_EQUATIONS:
        return False
    terms = total.inputs[0].aval
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
