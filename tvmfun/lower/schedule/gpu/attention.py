"""Attention on GPUs: one launch for the result, and two for the cotangents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvmfun.core.expressions import to_size
from tvmfun.lower.schedule.gpu import tiles, vectors
from tvmfun.lower.schedule.gpu.attention_kernels import (
    ARGUMENTS,
    RESULTS,
    AttentionTiling,
    Sizes,
    device_function,
    examples_per_key,
)
from tvmfun.lower.schedule.gpu.launch import launch
from tvmfun.lower.schedule.gpu.mainloops import Simt, TensorCores
from tvmfun.lower.schedule.gpu.products import HALF
from tvmfun.lower.schedule.gpu.vectors import address
from tvmfun.lower.schedule.gpu.warpgroups import Warpgroups
from tvmfun.lower.target import number
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr
from tvmfun.ops.attention import ATTRIBUTE, WIDEST_HEAD, AttentionParams
from tvmfun.ops.dot import TENSORFLOAT32

# Shapes of tiles: the 16-row tiles of a warp, the warps, and the columns. The first shape that fits shared memory is
# taken. With more rows per warp, shared memory is read less often. This shape is for plain forward kernels, since heads
# of more than 64 elements, two products, biases and masks need the registers.
_MANY_ROWS = ((2, 4, 64),)
# For forward kernels of longer heads in half precision.
_MANY_WARPS = ((1, 8, 64),)
# For heads of at most 64 elements.
_NARROW = ((1, 4, 64), (1, 4, 32), (1, 2, 32), (1, 2, 16))
# For longer heads, and for gradients with biases or masks.
_WIDE = ((1, 4, 32), (1, 2, 32), (1, 2, 16))
# Shapes for warpgroups, indexed by whether heads have more than 64 elements; the first ones are the fastest on an H100.
_WARPGROUPS = {
    "forward": ((1, 8, 64), (1, 8, 64)),
    "queries": ((1, 4, 64), (1, 4, 64)),
    "keys": ((1, 4, 64), (1, 4, 32)),
}


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Returns the kernel of an attention of float32 or half precision with its launches; None if it is not one."""
    text = function.attrs.get(ATTRIBUTE) if function.attrs else None
    arch = str(target.attrs.get("arch", ""))
    if text is None or number(arch) < 80:
        return None
    settings = AttentionParams.of_text(str(text))
    # A dynamic batch size is a parameter, too.
    buffers = [parameter for parameter in function.params if not isinstance(parameter.ty, ir.PrimType)]
    query, key, *_ = buffers
    batch, length, heads, width = map(to_size, query.shape)
    _, keys, groups, _ = map(to_size, key.shape)
    if not all(isinstance(size, int) for size in (length, keys, heads, groups, width)):
        return None
    sizes = Sizes(batch, length, keys, heads, groups, width)
    dtype = str(query.dtype)
    if dtype == "float64" or not 0 < width <= WIDEST_HEAD:
        return None
    format = "tf32" if dtype == "float32" and settings.precision == TENSORFLOAT32 else dtype
    kernels = _Kernels.of(buffers, settings, sizes, format, arch)
    dropout_key = kernels.options.get("dropout_key")
    if dropout_key is not None and examples_per_key(sizes, to_size(dropout_key.shape[0])) is None:
        return None
    root = build.root(kernels.emit())
    function = function.with_body(root).with_attr("tvmfun.rule", "attention")
    return function.with_attr(tiles.UNITS, f"{kernels.instruction} {format}")


def tiling(kind: str, format: str, width: int, arch: str, is_plain: bool = True) -> AttentionTiling:
    """The division of a kernel into blocks: the largest tiles whose shared memory fits.

    Args:
        kind: the kernel, one of :data:`ARGUMENTS`.
        format: the format of the factors.
        width: the elements of a head.
        arch: the architecture.
        is_plain: whether scores depend on no bias or mask.
    """
    held = 1 if kind == "forward" else 2
    # Heads are padded with zeros to 64 elements. For other widths the padding would cost more than mma.sync does.
    if arch == "sm_90a" and format in HALF and width % 64 in (0, *range(33, 64)):
        return AttentionTiling(format, width, *_WARPGROUPS[kind][width > 64], held, warpgroups=True)
    shapes = _NARROW if width <= 64 and (kind == "forward" or is_plain) else _WIDE
    if kind == "forward" and width <= 64 and is_plain:
        shapes = _MANY_ROWS + shapes
    if kind == "forward" and width > 64 and format in HALF:
        shapes = _MANY_WARPS + shapes
    options = [AttentionTiling(format, width, *shape, held) for shape in shapes]
    return next((one for one in options if one.shared_bytes <= tiles.most_shared(arch)), options[-1])


@dataclass(frozen=True, eq=False)
class _Kernels:
    """The launches of one op.

    Args:
        settings: its parameters.
        sizes: the sizes of its arguments.
        format: the format of the factors.
        arch: the architecture.
        buffers: its arguments that are always there, and its results, by name.
        options: its other arguments by name.
    """

    settings: AttentionParams
    sizes: Sizes
    format: str
    arch: str
    buffers: dict[str, Buffer]
    options: dict[str, Buffer]

    @classmethod
    def of(cls, params: Sequence[Buffer], settings: AttentionParams, sizes: Sizes, format: str, arch: str) -> _Kernels:
        """The kernels for the parameters of a function."""
        inputs = settings.required + len(settings.optional)
        results = RESULTS if settings.gradients else ARGUMENTS["forward"][3:]
        names = (*ARGUMENTS["keys"][: settings.required], *results)
        buffers = dict(zip(names, (*params[: settings.required], *params[inputs:]), strict=True))
        return cls(settings, sizes, format, arch, buffers, settings.named(params[:inputs]))

    @property
    def instruction(self) -> str:
        """The instruction that multiplies, the same in all launches."""
        if self.format == "float32":
            return Simt.instruction
        is_plain = not {"bias", "mask"}.intersection(self.options)
        has_warpgroups = tiling("forward", self.format, self.sizes.width, self.arch, is_plain).warpgroups
        return (Warpgroups if has_warpgroups else TensorCores).instruction

    def emit(self) -> Stmt:
        """The launches: one for the result; or one for the cotangents of queries, and one for those of keys."""
        return build.seq(*map(self._launch, ("queries", "keys") if self.settings.gradients else ("forward",)))

    def _launch(self, kind: str) -> Stmt:
        sizes, is_plain = self.sizes, not {"bias", "mask"}.intersection(self.options)
        cut = tiling(kind, self.format, sizes.width, self.arch, is_plain)
        shapes = {name: tuple(map(to_size, buffer.shape)) for name, buffer in self.options.items()}
        code = device_function(kind, self.settings, sizes, cut, shapes)
        buffers = [*(self.buffers[name] for name in ARGUMENTS[kind]), *self.options.values()]
        pointers = [address(buffer, *[0] * len(buffer.shape)) for buffer in buffers]
        shared = tirx.decl_buffer(
            (cut.shared_bytes,), "uint8", name="shared", scope="shared.dyn", data_alignment=cut.alignment
        )

        def body(block: Expr, thread: Expr) -> Stmt:
            call = vectors.call(code.name, block, address(shared, 0), *pointers, source=code.source)
            return build.seq(vectors.allocated(shared, cut.shared_bytes), call)

        rows, heads = (sizes.keys, sizes.groups) if kind == "keys" else (sizes.length, sizes.heads)
        return launch(sizes.batch * heads * build.ceil_div(rows, cut.rows), cut.threads, body)
