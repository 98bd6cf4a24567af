"""The table of ATen operators that are read, as a section of the documentation, ``docs/interop.md``."""

from __future__ import annotations

import importlib

from tvmfun.interop.coverage_page import by_family, with_section
from tvmfun.interop.torch.aten.table import TRANSLATIONS

BEGIN = "<!-- Written by `python -m tvmfun.interop.torch docs/interop.md`. -->"
END = "<!-- The end of what was written. -->"

_COMPLEX = "its result is complex, and [there are no complex numbers yet](decisions/0030-complex-numbers.md)"
_DATA = "the sizes of the result depend on data"

#: The core operators that are neither read nor decomposed, and the reasons.
LEFT_OUT: dict[str, str] = {
    "_embedding_bag": "`F.embedding(...).sum(1)` is the same for bags of one size",
    "_fft_c2r": _COMPLEX,
    "_fft_r2c": _COMPLEX,
    "_local_scalar_dense": "a Python number from data, such as `x.item()`, decides what is traced",
    "_pdist_forward": "`torch.cdist(x, x)` has all distances",
    "masked_scatter": "which element goes where depends on data",
    "nonzero": _DATA,
    "resize_": "what new elements hold is not defined",
    "sym_storage_offset": "arrays have no storage of which they are a part",
}


def markdown() -> str:
    """The section about operators, between its two comments."""
    lines = [
        BEGIN,
        "",
        f"The table has {len(TRANSLATIONS)} rows. A name without an overload stands for all of them.",
        "",
        "| Family | Operators |",
        "| --- | --- |",
    ]
    for family, names in by_family({name: row.family for name, row in TRANSLATIONS.items()}).items():
        title = (importlib.import_module(f"tvmfun.interop.torch.aten.{family}").__doc__ or family).partition(".")[0]
        lines.append(f"| {title} | {', '.join(f'`{name}`' for name in names)} |")
    lines += ["", "Of PyTorch's core operators these are left out:", "", "| Operator | Why |", "| --- | --- |"]
    lines += [f"| `{name}` | {reason} |" for name, reason in sorted(LEFT_OUT.items())]
    return "\n".join([*lines, "", END])


def updated(page: str) -> str:
    """The text of the page with the section as the table is now."""
    return with_section(page, markdown())
