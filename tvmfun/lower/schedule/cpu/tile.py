"""A tile of a contraction: some rows of some columns, whose sums stay in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm.tirx import Buffer

from tvmfun.lower.tir.build import Env, Expr

if TYPE_CHECKING:
    from tvmfun.lower.schedule.cpu.contraction_loops import ContractionLoops, Panel


class Tile:
    """Some rows of a panel.

    Args:
        loops: the loops around it.
        env: the indices of the loops.
        top: the first row.
        rows: the number of rows.
        panel: the columns.
        packed: the packed columns of the right factor; None if the factor is read where it is.
    """

    def __init__(
        self, loops: ContractionLoops, env: Env, top: Expr, rows: int, panel: Panel, packed: Buffer | None
    ) -> None:
        self.loops, self.env, self.top, self.rows, self.panel, self.packed = loops, env, top, rows, panel, packed
        self.lanes = loops.tiling.lanes
