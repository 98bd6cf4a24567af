"""Names that a module does not have: where they are instead, or why there are none.

Every public module ends with ``__getattr__ = missing(__name__)``. The search is made when the error is shown, so that
``hasattr`` costs nothing.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

#: The public modules, in the order in which a name is looked for.
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
    "tvmfun.data",
    "tvmfun.checkpoints",
    "tvmfun.metrics",
    "tvmfun.sparse",
    "tvmfun.loops",
)

#: What JAX and NumPy call something else.
RENAMED = {
    "checkpointing": "tvmfun.checkpoint",
    "eval_jaxpr": "Program.evaluate of tvmfun.trace(f)(*args)",
    "grad_and_value": "tvmfun.value_and_grad",
    "make_jaxpr": "tvmfun.trace(f)(*args)",
}

#: Why there is nothing of the names that match.
REASONS = {
    r"c(omplex|double|single)\w*|ComplexWarning|eig(vals)?|roots|sort_complex|rsf2csf|funm|dft|wofz|sph_harm_y": (
        "TVM has no complex numbers"
    ),
    r"\w*fft\w*|FftType": "it is about complex numbers, which TVM does not have",
    r"(u?int[124]|float[468]_\w+)": "arrays have no dtype of less than 8 bits, and no float of less than 16",
    r"\w*[sS]hard\w*|pjit|pmap|xmap|[mM]esh\w*|NamedSharding|PartitionSpec|pcast|pvary": (
        "a program runs on one device; vmap with an axis_name has the collectives"
    ),
    r"\w*callback\w*|host_\w+|outfeed\w*|infeed\w*": "compiled modules do not call back into Python",
    r"\w+_p|Primitive|composite|dce_sink\w*|stage": "primitives of JAX's intermediate representation; ops are here",
    r"after_all|create_token|precv|psend": "there are no tokens: programs are pure functions",
    r"rng_(uniform|bit_generator)|RandomAlgorithm": "random numbers come from keys: tvmfun.random",
    r"AccuracyMode|Tolerance|DotAlgorithm\w*|\w+Implementation|SvdAlgorithm": (
        "there is one implementation of each function"
    ),
    r"platform_dependent": "a program is compiled for one target at a time: jit(target=)",
}


class MissingNameError(AttributeError):
    """An attribute that a module does not have; the message says where it is, or why there is none."""

    def __init__(self, module: str, attribute: str) -> None:
        super().__init__(module, attribute)

    def __str__(self) -> str:
        module, attribute = self.args
        return explained(module, attribute)

    def __reduce__(self) -> Any:
        return type(self), self.args


def missing(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a public module.

    >>> import tvmfun.numpy as tnp
    >>> tnp.cummax
    Traceback (most recent call last):
    tvmfun.names.MissingNameError: [numpy] there is no 'cummax' here. Try tvmfun.lax.cummax.
    """

    def attribute(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise MissingNameError(module, name)

    return attribute


def explained(module: str, name: str) -> str:
    """The message for a name that a module does not have."""
    where = module.removeprefix("tvmfun.")
    if hasattr(sys.modules[module], "__path__") and find_spec(f"{module}.{name}") is not None:
        return f"[{where}] the module {name!r} is not imported. Try import {module}.{name}."
    elsewhere = [found.__name__ for found in _loaded() if found.__name__ != module and name in _public(found)]
    if elsewhere:
        return f"[{where}] there is no {name!r} here. Try {elsewhere[0]}.{name}."
    if name in RENAMED:
        return f"[{where}] there is no {name!r}. Try {RENAMED[name]}."
    for pattern, reason in REASONS.items():
        if re.fullmatch(pattern, name):
            return f"[{where}] there is no {name!r}, because {reason}."
    near = difflib.get_close_matches(name, _public(sys.modules[module]), 1, 0.75)
    if near:
        return f"[{where}] there is no {name!r}. Try {module}.{near[0]}."
    return f"[{where}] there is no {name!r}, nor in any other public module. Try dir({module})."


def _public(module: ModuleType) -> list[str]:
    """The public names of a module: what it lists, or what is not imported from outside."""
    listed = getattr(module, "__all__", None)
    names = listed if listed is not None else [name for name in vars(module) if not name.startswith("_")]
    return [name for name in names if not isinstance(vars(module).get(name), ModuleType)]


def _loaded() -> Iterator[ModuleType]:
    for name in MODULES:
        try:
            yield importlib.import_module(name)
        except ImportError:  # an optional dependency is not there
            continue
