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
    ready: dict[Atom, int] = {}  # the kernels after which values can be read
    makers: dict[Atom, list[int]] = {}  # the kernels that compute values, stored or not
    readers: dict[Atom, set[int]] = {}
    for i, kernel in enumerate(kernels):
        ready.update((out, i) for out in kernel.outputs)
        for out in (out for equation in kernel.equations for out in equation.outputs):
            makers.setdefault(out, []).append(i)
        for atom in kernel.inputs:
            readers.setdefault(atom, set()).add(i)
    for i, kernel in enumerate(kernels):
        *maps, last = kernel.equations
        if last.op is not sum_op or kernel.outputs != last.outputs:
            continue
        reads = [atom for atom in (*kernel.inputs, *last.inputs) if atom in makers]
        for j in sorted({j for atom in reads for j in makers[atom] if j < i}):
            into = result[j]
            if into is None or not all(j in makers.get(a, ()) or ready.get(a, -1) < j for a in kernel.inputs):
                continue
            known = set(map(id, into.equations))
            joined = (*into.equations, *(equation for equation in maps if id(equation) not in known))
            if not _takes(into, joined[len(into.equations) :], last):
                continue
            result[i] = None
            for atom in kernel.inputs:
                readers[atom].discard(i)
            computed = {out for equation in joined for out in equation.outputs}
            inputs = dict.fromkeys((*into.inputs, *(atom for atom in kernel.inputs if atom not in computed)))
            for atom in inputs:
                readers.setdefault(atom, set()).add(j)
            kept = tuple(out for out in into.outputs if readers.get(out) or out in returned)
            result[j] = Kernel((*joined, last), tuple(inputs), (*kept, *last.outputs))
            ready[last.outputs[0]] = j
            break
    return [kernel for kernel in result if kernel is not None]


def _takes(kernel: Kernel, maps: Sequence[Equation], total: Equation) -> bool:
    """Whether a kernel can add up the columns of a value that it computes, or that maps compute of its values."""
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
