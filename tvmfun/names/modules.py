"""Names that a module does not have.

Every public module ends with ``__getattr__ = missing(__name__)``. The search is postponed until the error is shown, so
that ``hasattr`` is cheap.
"""

from __future__ import annotations

import difflib
import dis
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from operator import itemgetter
from types import FrameType, ModuleType
from typing import Any

from tvmfun.names import jax_names, pytorch_names

#: Where names of other libraries are, and reasons why names that match a pattern do not exist.
RENAMED = jax_names.RENAMED | pytorch_names.RENAMED
REASONS = jax_names.REASONS | pytorch_names.REASONS

#: The public modules, in the order of the search.
MODULES = (
    "tvmfun",
    "tvmfun.numpy",
    "tvmfun.lax",
    "tvmfun.nn",
    "tvmfun.nn.functional",
    "tvmfun.random",
    "tvmfun.tree",
    "tvmfun.optim",
    "tvmfun.numpy.linalg",
    "tvmfun.lax.linalg",
    "tvmfun.nn.init",
    "tvmfun.nn.losses",
    "tvmfun.optim.losses",
    "tvmfun.optim.assignment",
    "tvmfun.optim.perturbations",
    "tvmfun.optim.projections",
    "tvmfun.tree_util",
    "tvmfun.flatten_util",
    "tvmfun.image",
    "tvmfun.scipy.special",
    "tvmfun.scipy.linalg",
    "tvmfun.scipy.stats",
    "tvmfun.scipy.optimize",
    "tvmfun.scipy.interpolate",
    "tvmfun.scipy.sparse.linalg",
    "tvmfun.data",
    "tvmfun.checkpoints",
    "tvmfun.metrics",
    "tvmfun.sparse",
    "tvmfun.loops",
    "tvmfun.errors",
)


class MissingNameError(AttributeError):
    """A module has no such attribute; the message says where it is, or why it does not exist."""

    def __init__(self, module: str, attribute: str) -> None:
        super().__init__(module, attribute)

    def __str__(self) -> str:
        module, attribute = self.args
        return explained(module, attribute)

    def __reduce__(self) -> Any:
        return type(self), self.args


def missing(module: str, submodules: Sequence[str] = ()) -> Callable[[str], Any]:
    """The ``__getattr__`` of a public module.

    Args:
        module: its name.
        submodules: the submodules that are imported at their first use.

    >>> import tvmfun.numpy as tnp
    >>> tnp.cummax
    Traceback (most recent call last):
    tvmfun.names.modules.MissingNameError: [numpy] there is no 'cummax' here. Try tvmfun.lax.cummax.
    """

    def attribute(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{module}.{name}")
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if _is_imported_by(sys._getframe(1)):
            raise ImportError(explained(module, name), name=module)
        raise MissingNameError(module, name)

    return attribute


def _is_imported_by(frame: FrameType) -> bool:
    """Whether a frame executes ``from module import name``, which replaces the message of an ``AttributeError``."""
    code = frame.f_code.co_code
    return 0 <= frame.f_lasti < len(code) and dis.opname[code[frame.f_lasti]] == "IMPORT_FROM"


def explained(module: str, name: str) -> str:
    """The message for a missing name."""
    where = module.removeprefix("tvmfun.")
    if name in RENAMED:
        return f"[{where}] there is no {name!r}. Try {RENAMED[name]}."
    if hasattr(sys.modules[module], "__path__") and find_spec(f"{module}.{name}") is not None:
        return f"[{where}] the module {name!r} is not imported. Try import {module}.{name}."
    other_modules = [found.__name__ for found in _loaded() if found.__name__ != module and name in _public(found)]
    if other_modules:
        return f"[{where}] there is no {name!r} here. Try {other_modules[0]}.{name}."
    if reason := reason_for(name):
        return f"[{where}] there is no {name!r}, because {reason}."
    alike = [f"{found.__name__}.{other}" for found in _loaded() for other in _public(found) if _is_alike(name, other)]
    if alike:
        return f"[{where}] there is no {name!r}. Try {alike[0]}."
    here = _nearest(name, sys.modules[module], 0.75)
    other = max((_nearest(name, found, 0.8) for found in _loaded()), key=itemgetter(0), default=(0.0, ""))
    # A typo, of a name of this module or of another.
    near = other if other[0] > here[0] + 0.05 else here
    if near[0]:
        return f"[{where}] there is no {name!r}. Try {near[1]}."
    return f"[{where}] there is no {name!r}, nor in any other public module. Try dir({module})."


def reason_for(name: str) -> str | None:
    """Why a name does not exist, if a table has it."""
    return next((reason for pattern, reason in REASONS.items() if re.fullmatch(pattern, name)), None)


def _is_alike(name: str, other: str) -> bool:
    """Whether two names differ in capital letters and underscores only, as ``AdamW`` and ``adamw`` do."""
    return name.replace("_", "").lower() == other.replace("_", "").lower()


def _nearest(name: str, module: ModuleType, least: float) -> tuple[float, str]:
    """The similarity, from 0 to 1, of the nearest name of a module, and its full name; 0 below ``least``."""
    matches = difflib.get_close_matches(name, _public(module), 1, least)
    ratios = (difflib.SequenceMatcher(None, match, name).ratio() for match in matches)
    return next(
        ((ratio, f"{module.__name__}.{match}") for ratio, match in zip(ratios, matches, strict=True)), (0.0, "")
    )


def _public(module: ModuleType) -> list[str]:
    """The public names of a module: ``__all__``, or names without an underscore."""
    listed = getattr(module, "__all__", None)
    names = listed if listed is not None else [name for name in vars(module) if not name.startswith("_")]
    return [name for name in names if not isinstance(vars(module).get(name), ModuleType)]


def _loaded() -> Iterator[ModuleType]:
    for name in MODULES:
        try:
            yield importlib.import_module(name)
        except ImportError:  # an optional dependency is not there
            continue
