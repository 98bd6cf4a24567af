"""Likewise for normalizations, products, windows and images; see :mod:`interop.relay_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interop.relay_cases import CUBE, IMAGE, ONE, case, floats

torch = pytest.importorskip("torch")
F = torch.nn.functional

# -- normalizations and losses -----------------------------------------------------------------------------------------

AFFINE = (floats(4, seed=1), floats(4, seed=2))
STATISTICS = (floats(4, seed=3), floats(4, seed=4, low=0.5, high=2.0))


def batch_norm(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float = 1e-5) -> Any:
    own = lambda v: v.reshape(-1, 1, 1)
    return (x - own(mean)) / torch.sqrt(own(var) + eps) * own(gamma) + own(beta), mean, var


case("nn.batch_norm", (IMAGE, *AFFINE, *STATISTICS), batch_norm)
case(
    "nn.batch_norm",
    (IMAGE, *AFFINE, *STATISTICS),
    lambda x, g, b, m, v: batch_norm(x, 1 + 0 * g, 0 * b, m, v, 0.1),
    "epsilon=0.1f, center=False, scale=False",
)
case("nn.layer_norm", (CUBE, *AFFINE), lambda x, g, b: F.layer_norm(x, (4,), g, b))
case(
    "nn.layer_norm",
    (floats(2, 4, 3), *AFFINE),
    lambda x, g, b: F.layer_norm(x.mT, (4,), g, b, 1e-3).mT,
    "axis=1, epsilon=0.001f",
)
case("nn.instance_norm", (IMAGE, *AFFINE), lambda x, g, b: F.instance_norm(x, weight=g, bias=b))
case("nn.group_norm", (IMAGE, *AFFINE), lambda x, g, b: F.group_norm(x, 2, g, b), "num_groups=2")
case("nn.l2_normalize", CUBE, lambda x: F.normalize(x, dim=1), "eps=1e-10f, axis=[1]")
case("nn.lrn", floats(1, 7, 3, 3), lambda x: F.local_response_norm(x, 5, 0.02, 0.75, 2.0), "alpha=0.02f")
case("nn.dropout", ONE, lambda x: (x, torch.ones_like(x)), "rate=0.3f")
PROBABILITIES = (floats(3, 4, low=0.1, high=0.9), floats(3, 4, seed=1, low=0.1, high=0.9))
case("nn.cross_entropy", PROBABILITIES, lambda p, t: -(p.log() * t).sum() / 3)
case("nn.cross_entropy_with_logits", PROBABILITIES, lambda p, t: -(p * t).sum() / 3)
TARGETS = np.array([1, 3, 0], "int64")
case(
    "nn.nll_loss",
    (ONE, TARGETS, floats(4, low=0.5, high=1.0)),
    lambda x, t, w: -(x[range(3), t] * w[t]).sum() / w[t].sum(),
)
case(
    "nn.nll_loss",
    (ONE, TARGETS, floats(4, low=0.5, high=1.0)),
    lambda x, t, w: torch.where(t == 3, 0.0, -x[range(3), t] * w[t]),
    'reduction="none", ignore_index=3',
)

# -- products ----------------------------------------------------------------------------------------------------------

case("nn.dense", (ONE, floats(5, 4, seed=1)), F.linear, "units=5")
case("nn.dense", (CUBE, floats(5, 4, seed=1)), F.linear, "units=None")
case("nn.matmul", (ONE, floats(3, 5, seed=1)), lambda x, y: x.mT @ y, "units=5, transpose_a=True")
BATCHES = (floats(2, 3, 4), floats(2, 4, 5, seed=1))
case("nn.batch_matmul", BATCHES, torch.matmul)
case("nn.batch_matmul", (floats(2, 3, 4), floats(1, 5, 4, seed=1)), lambda x, y: x @ y.mT, "transpose_b=True")
case("einsum", (BATCHES,), lambda xs: torch.einsum("bij,bjk->kb", *xs), 'equation="bij,bjk->kb"')
KERNEL = floats(6, 4, 3, 2, seed=1)
case(
    "nn.conv1d",
    (floats(2, 4, 9), floats(6, 2, 3, seed=1)),
    lambda x, k: F.conv1d(x, k, None, 2, 1, 2, 2),
    "strides=[2], padding=[1, 1], dilation=[2], groups=2, channels=6, kernel_size=[3]",
)
case("nn.conv2d", (IMAGE, KERNEL), F.conv2d)
case(
    "nn.conv2d",
    (IMAGE, KERNEL),
    lambda x, k: F.conv2d(F.pad(x, (2, 0, 1, 3)), k, None, (2, 1), 0, (1, 2)),
    "strides=[2, 1], padding=[1, 2, 3, 0], dilation=[1, 2], channels=6, kernel_size=[3, 2]",
)
nhwc = lambda x: x.permute(0, 2, 3, 1)
case(
    "nn.conv2d",
    (floats(2, 6, 5, 4), floats(3, 2, 4, 6, seed=1)),
    lambda x, k: nhwc(F.conv2d(x.permute(0, 3, 1, 2), k.permute(3, 2, 0, 1), padding=1)),
    'padding=[1, 1, 1, 1], data_layout="NHWC", kernel_layout="HWIO"',
)
case(
    "nn.conv2d",
    (floats(2, 6, 5, 4), floats(3, 3, 4, 1, seed=1)),
    lambda x, k: F.conv2d(x.permute(0, 3, 1, 2), k.permute(2, 3, 0, 1), groups=4),
    'groups=4, channels=4, data_layout="NHWC", kernel_layout="HWOI", out_layout="NCHW"',
)
case(
    "nn.conv2d",
    (IMAGE, floats(4, 2, 3, 3, seed=1)),
    lambda x, k: F.conv2d(x, k.reshape(8, 1, 3, 3), groups=4),
    "groups=4, channels=8, kernel_size=[3, 3]",
)
case(
    "nn.conv3d",
    (floats(1, 2, 4, 5, 3), floats(3, 2, 2, 2, 2, seed=1)),
    lambda x, k: F.conv3d(x, k, None, 2, (1, 0, 1)),
    "strides=[2, 2, 2], padding=[1, 0, 1]",
)
case(
    "nn.conv1d_transpose",
    (floats(2, 4, 5), floats(4, 3, 3, seed=1)),
    lambda x, k: F.conv_transpose1d(x, k, None, 2, 1, 1),
    "strides=[2], padding=[1, 1], output_padding=[1], channels=3",
)
case(
    "nn.conv2d_transpose",
    (IMAGE, floats(4, 3, 3, 2, seed=1)),
    lambda x, k: F.conv_transpose2d(x, k, None, (2, 1), (1, 0), (1, 0), 1, 1),
    "channels=3, kernel_size=[3, 2], strides=[2, 1], padding=[1, 0, 1, 0], output_padding=[1, 0]",
)
case(
    "nn.conv2d_transpose",
    (IMAGE, floats(4, 3, 3, 3, seed=1)),
    lambda x, k: F.conv_transpose2d(x, k, None, 2, 1, 0, 2, 2),
    "groups=2, dilation=[2, 2], strides=[2, 2], padding=[1, 1]",
)
case(
    "nn.conv2d_transpose",
    (floats(2, 6, 5, 4), floats(3, 3, 3, 4, seed=1)),
    lambda x, k: nhwc(F.conv_transpose2d(x.permute(0, 3, 1, 2), k.permute(3, 2, 0, 1))),
    'data_layout="NHWC", kernel_layout="HWOI"',
)
case(
    "nn.conv3d_transpose",
    (floats(1, 2, 3, 4, 3), floats(2, 3, 2, 2, 2, seed=1)),
    lambda x, k: F.conv_transpose3d(x, k, None, 2),
    "strides=[2, 2, 2], channels=3",
)


def kernel_gradient(gradient: Any, x: Any) -> Any:
    kernel = torch.zeros(6, 4, 3, 2, dtype=x.dtype, requires_grad=True)
    loss = (F.conv2d(x, kernel, None, 2, 1) * gradient).sum()
    return torch.autograd.grad(loss, kernel)[0]


case(
    "nn.conv2d_backward_weight",
    (floats(2, 6, 3, 3), IMAGE),
    kernel_gradient,
    'strides=[2, 2], padding=[1, 1], kernel_size=[3, 2], kernel_layout="NCHW", out_layout="OIHW"',
    derivative=False,
)

# -- windows -----------------------------------------------------------------------------------------------------------

LINE, VOLUME = floats(2, 3, 9), floats(1, 2, 5, 6, 4)
for _rank, _x in ((1, LINE), (2, IMAGE), (3, VOLUME)):
    _sizes = f"pool_size={[3] * _rank}, strides={[2] * _rank}, padding={[1] * _rank}"
    _max, _avg = (getattr(F, f"{kind}_pool{_rank}d") for kind in ("max", "avg"))
    case(f"nn.max_pool{_rank}d", _x, lambda x, f=_max: f(x, 3, 2, 1), _sizes)
    case(
        f"nn.max_pool{_rank}d",
        _x,
        lambda x, f=_max: f(x, 2, 2, 0, 1, True),
        f"pool_size={[2] * _rank}, strides={[2] * _rank}, ceil_mode=True",
    )
    case(f"nn.avg_pool{_rank}d", _x, lambda x, f=_avg: f(x, 3, 2, 1, False, False), _sizes)
    case(f"nn.avg_pool{_rank}d", _x, lambda x, f=_avg: f(x, 3, 2, 1), f"{_sizes}, count_include_pad=True")
    case(f"nn.global_max_pool{_rank}d", _x, lambda x: x.amax(tuple(range(2, x.ndim)), keepdim=True))
    case(f"nn.global_avg_pool{_rank}d", _x, lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True))
    _size = {1: (4,), 2: (2, 3), 3: (2, 3, 4)}[_rank]
    for _kind in ("max", "avg"):
        _adaptive = getattr(F, f"adaptive_{_kind}_pool{_rank}d")
        case(
            f"nn.adaptive_{_kind}_pool{_rank}d",
            _x,
            lambda x, f=_adaptive, s=_size: f(x, s),
            f"output_size={list(_size)}",
        )
case("nn.max_pool2d", IMAGE, lambda x: F.max_pool2d(x, (2, 3), 1, 0, (2, 1)), "pool_size=[2, 3], dilation=[2, 1]")
case(
    "nn.avg_pool2d",
    floats(2, 6, 5, 4),
    lambda x: nhwc(F.avg_pool2d(x.permute(0, 3, 1, 2), 2, 2)),
    'pool_size=[2, 2], strides=[2, 2], layout="NHWC"',
)


def pool_gradient(function: Callable) -> Callable:
    def oracle(gradient: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad((function(x) * gradient).sum(), x)[0]

    return oracle


POOLED = (floats(2, 4, 3, 3), IMAGE)
case(
    "nn.max_pool2d_grad",
    POOLED,
    pool_gradient(lambda x: F.max_pool2d(x, 3, 2, 1)),
    "pool_size=[3, 3], strides=[2, 2], padding=[1, 1]",
    derivative=False,
)
case(
    "nn.avg_pool2d_grad",
    POOLED,
    pool_gradient(lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1], count_include_pad=True",
    derivative=False,
)

# -- images ------------------------------------------------------------------------------------------------------------

FLOATS = floats(2, 4, 6, 5, dtype="float32")
for _rank, _x, _size, _mode in (
    (1, LINE, (14,), "linear"),
    (2, FLOATS, (9, 7), "bilinear"),
    (3, VOLUME, (7, 9, 6), "trilinear"),
):
    _x = _x.astype("float32")
    for _coordinates, _align in (("half_pixel", False), ("align_corners", True)):
        _options = f'size={list(_size)}, coordinate_transformation_mode="{_coordinates}"'
        case(
            f"image.resize{_rank}d",
            _x,
            lambda x, m=_mode, s=_size, a=_align: F.interpolate(x, s, mode=m, align_corners=a),
            _options,
        )
case(
    "image.resize2d",
    FLOATS,
    lambda x: F.interpolate(x, (9, 7), mode="bicubic", align_corners=False),
    'size=[9, 7], method="cubic", cubic_alpha=-0.75f',
)
case(
    "image.resize2d",
    FLOATS,
    lambda x: F.interpolate(x, (12, 10), mode="nearest"),
    'size=[12, 10], method="nearest_neighbor", coordinate_transformation_mode="asymmetric", rounding_method="floor"',
)
case("nn.upsampling", FLOATS, lambda x: F.interpolate(x, (12, 15), mode="nearest"), "scale_h=2f, scale_w=3f")
case(
    "nn.upsampling",
    FLOATS,
    lambda x: F.interpolate(x, (12, 10), mode="bilinear", align_corners=True),
    'scale_h=2f, scale_w=2f, method="bilinear", align_corners=True',
)
case(
    "image.resize2d",
    FLOATS,
    lambda x: x[:, :, :1, :1],
    'size=[1, 1], coordinate_transformation_mode="align_corners"',
)
case(
    "nn.upsampling3d",
    VOLUME.astype("float32"),
    lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
    'scale_d=2f, scale_h=2f, scale_w=2f, method="trilinear"',
)
THETA = np.array([[[0.9, 0.1, 0.05], [-0.1, 0.8, 0.1]]], "float32")
case(
    "image.affine_grid",
    THETA,
    lambda t: F.affine_grid(t, (1, 1, 4, 5), align_corners=True).permute(0, 3, 1, 2),
    "target_shape=[4, 5]",
)
GRID = floats(2, 2, 3, 4, seed=1, low=-1.2, high=1.2)
case("image.grid_sample", (IMAGE, GRID), lambda x, g: F.grid_sample(x, g.permute(0, 2, 3, 1), align_corners=True))
case(
    "image.grid_sample",
    (IMAGE, GRID),
    lambda x, g: F.grid_sample(x, g.permute(0, 2, 3, 1), padding_mode="border", align_corners=False),
    'padding_mode="border", align_corners=False',
)
