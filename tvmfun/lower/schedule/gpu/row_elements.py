"""Elements of rows in vectors: their registers, and stores of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir
from tvm.tirx import Buffer, BufferStore, IfThenElse, Stmt

from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir.build import Env, Expr


@dataclass(frozen=True, eq=False)
class RowElement:
    """An element of a row, as one of a vector.

    Args:
        number: counts a thread's elements.
        lane: its position in the vector.
        loads: the registers of vectors by their loads, with the axes of the first stage of a run.
        stores: the registers of results that are stored as vectors.
    """

    number: Expr
    lane: int
    loads: Sequence[tuple[ir.TensorLoad, Buffer]] = ()
    stores: Sequence[tuple[Buffer, Buffer]] = ()

    def register_of(self, output: Buffer) -> Buffer | None:
        """The register of a result that is stored as a vector."""
        return next((register for buffer, register in self.stores if buffer.same_as(output)), None)


@dataclass(frozen=True, eq=False)
class RowVector:
    """The registers of a vector of elements; see :class:`RowElement`.

    Args:
        loads: those that are loaded.
        stores: those that are stored.
        before: the statements that load.
        after: the statements that store.
    """

    loads: Sequence[tuple[ir.TensorLoad, Buffer]]
    stores: Sequence[tuple[Buffer, Buffer]]
    before: Sequence[Stmt]
    after: Sequence[Stmt]


def store(stage: Stage, value: Expr, env: Env, at: RowElement, exists: Expr | None) -> Stmt:
    """Stores an element of a stage's result, or puts it into the vector that will be stored."""
    vector = at.register_of(stage.output)
    if vector is not None:
        return BufferStore(vector, value, [at.lane])
    store = BufferStore(stage.output, value, stage.at(env))
    return store if exists is None else IfThenElse(exists, store, None)
