"""C's remainder of floats, ``fmod``.

``fmod(a, b)`` is exact for any quotient: ``|a| - k |b|`` with the sign of ``a``, where ``k`` is ``|a| / |b|`` rounded
towards zero. Nearly all remainders that programs take have small quotients, and for these two instructions are enough.
Let ``p`` be the number of bits of the significand (24 or 53), ``a, b >= 0`` from here on, ``d`` the quotient ``a / b``
rounded to nearest, ``q = trunc(d)``, and ``r = a - q b`` with one rounding at most (a fused multiply-add).

If ``d < 2**p``, this is the remainder, or becomes it by adding ``b`` once where it is negative:

- ``k <= a / b < k + 1``, and both ends are floats, because ``k < 2**p``. Rounding is monotonic, so ``k <= d <= k + 1``,
  and ``q`` is ``k`` or ``k + 1``.
- If ``a < b``, the remainder is ``a`` itself, also where ``b`` is infinite; that case is selected. Otherwise both are
  multiples of the unit in the last place of ``b``, and so is ``a - q b``, which lies in ``[-b, b)``: a float, so that
  nothing is rounded. The same holds for the sum with ``b``, which lies in ``[0, b)``. Subnormal numbers are multiples
  of their unit, too.

Everything else (larger quotients, an infinite ``a``, ``b = 0``, NaN) fails ``d < 2**p``, except an infinite ``b``,
which is right as it is.
"""

from __future__ import annotations

from tvm import tirx

from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.vector_math.formats import Name, format_of


def fmod(x: Expr, y: Expr, name: Name) -> tuple[Expr, Expr]:
    """The remainder of a division whose quotient is rounded towards zero."""
    own = format_of(x)
    zero = own.number(0.0)
    a, b = own.size(x, name), own.size(y, name)
    quotient = name(tirx.div(a, b))
    # LLVM's intrinsic, because TVM's may round twice.
    fused = tirx.call_llvm_pure_intrin(own.vector(own.dtype), "llvm.fma", zero - tirx.trunc(quotient), b, a)
    rest = name(fused)
    rest = name(tirx.Select(rest < zero, rest + b, rest))
    rest = name(tirx.Select(a < b, a, rest))
    return own.signed(rest, x, name), quotient < own.number(2.0 ** (own.fraction + 1))
