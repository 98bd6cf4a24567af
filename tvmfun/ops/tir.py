"""Building the loop programs of opaque ops: PrimFuncs of blocks that say along which axes they are independent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype

#: Marks the outermost of the loops over rows, terms and columns of a product that is added to a few rows of a buffer.
PRODUCT = "tvmfun.product"


def prim_func(
    inputs: Sequence[ShapeDtype],
    output: ShapeDtype | tuple[ShapeDtype, ...],
    write: Callable[[Sequence[tirx.Buffer], Any], None],
) -> tirx.PrimFunc:
    """A PrimFunc whose body ``write(input_buffers, output_buffer)`` builds out of calls of :func:`block`.

    For a tuple of outputs ``write`` gets a list of buffers.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        buffer = lambda aval: T.Buffer(aval.shape, dtypes.NAMES[aval.dtype])
        sources = [T.arg(f"x{i}", buffer(aval)) for i, aval in enumerate(inputs)]
        if isinstance(output, tuple):
            write(sources, [T.arg(f"y{i}", buffer(aval)) for i, aval in enumerate(output)])
        else:
            write(sources, T.arg("y", buffer(output)))
    return builder.get()


def block(
    name: str,
    reads: Sequence[tirx.Buffer],
    writes: tirx.Buffer | Sequence[tirx.Buffer],
    spatial: Sequence[int],
    body: Callable[[tuple], None],
    *,
    ordered: Sequence[int] = (),
) -> None:
    """Loops over ``ordered`` and ``spatial`` around ``body(indices)``.

    Schedules may run the points of ``spatial`` in any order and in parallel; those of ``ordered`` run one after
    the other.
    """
    domain = (*ordered, *spatial)
    count = len(domain)
    if not domain:  # schedules expect blocks with at least one axis
        domain = spatial = (1,)
    with ExitStack() as stack:
        variables = [stack.enter_context(T.serial(0, size)) for size in domain]
        stack.enter_context(T.sblock(name))
        kinds = [T.axis.reduce] * len(ordered) + [T.axis.spatial] * len(spatial)
        indices = tuple(kind(size, var) for kind, size, var in zip(kinds, domain, variables, strict=True))
        T.reads(*(_whole(buffer) for buffer in reads))
        T.writes(*(_whole(buffer) for buffer in (writes if isinstance(writes, list | tuple) else [writes])))
        body(indices[:count])


def _whole(buffer: tirx.Buffer) -> tirx.BufferRegion:
    return buffer[tuple(slice(0, size) for size in buffer.shape)]


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """The statements one after another."""
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
