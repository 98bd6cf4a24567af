"""Translation from Relax: operators that are not ops here become compositions of ops.

``Program.from_relax`` looks them up in this package. The table of all operators is in ``docs/ops.md``.
"""

from tvmfun.interop.relax import (
    arrays,
    elements,
    gradients,
    image,
    indexing,
    layers,
    products,
    reductions,
    vision,
    windows,
)
from tvmfun.interop.relax.table import LEFT_OUT, TRANSLATIONS, by_record, legalizable, markdown, translate

__all__ = [
    "LEFT_OUT",
    "TRANSLATIONS",
    "arrays",
    "by_record",
    "elements",
    "gradients",
    "image",
    "indexing",
    "layers",
    "legalizable",
    "markdown",
    "products",
    "reductions",
    "translate",
    "vision",
    "windows",
]
