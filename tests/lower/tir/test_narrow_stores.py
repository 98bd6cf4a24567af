"""Short loops of narrowing stores write nothing past the array, for every length of the last step."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

# Lengths of which one element is left for vectors of 4, 8, 16 or 32, in a short loop or in the last of several.
SHAPES = ((9,), (13,), (33,), (73,), (137,), (201,), (3, 67), (9, 5))
TRUNCATING = {
    "bfloat16": lambda x: x.astype("bfloat16") * tnp.cos(x.astype("bfloat16")),
    "bfloat16 in a loop": lambda x: lax.fori_loop(0, 2, lambda i, c: tnp.cos(c) * c, x.astype("bfloat16")),
    "int8": lambda x: tnp.arctan(x * 50).astype("int8"),
    "uint16": lambda x: (tnp.tan(x) * 1000).astype("uint16"),
    "bool": lambda x: tnp.sin(x * 9) > 0,
    "int64 to int32": lambda x: tnp.cos(x.astype("bfloat16")).astype("int64").astype("int32"),
    "several": lambda x: (tnp.cos(x).astype("int8"), tnp.sin(x).astype("bfloat16")),
}


@pytest.mark.quick("int64 to int32")
@pytest.mark.parametrize("name", TRUNCATING)
def test_nothing_is_written_behind_an_array(name: str):
    for shape in SHAPES:
        x = np.linspace(0.1, 1.3, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        tvmfun.check(TRUNCATING[name])(x)


def test_nothing_is_written_behind_a_product():
    for size in (9, 201):
        x = np.linspace(0.1, 1.3, size, dtype=np.float32).astype(ml_dtypes.bfloat16)
        tvmfun.check(lambda x, y: y * tnp.cos(x))(x, x)
