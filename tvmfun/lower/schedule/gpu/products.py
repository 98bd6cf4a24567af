"""Sums of products as matrix products: which axes are rows, columns, reduced, and shared by both operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.tirx import Buffer

from tvmfun.lower.schedule.stages import AnyStage, Stage, contains, is_aligned, is_map, reads_of, same_extents
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr, Size, volume

HALF = ("float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class Operand:
    """One factor of a matrix product.

    Args:
        value: its element, of the dtype ``dtype``, in terms of the axes.
        rows: the axes that only this factor has: rows of the left one, columns of the right one.
        dtype: the dtype in which it is multiplied.
    """

    value: Expr
    rows: tuple[Axis, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Product:
    """A stage as sums of ``left * right`` over ``reduce`` for each point of ``batch`` and the rows of both operands."""

    stage: Stage
    left: Operand
    right: Operand
    batch: tuple[Axis, ...]
    reduce: tuple[Axis, ...]

    @property
    def sizes(self) -> tuple[Size, Size, int, Size]:
        """The numbers of matrices, rows, columns and terms."""
        return tuple(map(volume, (self.batch, self.left.rows, self.right.rows, self.reduce)))  # type: ignore[return-value]

    @property
    def dtype(self) -> str:
        """The dtype of the factors."""
        return self.left.dtype

    @property
    def domain(self) -> tuple[Axis, ...]:
        """All axes."""
        return self.stage.domain


def match(stage: Stage | None) -> Product | None:
    """The product of matrices of floats that a stage is; None if it is not one, or has no terms.

    All but the number of columns may be dynamic.
    """
    if stage is None or stage.combine is not tirx.Add or stage.dtype != "float32":
        return None
    if not isinstance(stage.value, tirx.Mul) or volume(stage.domain) == 0:
        return None
    left, right = stage.value.a, stage.value.b
    if not (build.loads(left) and build.loads(right)):
        return None
    if stage.space and build.uses(left, stage.space[-1].var) and not build.uses(right, stage.space[-1].var):
        left, right = right, left  # columns are the last axis of the result
    if not all(build.uses(side, axis.var) for axis in stage.reduce for side in (left, right)):
        return None
    batch, rows, columns = [], [], []
    for axis in stage.space:
        in_left, in_right = (build.uses(side, axis.var) for side in (left, right))
        (rows if in_left and not in_right else columns if in_right and not in_left else batch).append(axis)
    if not all(isinstance(axis.extent, int) for axis in columns):
        return None
    narrow = [_narrowed(side) for side in (left, right)]
    dtypes = {dtype for _, dtype in narrow}
    if len(dtypes) == 1 and dtypes <= set(HALF):
        (left, dtype), (right, _) = narrow
    else:
        dtype = "float32"
    return Product(
        stage,
        Operand(left, tuple(rows), dtype),
        Operand(right, tuple(columns), dtype),
        tuple(batch),
        _contiguous_last(stage.reduce, (left, right)),
    )


def with_epilogues(stages: Sequence[AnyStage], temps: Sequence[Buffer]) -> Stage | None:
    """The only reduction among the stages with all other stages as maps of its elements; None if they are not.

    Maps over fewer axes, such as those of a bias, are computed again for each element. Maps that only move elements,
    such as the margins of a convolution, are part of the product.
    """
    maps = [stage for stage in stages if is_map(stage)]
    cores = [stage for stage in stages if isinstance(stage, Stage) and not is_map(stage)]
    if len(cores) != 1 or len(maps) + 1 != len(stages):
        return None
    (core,) = cores
    own: list[Stage] = []
    smaller: list[Stage] = []
    for stage in maps:
        for producer in smaller:
            stage = replace(stage, value=_inlined(stage.value, producer))
        if contains(temps, stage.output) and _only_moves(stage.value) and reads_of(core, stage.output):
            core = replace(core, value=_inlined(core.value, stage))
            smaller.append(stage)
            continue
        if same_extents(stage.space, core.space):
            own.append(stage)
        elif contains(temps, stage.output):
            smaller.append(stage)
        else:
            return None
    known = [core]
    for stage in own:
        for load in build.loads(stage.value):
            producer = next((other for other in known if other.output.same_as(load.source)), None)
            if producer is not None and not is_aligned(producer, stage, load, len(core.space)):
                return None
        known.append(stage)
    unknown = [*own, *smaller]
    if any(reads_of(core, stage.output) for stage in unknown):
        return None
    return replace(core, epilogues=(*core.epilogues, *own))


def _only_moves(value: Expr) -> bool:
    """Whether a value is an element of an array, or a choice between one and a constant."""
    if build.is_choice(value):
        return all(_only_moves(part) or not build.loads(part) for part in value.args[1:])
    return isinstance(value, ir.TensorLoad)


def _inlined(value: Expr, producer: Stage) -> Expr:
    """The value with the producer's formula instead of loads of its output."""

    def expand(indices: Sequence[Expr]) -> Expr:
        pairs = zip(producer.index, indices, strict=True)
        env = {var: build.cast(index, str(var.ty)) for var, index in pairs if isinstance(var, ir.Var)}
        return build.substitute(producer.value, env)

    return build.replace_loads(value, producer.output, expand)


def _narrowed(value: Expr) -> tuple[Expr, str]:
    """A float32 value without the conversion from half precision that it is, and its dtype."""
    if isinstance(value, tirx.Cast) and str(value.ty) == "float32" and str(value.value.ty) in HALF:
        return value.value, str(value.value.ty)
    return value, str(value.ty)


def _contiguous_last(reduce: Sequence[Axis], operands: Sequence[Expr]) -> tuple[Axis, ...]:
    """The reduced axes with the one along which most operands are contiguous last."""
    contiguous = lambda axis: sum(
        any(is_last_index(load, axis) for load in build.loads(operand)) for operand in operands
    )
    return tuple(sorted(reduce, key=contiguous))


def is_last_index(load: ir.TensorLoad, axis: Axis) -> bool:
    """Whether a load advances by one element where the axis does, if it is affine."""
    *others, last = load.indices
    return build.uses(last, axis.var) and not any(build.uses(index, axis.var) for index in others)
