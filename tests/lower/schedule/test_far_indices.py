"""Indices far outside of arrays, behind conditions that say that they are inside: nothing is read there.

A read outside would end the process, so they run in one of their own.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np, tvmfun, tvmfun.numpy as tnp
from tvmfun import lax

inside = lambda i, n: (i >= 0) & (i < n)
CASES = {
    "along": lambda y, i: tnp.take_along_axis(y, i, 0),
    "along the first of two": lambda y, i: tnp.take_along_axis(y[:, None], i[:, None], 0),
    "fill": lambda y, i: tnp.take(y, i, mode="fill"),
    "get": lambda y, i: y.at[i].get(mode="fill", fill_value=np.nan),
    "rows": lambda y, i: tnp.take(y.reshape(5, 2), i, 0, mode="fill"),
    "where": lambda y, i: tnp.where(inside(i // 3, 10), tnp.take(y, i // 3, mode="clip"), np.nan),
    "slice": lambda y, i: tnp.where(inside(i[0] // 3, 3), lax.dynamic_slice(y, [i[0] // 3], [8]), np.nan),
    "loop": lambda y, i: lax.scan(lambda c, j: (c, tnp.take_along_axis(y, j[None], 0)), 0.0, i)[1],
}
is_batched = sys.argv[1] == "batched"
for name, function in CASES.items():
    function = tvmfun.jit(tvmfun.vmap(function, in_axes=(None, 0)) if is_batched else function)
    for dtype in ("int32", "int64"):
        for value in (-(10**8), 2**30, -(2**31), 2**31 - 1):
            i = np.full((3, 7) if is_batched else 7, value, dtype)
            result = np.asarray(function(tnp.arange(10, dtype="float32"), i))
            assert np.isnan(result).all(), (name, value, dtype, result)
print("done")
"""


@pytest.mark.parametrize("kind", ["single", "batched"])
def test_far_indices(kind):
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True)
    assert done.stdout.strip() == "done", done.stderr[-2000:]
