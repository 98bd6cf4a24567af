"""Which public names of JAX and optax are here, module by module; the table in ``docs/from_jax.md`` says so."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tvmfun.names import jax_names

PAGE = Path(__file__).parents[2] / "docs" / "from_jax.md"
#: Names of modules, types for annotations, and JAX's internals.
NOT_COUNTED = re.compile(r"_.*|\w+_p|annotations|typing|Literal|TYPE_CHECKING|Array(Like)?|lazy_loader|deprecations")

#: Module of JAX or optax -> ours, and the least share in percent that must be there.
MODULES: dict[str, tuple[str, float]] = {
    "jax.numpy": ("tvmfun.numpy", 93),
    "jax.numpy.linalg": ("tvmfun.numpy.linalg", 93),
    "jax.lax": ("tvmfun.lax", 84),
    "jax.lax.linalg": ("tvmfun.lax.linalg", 80),
    "jax.nn": ("tvmfun.nn", 94),
    "jax.nn.initializers": ("tvmfun.nn.initializers", 100),
    "jax.random": ("tvmfun.random", 97),
    "jax.tree": ("tvmfun.tree", 100),
    "jax.tree_util": ("tvmfun.tree_util", 97),
    "jax.scipy.special": ("tvmfun.scipy.special", 96),
    "jax.scipy.linalg": ("tvmfun.scipy.linalg", 92),
    "jax.scipy.stats": ("tvmfun.scipy.stats", 100),
    "jax.scipy.interpolate": ("tvmfun.scipy.interpolate", 100),
    "jax.scipy.optimize": ("tvmfun.scipy.optimize", 100),
    "jax.scipy.sparse.linalg": ("tvmfun.scipy.sparse.linalg", 100),
    "jax": ("tvmfun", 37),
    "optax": ("tvmfun.optim", 98),
}

#: Names of modules whose list is complete: why they are not there, if the table of reasons does not say so.
REASONS: dict[str, dict[str, str]] = {
    "jax.numpy": {
        "frompyfunc": "functions are traced: vectorize",
        "ufunc": "the class that frompyfunc makes; reductions have functions of their own",
    },
    "jax.numpy.linalg": {},
    "jax.lax": {
        "DotDimensionNumbers": "a type for annotations",
        "PrecisionLike": "a type for annotations",
        "ConvGeneralDilatedDimensionNumbers": "a type for annotations",
        "RaggedDotDimensionNumbers": "see ragged_dot_general",
        "conv_general_permutations": "conv_dimension_numbers",
        "conv_general_shape_tuple": "eval_shape",
        "conv_shape_tuple": "eval_shape",
        "conv_transpose_shape_tuple": "eval_shape",
        "reduce_window_shape_tuple": "eval_shape",
        "ragged_dot_general": "ragged_dot, and vmap of it",
        "scaled_dot": "for formats of eight bits and less",
        "scatter_apply": "x.at[...].apply",
        "ragged_all_to_all": "collectives of parts of different sizes",
    },
}


def public(module: ModuleType) -> list[str]:
    """The public names of a module of JAX or optax, without modules."""
    found = (name for name in dir(module) if not NOT_COUNTED.fullmatch(name))
    return [name for name in found if not isinstance(getattr(module, name, None), ModuleType)]


def compared(theirs: str) -> tuple[list[str], list[str]]:
    """The public names of a module, and those that ours lacks."""
    listed = public(importlib.import_module(theirs))
    try:
        ours: Any = importlib.import_module(MODULES[theirs][0])
    except ImportError:
        ours = None
    return listed, [name for name in listed if not hasattr(ours, name)]


def share(listed: list[str], lacking: list[str]) -> float:
    return 100 * (len(listed) - len(lacking)) / len(listed)


@pytest.mark.parametrize("module", MODULES)
def test_most_names_are_there(module):
    listed, lacking = compared(module)
    print(f"{module}: {len(listed) - len(lacking)} of {len(listed)}; not {', '.join(lacking)}")
    assert share(listed, lacking) >= MODULES[module][1], lacking


@pytest.mark.parametrize("module", REASONS)
def test_what_is_not_there_has_a_reason(module):
    _, lacking = compared(module)
    unknown = [name for name in lacking if not any(re.fullmatch(pattern, name) for pattern in jax_names.REASONS)]
    without = [name for name in unknown if name not in REASONS[module]]
    assert without == []


def test_apart_from_complex_numbers_and_narrow_dtypes_all_but_two_names_of_jax_numpy_are_there():
    _, lacking = compared("jax.numpy")
    apart = [n for n in lacking if not any(re.fullmatch(pattern, n) for pattern in jax_names.REASONS)]
    assert sorted(apart) == sorted(REASONS["jax.numpy"])


def table() -> str:
    """The table of the page."""
    rows = ["| JAX | here | names | there |", "|---|---|---|---|"]
    for module, (ours, _) in MODULES.items():
        listed, lacking = compared(module)
        count = len(listed) - len(lacking)
        rows.append(f"| `{module}` | `{ours}` | {len(listed)} | {count} ({share(listed, lacking):.0f} %) |")
    return "\n".join(rows) + "\n"


def test_the_table_of_the_page_is_current():
    text = PAGE.read_text()
    shown = text[text.index("| JAX | here | names") :].partition("\n\n")[0] + "\n"
    # Counts belong to one version of JAX and optax.
    import jax
    import optax

    versions = re.search(r"JAX ([\d.]+) and optax ([\d.]+)", text)
    assert versions is not None
    if versions.groups() != (jax.__version__, optax.__version__):
        pytest.skip("another version")
    assert shown == table(), "python tests/names/test_table.py writes the table anew"


if __name__ == "__main__":
    page = PAGE.read_text()
    begin = page.index("| JAX | here | names")
    PAGE.write_text(page[:begin] + table() + page[begin:].partition("\n\n")[1][1:] + page[begin:].partition("\n\n")[2])
