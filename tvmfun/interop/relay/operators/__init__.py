"""Relay's operators as compositions of functions of tvmfun: a table, and modules by family that fill it."""

from tvmfun.interop.relay.operators import (
    creation,
    elements,
    images,
    indexing,
    normalization,
    products,
    reductions,
    shapes,
    windows,
)
from tvmfun.interop.relay.operators.left_out import LEFT_OUT, reason_left_out
from tvmfun.interop.relay.operators.table import (
    TRANSLATIONS,
    Attribute,
    Translation,
    check_sizes,
    read_attributes,
)

__all__ = [
    "LEFT_OUT",
    "TRANSLATIONS",
    "Attribute",
    "Translation",
    "check_sizes",
    "creation",
    "elements",
    "images",
    "indexing",
    "normalization",
    "products",
    "read_attributes",
    "reason_left_out",
    "reductions",
    "shapes",
    "windows",
]
