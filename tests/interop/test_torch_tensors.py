"""Tensors of PyTorch as arguments and in ``asarray``: any strides, offsets and dtypes, and signs that are pending."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp

torch = pytest.importorskip("torch")

READERS = [
    pytest.param(tnp.asarray, id="asarray"),
    pytest.param(tnp.from_dlpack, id="from_dlpack"),
    pytest.param(lambda x: tvmfun.jit(lambda x: x * 1)(x), id="jit"),
    pytest.param(lambda x: tvmfun.jit(lambda: tnp.asarray(x))(), id="closure"),
    pytest.param(lambda x: tnp.add(x, 0), id="function"),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
def test_layouts(read, dtype):
    x = torch.arange(24).reshape(4, 6).to(dtype)
    views = [x, x.T, x[1:], x[:, 0], x[::2, ::3], x.expand(2, 4, 6), x[0, 1], x[:0], x[1, 1:], torch.ones(1).to(dtype)]
    for view in [*views, torch.ones(1).to(dtype).expand(4)]:
        got = read(view)
        assert got.dtype == str(dtype).removeprefix("torch.")
        np.testing.assert_array_equal(np.asarray(got).astype("float64"), view.to(torch.float64).numpy())


@pytest.mark.parametrize("read", READERS)
def test_pending_sign(read):
    view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert view.is_neg()
    for x in (view, view[1:], view.reshape(2, 1).T):
        np.testing.assert_array_equal(read(x), x.resolve_neg().numpy())


def test_array_does_not_follow_the_tensor():
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.ones(3, 2, dtype=dtype)
        arrays = [tnp.asarray(x), tnp.asarray(x.T)]
        x[:] = 5
        assert all(float(array.max()) == 1 for array in arrays)
