"""Static fields of classes in a manifest, and references to classes and functions, which reading never imports."""

from __future__ import annotations

import importlib
import math
import sys
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.errors import ProgramError

_OWN = __name__.partition(".")[0]


def reference(value: Any) -> str:
    """The reference ``module:name`` to a class or function.

    Raises:
        ProgramError: if that is not where it is found.
    """
    module, name = value.__module__, value.__qualname__
    if _looked_up(module, name) is not value:
        hint = f"defining {value.__name__} at the top of a module"
        raise ProgramError(
            "Program.save", "a class or function cannot be found by its name", got=f"{module}.{name}", hint=hint
        )
    return f"{module}:{name}"


def found(text: Any) -> type:
    """The class of a reference. Only modules of this package are imported for it.

    Raises:
        ProgramError: if there is none.
        ValueError: if it is no reference to a class.
    """
    value = _found(text)
    if not isinstance(value, type):
        raise ValueError(f"{text!r} is not a class")
    return value


def found_function(text: Any) -> FunctionType:
    """The function of a reference, which must be one of this package: another one could do anything when it is called.

    Raises:
        ProgramError: if there is none.
        ValueError: if it is no reference to a function of this package.
    """
    value = _found(text) if _is_own(str(text).partition(":")[0]) else None
    if not isinstance(value, FunctionType):
        raise ValueError(f"{text!r} is not a function of {_OWN}")
    return value


def function_reference(value: FunctionType, what: str) -> str:
    """The reference to a function of this package.

    Raises:
        ProgramError: if it is another function; ``what`` names it.
    """
    if not _is_own(value.__module__):
        name = f"{value.__module__}.{value.__qualname__}"
        raise ProgramError("Program.save", f"{what} is a Python function, which a file cannot hold", got=name)
    return reference(value)


def _is_own(module: str) -> bool:
    return module == _OWN or module.startswith(f"{_OWN}.")


def _found(text: Any) -> Any:
    if not isinstance(text, str) or ":" not in text:
        raise ValueError(f"{text!r} is not a reference")
    module, _, name = text.partition(":")
    if module not in sys.modules and module.startswith(f"{_OWN}.") and not module.endswith("__main__"):
        with suppress(ImportError):  # there may be no such module, which the error below says
            importlib.import_module(module)
    value = _looked_up(module, name)
    if value is None:
        hint = f"importing {module} before loading, with the version that the file was written with"
        raise ProgramError("Program.load", "a class of the arguments and results is not found", got=text, hint=hint)
    return value


def _looked_up(module: str, name: str) -> Any:
    """A member of an imported module, or None. Reads dictionaries only, so no code of the module runs."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        if not isinstance(value, ModuleType | type):
            return None
        value = vars(value).get(part)
        value = value.__func__ if isinstance(value, staticmethod) else value
    return value


def written_static(value: Any, name: str) -> Any:
    """A static field as JSON: numbers, text, None, tuples, dtypes, and functions of this package.

    Raises:
        ProgramError: for other values; ``name`` is that of the field.
    """
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is float:
        return {"float": repr(value)}
    if type(value) is tuple:
        return {"tuple": [written_static(item, name) for item in value]}
    if isinstance(value, np.dtype) and value in dtypes.NAMES:
        return {"dtype": dtypes.NAMES[value]}
    if isinstance(value, type) and issubclass(value, np.generic) and np.dtype(value) in dtypes.NAMES:
        return {"type": dtypes.NAMES[np.dtype(value)]}
    if isinstance(value, FunctionType):
        return {"function": function_reference(value, f"the static field {name}")}
    hint = "numbers, text, None, dtypes and tuples of them"
    raise ProgramError("Program.save", f"the static field {name} cannot be saved", got=type(value).__name__, hint=hint)


def read_static(node: Any) -> Any:
    """The inverse of :func:`written_static`.

    Raises:
        ValueError: if it is not the JSON of one.
    """
    if node is None or type(node) in (bool, int, str, float):
        return node
    if not isinstance(node, dict) or len(node) != 1:
        raise ValueError("a static field of another form")
    ((kind, content),) = node.items()
    if kind == "float" and content in ("inf", "-inf", "nan"):
        return float(content)
    if kind == "tuple":
        return tuple(map(read_static, content))
    if kind == "dtype":
        return dtypes.canonical(content)
    if kind == "type":
        return dtypes.canonical(content).type
    if kind == "function":
        return found_function(content)
    raise ValueError(f"{kind!r} in a static field")
