"""Updates in loops, several in turn, which are all written over the carry: against JAX, and without copies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp

X = np.sin(np.arange(70, dtype="float32"))


def _read_between(np, i, c):
    d = c.at[i].set(c[i + 3] + 1)
    return d.at[i + 1].set(d[i] * 2 + c[i + 2])


def _old_read_later(np, i, c):
    d = c.at[i].set(c[i + 3] + 1)
    return d.at[i + 1].set(d[i] * 2) + c[i] * 0


def _sum_between(np, i, c):
    d = c.at[i].set(3.0)
    return d.at[i + 1].set(d.sum() * 1e-3)


def _view_between(np, i, c):
    d = c.at[i].set(3.0)
    return d.at[i + 1].set(d.reshape(-1, 10)[1, 2])


def _chosen(np, i, c):
    d = c.at[i + 2].set(c[i])
    return np.where(i % 2 == 0, d.at[i].set(c[i + 1]), d)


def _rows(np, i, c):
    m = c.reshape(-1, 10)
    return m.at[i % 7].set(m[(i + 3) % 7]).at[(i + 3) % 7].set(m[i % 7]).reshape(-1)


#: Updates of ``c`` at step ``i``, and whether they are in the memory of the carry.
UPDATES = {
    "two": (lambda np, i, c: c.at[i].set(1.5).at[i + 1].set(2.0), True),
    "swap": (lambda np, i, c: c.at[i].set(c[i + 5]).at[i + 5].set(c[i]), True),
    "three": (lambda np, i, c: c.at[i].add(1.0).at[i + 1].multiply(2.0).at[i + 2].max(c[i]), True),
    "one index": (lambda np, i, c: c.at[i].set(7.0).at[i].set(c[i]), True),
    "several": (
        lambda np, i, c: c.at[np.asarray([1, 2, 3]) + i].add(c[np.asarray([4, 4, 9]) + i]).at[i].add(1.0),
        True,
    ),
    "read between": (_read_between, False),
    "old value read later": (_old_read_later, False),
    "old array added": (lambda np, i, c: c.at[i].set(1.0).at[i + 1].set(2.0) + c * 0.5, False),
    "sum between": (_sum_between, True),
    "view between": (_view_between, False),
    "chosen": (_chosen, False),
    "rows": (_rows, False),
}


def _looped(lib, np, update, how):
    lax = lib.lax
    loops = {
        "fori": lambda x: lax.fori_loop(0, 9, lambda i, c: update(np, i, c), x),
        "two carries": lambda x: lax.fori_loop(0, 9, lambda i, c: (update(np, i, c[0]), c[0][i] + c[1]), (x, 0.0)),
        "swapped carries": lambda x: lax.fori_loop(0, 9, lambda i, c: (update(np, i, c[1]), c[0]), (x, x * 2)),
        "old rows": lambda x: lax.scan(lambda c, i: (update(np, i, c), c), x, np.arange(5)),
        "new rows": lambda x: lax.scan(lambda c, i: (lambda d: (d, d))(update(np, i, c)), x, np.arange(5)),
        "while": lambda x: lax.while_loop(lambda s: s[0] < 6, lambda s: (s[0] + 1, update(np, s[0], s[1])), (0, x)),
        "vmap": lambda x: lib.vmap(lambda x: lax.fori_loop(0, 9, lambda i, c: update(np, i, c), x))(np.stack([x, -x])),
        "branch": lambda x: lax.cond(x[0] > -9, lambda x: update(np, 2, x), lambda x: x, x),
        "nested": lambda x: lax.fori_loop(
            0, 3, lambda j, x: lax.fori_loop(0, 4, lambda i, c: update(np, i + j, c), x), x
        ),
        "straight": lambda x: update(np, 3, x),
        "gradient": lib.grad(
            lambda x: (lax.scan(lambda c, i: (update(np, i, c), c.sum()), x, np.arange(5))[0] ** 2).sum()
        ),
    }
    return lib.jit(loops[how])(np.asarray(X))


@pytest.mark.parametrize("name", UPDATES)
def test_updates_are_jaxs(name):
    update, _ = UPDATES[name]
    hows = ["fori", "two carries", "swapped carries", "old rows", "new rows", "while", "vmap", "branch", "nested"]
    for how in [*hows, "straight", *(["gradient"] if name != "three" else [])]:
        got, want = _looped(tvmfun, tnp, update, how), _looped(jax, jnp, update, how)
        for one, other in zip(tvmfun.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=how)


@pytest.mark.parametrize("name", UPDATES)
def test_updates_do_not_copy(name):
    update, is_in_place = UPDATES[name]
    loop = tvmfun.jit(lambda x: tvmfun.lax.fori_loop(0, 9, lambda i, c: update(tnp, i, c), x))
    text = loop.lower(tvmfun.ShapeDtype((100_000,), "float32")).compile().as_text()
    body = text.partition("def loop")[2]
    assert ("sblock_alloc_buffer((100000,))" not in body and "alloc_buffer((10000, 10))" not in body) == is_in_place
