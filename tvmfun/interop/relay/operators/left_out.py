"""Operators that are not read, and the reasons."""

from __future__ import annotations

_BITS = "its numbers are packed bit by bit, for a kernel of its own"
_PACKED = "its weights are stored for one schedule, which is not chosen here"
_DATA = "the sizes of the result depend on data"
_QUANTIZED = "quantized arithmetic has no derivative: convert the program before it is quantized"
_DYNAMIC = "its sizes are arrays: with sizes that are known, FoldConstant and DynamicToStatic of TVM remove it"
_DETECTION = "there is no translation of operators that detect objects"
_SPARSE = "there are no sparse matrices"
_LOWERED = "the program has been lowered to kernels already"

#: The operators of levels 1 to 4 and of `nn` that are not read, and others by the beginning of their names.
LEFT_OUT: dict[str, str] = {
    "argwhere": _DATA,
    "fixed_point_multiply": _QUANTIZED,
    "image.crop_and_resize": _DETECTION,
    "image.dilation2d": "there is no translation of morphological operators",
    "nn.bitpack": _BITS,
    "nn.bitserial_conv2d": _BITS,
    "nn.bitserial_dense": _BITS,
    "nn.contrib_conv2d_NCHWc": _PACKED,
    "nn.contrib_conv2d_winograd_weight_transform": _PACKED,
    "nn.contrib_conv2d_winograd_without_weight_transform": _PACKED,
    "nn.contrib_conv3d_winograd_weight_transform": _PACKED,
    "nn.contrib_conv3d_winograd_without_weight_transform": _PACKED,
    "nn.contrib_dense_pack": _PACKED,
    "nn.contrib_depthwise_conv2d_NCHWc": _PACKED,
    "nn.correlation": "there is no translation of correlation layers",
    "nn.deformable_conv2d": "there is no translation of deformable convolutions",
    "nn.fifo_buffer": "it keeps a state between calls",
    "nn.sparse_add": _SPARSE,
    "nn.sparse_dense": _SPARSE,
    "nn.sparse_transpose": _SPARSE,
    "unique": _DATA,
}
_BEGINNINGS = {
    "call_lowered": _LOWERED,
    "dyn.": _DYNAMIC,
    "memory.": _LOWERED,
    "nn.contrib_": _PACKED,
    "qnn.": _QUANTIZED,
    "random.": "random numbers come from keys here",
    "vision.": _DETECTION,
    "vm.": _LOWERED,
}


def reason_left_out(name: str) -> str:
    """The reason why an operator is not read."""
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    return next((why for begin, why in _BEGINNINGS.items() if name.startswith(begin)), "the table has no translation")
