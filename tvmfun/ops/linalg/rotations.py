"""Rotations of pairs of rows of a matrix, recorded and then run on one strip after the other."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun.ops.linalg.strips import Loops, Strips, branch, lanes, local, number, put, registers

# The most recorded sweeps: more would not fit in the cache beside a strip, fewer would wake threads more often.
_SWEEPS = 16


class Rotations:
    """Sweeps of rotations, in which one row is rotated with others, or each row with its neighbour.

    A rotation of a row ``p``, which is in registers, and of the next row ``q`` makes ``s q + c p`` and ``c q - s p`` of
    them. In a sweep over neighbours the first of these is stored and the second is the next ``p``. In a sweep over a
    fixed row ``s q + c p`` replaces ``q``, and ``s p - c q`` is the next ``p``.

    A strip of the matrix stays in the cache for all sweeps that were recorded.
    """

    def __init__(self, rows: Strips, loops: Loops) -> None:
        self.rows, self._loops = rows, loops
        shape = (_SWEEPS, rows.rows)
        self._cosines, self._sines = local(shape, rows.dtype), local(shape, rows.dtype)
        self._starts, self._nexts, self._steps, self._sizes = (local((_SWEEPS,), "int32") for _ in range(4))
        self._kinds = local((_SWEEPS,), rows.dtype)
        self._count = local((1,), "int32")
        T.buffer_store(self._count, number(0, "int32"), [0])

    def make_room(self) -> None:
        """Runs the recorded sweeps if there is no room for another."""
        with branch(self._count[0] >= number(_SWEEPS, "int32")):
            self.run()

    def begin(self, start: Any, following: Any, step: int, *, fixed: bool = False) -> None:
        """Begins a sweep, for which there must be room.

        Args:
            start: the row that is rotated first.
            following: the row that it is rotated with.
            step: the distance to the next row: 1 or -1.
            fixed: whether the sweep is over a fixed row.
        """
        at = self._count[0]
        zero = number(0, "int32")
        for buffer, value in ((self._starts, start), (self._nexts, following), (self._steps, number(step, "int32"))):
            T.buffer_store(buffer, value, [at])
        T.buffer_store(self._sizes, zero, [at])
        T.buffer_store(self._kinds, number(-1 if fixed else 1, self.rows.dtype), [at])
        T.buffer_store(self._count, at + 1, [0])

    def add(self, cosine: Any, sine: Any) -> None:
        """Adds a rotation to the sweep; its numbers are rounded to the dtype of the rows."""
        sweep = self._count[0] - 1
        size = self._sizes[sweep]
        put(self._cosines, cosine, sweep, size)
        put(self._sines, sine, sweep, size)
        T.buffer_store(self._sizes, size + 1, [sweep])

    def run(self) -> None:
        """Runs the recorded sweeps."""
        rows = self.rows
        with self._loops.each(rows.count) as strip, T.serial(0, self._count[0]) as sweep:
            size, step, kind = self._sizes[sweep], self._steps[sweep], self._kinds[sweep]
            start, following = self._starts[sweep], self._nexts[sweep]
            is_fixed = kind < number(0, rows.dtype)
            back = tirx.Select(is_fixed, number(0, "int32"), step)
            with branch(size > 0):
                carried = registers(rows.width, rows.dtype)
                with lanes(rows.width) as k:
                    T.buffer_store(carried, rows[strip, start, k], [k])
                with T.serial(0, size) as number_of:
                    i = following + step * number_of
                    c, s = self._cosines[sweep, number_of], self._sines[sweep, number_of]
                    kept = registers(rows.width, rows.dtype)
                    with lanes(rows.width) as k:
                        T.buffer_store(kept, rows[strip, i, k], [k])
                    with lanes(rows.width) as k:
                        rows.store((strip, i - back, k), s * kept[k] + c * carried[k])
                    with lanes(rows.width) as k:
                        # In this order LLVM adds the product with the old row last, which takes one instruction.
                        T.buffer_store(carried, (-kind * s) * carried[k] + (kind * c) * kept[k], [k])
                last = tirx.Select(is_fixed, start, following + step * (size - 1))
                with lanes(rows.width) as k:
                    rows.store((strip, last, k), carried[k])
        T.buffer_store(self._count, number(0, "int32"), [0])
