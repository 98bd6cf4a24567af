"""Bessel functions."""

from __future__ import annotations

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError
from tvmfun.lax.special import in_full_precision
from tvmfun.lax.staging import compiled, with_partials
from tvmfun.numpy.promotion import operands
from tvmfun.scipy.special import tables
from tvmfun.scipy.special.chebyshev import chebyshev
from tvmfun.typing import ArrayLike


def _i0e(x: Array) -> Array:
    size = tnp.abs(x)
    small, large = tnp.minimum(size, 8.0), tnp.maximum(size, 8.0)
    far = chebyshev(16 / large - 1, tables.I0E_LARGE) / tnp.sqrt(large)
    return tnp.where(size <= 8, chebyshev(small / 4 - 1, tables.I0E_SMALL), far)


def _i1e(x: Array) -> Array:
    size = tnp.abs(x)
    small, large = tnp.minimum(size, 8.0), tnp.maximum(size, 8.0)
    far = tnp.sign(x) * chebyshev(16 / large - 1, tables.I1E_LARGE) / tnp.sqrt(large)
    return tnp.where(size <= 8, x * chebyshev(small / 4 - 1, tables.I1E_SMALL), far)


def _i1e_slope(o: Array, x: Array) -> Array:
    # I1(x) / x is 1/2 at 0.
    is_tiny = tnp.abs(x) < 1e-20
    safe = tnp.where(is_tiny, 1.0, x)
    ratio = tnp.where(is_tiny, 0.5, _I1E(safe) / safe)
    return _I0E(x) - tnp.sign(x) * _I1E(x) - ratio


_I0E = compiled()(with_partials(_i0e, (lambda o, x: _I1E(x) - tnp.sign(x) * _I0E(x),)))
_I1E = compiled()(with_partials(_i1e, (_i1e_slope,)))
_I0 = compiled()(with_partials(lambda x: tnp.exp(tnp.abs(x)) * _i0e(x), (lambda o, x: tnp.exp(tnp.abs(x)) * _I1E(x),)))
_I1 = compiled()(
    with_partials(
        lambda x: tnp.exp(tnp.abs(x)) * _i1e(x),
        (lambda o, x: tnp.exp(tnp.abs(x)) * (_i1e_slope(o, x) + tnp.sign(x) * _I1E(x)),),
    )
)


def i0(x: ArrayLike) -> Array:
    """Returns the modified Bessel function of the first kind of order 0, elementwise.

    >>> round(float(i0(1.0)), 5)
    1.26607
    """
    return in_full_precision("i0", _I0, x)


def i0e(x: ArrayLike) -> Array:
    r"""Returns :math:`e^{-|x|} I_0(x)`, elementwise.

    >>> round(float(i0e(1.0)), 5)
    0.46576
    """
    return in_full_precision("i0e", _I0E, x)


def i1(x: ArrayLike) -> Array:
    """Returns the modified Bessel function of the first kind of order 1, elementwise.

    >>> round(float(i1(1.0)), 5)
    0.56516
    """
    return in_full_precision("i1", _I1, x)


def i1e(x: ArrayLike) -> Array:
    r"""Returns :math:`e^{-|x|} I_1(x)`, elementwise.

    >>> round(float(i1e(1.0)), 5)
    0.20791
    """
    return in_full_precision("i1e", _I1E, x)


def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Array:
    """Returns the Bessel functions of the first kind of the orders 0 to ``v``, on a new first axis.

    Args:
        z: floats.
        v: the largest order, an integer that is not negative.
        n_iter: the order at which the recurrence begins, larger than ``v``. The result is accurate for arguments that
            are smaller than about half of it.

    Raises:
        ArgumentError: if ``v`` or ``n_iter`` is not such an integer.

    Source: Miller's backward recurrence, https://dlmf.nist.gov/3.6.vi.

    >>> [round(float(x), 5) for x in bessel_jn(1.0, v=1)]
    [0.7652, 0.44005]
    """
    if not (hasattr(v, "__index__") and hasattr(n_iter, "__index__") and 0 <= int(v) < int(n_iter)):
        raise ArgumentError("bessel_jn", "0 <= v < n_iter must hold", got=f"v={v!r}, n_iter={n_iter!r}")
    z = tnp.asarray(operands("bessel_jn", z, floating=True)[0])
    order, start = int(v), int(n_iter)
    safe = tnp.where(z == 0, 1.0, z)
    big = float(tnp.finfo(z.dtype).max) ** 0.25

    def step(state: tuple, k: Array) -> tuple:
        above, here, kept, norm = state
        below = 2 * k / safe * here - above  # of order k - 1
        scale = lax.stop_gradient(tnp.where(tnp.abs(below) > big, 1 / big, tnp.ones_like(below)))
        below, here, kept, norm = below * scale, here * scale, kept * scale, norm * scale
        at = tnp.arange(order + 1, dtype=z.dtype) == k - 1
        kept = tnp.where(tnp.reshape(at, (order + 1,) + (1,) * z.ndim), below, kept)
        is_even = (k - 1) % 2 == 0
        norm = norm + tnp.where(k == 1, below, tnp.where(is_even, 2 * below, 0.0))
        return (here, below, kept, norm), None

    zero = tnp.zeros_like(z)
    init = (zero, zero + 1, tnp.zeros((order + 1, *z.shape), z.dtype), zero)
    (_, _, kept, norm), _ = lax.scan(step, init, tnp.arange(start, 0, -1, dtype=z.dtype))
    at_zero = tnp.reshape(tnp.arange(order + 1) == 0, (order + 1,) + (1,) * z.ndim)
    return tnp.where(z == 0, tnp.astype(at_zero, z.dtype), kept / norm)
