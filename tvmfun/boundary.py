"""The boundary of the library: errors of public functions about wrong arguments.

The arguments of a public function are compared with its annotations only when it fails, to name the wrong parameter in
an error of ours. So calls cost no more, and functions need not check for arguments that make them fail anyway.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import sysconfig
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, TypeVar

import numpy as np

from tvmfun.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationError,
    DtypeError,
    IndexingError,
    ShapeError,
    TreeError,
    TvmfunError,
)
from tvmfun.names import argument_for

_F = TypeVar("_F", bound=Callable)

#: Errors about arguments, which a function may get from another one that it calls.
_ABOUT_ARGUMENTS = (ArgumentError, DtypeError, IndexingError, ShapeError, TreeError)
#: Errors of Python about values of a wrong kind.
_OF_PYTHON = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# Errors of Python about a call that does not fit a signature, which name the function inside.
_MISSING = re.compile(r"missing \d+ required (keyword-only|positional) arguments?: (.+)")
_UNKNOWN = re.compile(r"got an unexpected keyword argument '(\w+)'")
_TOO_MANY = re.compile(r"takes (?:from \d+ to )?\d+ positional arguments? but \d+ ")

_STANDARD = sysconfig.get_paths()["stdlib"]
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
_OTHERS = ("ml_dtypes", "numpy", "opt_einsum", "optree", "tvm", "tvm_ffi")
_PACKAGES = tuple(
    str(Path(spec.origin).parent) for spec in map(find_spec, ("tvmfun", *_OTHERS)) if spec and spec.origin
)
#: Methods that dataclasses write, and functions of extension modules.
_NO_FILES = ("<string>", "<unknown>")
#: The names of all public functions.
_PUBLISHED: set[str] = set()


def publish(
    namespace: MutableMapping[str, Any],
    wrap_result: Callable[[str, Any], Any] | None = None,
    prefix: str = "",
    but: Collection[str] = (),
) -> None:
    """Wraps the public functions and classes of a module or package, and replaces them in the modules that define them.

    Args:
        namespace: its ``globals()``.
        wrap_result: called with the name of a function and its result; returns the result to use instead.
        prefix: a prefix of their names in errors.
        but: names of functions to skip, such as those that return functions with other names.
    """
    for name in namespace.get("__all__") or [name for name in namespace if not name.startswith("_")]:
        value = namespace.get(name)
        if not str(getattr(value, "__module__", "")).startswith(namespace["__name__"]) or name in but:
            continue
        if isinstance(value, FunctionType) and not hasattr(value, "__bounded__"):
            _PUBLISHED.add(name)
            namespace[name] = bound = bounded(value, prefix + value.__name__, wrap_result)
            home = vars(sys.modules[value.__module__])
            if home.get(value.__name__) is value:
                home[value.__name__] = bound
        elif isinstance(value, type) and not issubclass(value, tuple | BaseException):
            bound_methods(value)


def bound_methods(cls: type) -> None:
    """Applies :func:`bounded` to the methods of a class; errors name the class for its constructor and its calls."""
    for method in ("__init__", "__call__", "__next__", *(name for name in vars(cls) if not name.startswith("_"))):
        found = inspect.getattr_static(cls, method, None)
        inherited = method not in vars(cls)
        if isinstance(found, FunctionType) and (inherited or not hasattr(found, "__bounded__")):
            # A private class appears under the name of the function that makes it.
            name = cls.__name__.strip("_").lower() if cls.__name__.startswith("_") else cls.__name__
            setattr(cls, method, bounded(found, name if method.startswith("_") else f"{name}.{method}"))


def bounded(function: _F, name: str = "", wrap_result: Callable[[str, Any], Any] | None = None) -> _F:
    """Wraps a function so that errors about its arguments carry its name.

    Args:
        function: any function.
        name: its name in errors; by default ``__name__``.
        wrap_result: called with the name and the result; returns the result to use instead.
    """
    name = name or function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except _ABOUT_ARGUMENTS as error:
            # Capitalized names are classes, the user's or ours.
            known = {name, name.partition(".")[0]} & {error.where, error.where.rpartition(".")[2]}
            if known or error.where[:1].isupper() or not is_ours(error):
                raise
            # Another public function has checked its arguments; internal functions, such as bool(), have not.
            wrong = None if error.where in _PUBLISHED else _annotation_error(error, name, function, args, kwargs)
            if wrong:
                raise wrong from error
            error.rename(name)
            raise
        except ConcretizationError as error:
            is_inside = error.where != name and (error.where in _PUBLISHED or _is_conversion(error))
            if not is_ours(error) or not is_inside:
                raise
            wrong = _traced_argument(name, function, args, kwargs)
            same = ConcretizationError(name, error.what, got=error.got, hint=error.hint)
            raise wrong or same from error
        except _OF_PYTHON as error:
            if isinstance(error, TvmfunError) or not (is_ours(error) or _is_about_call(error)):
                raise
            raise _explained(error, name, function, args, kwargs) from error
        if isinstance(result, FunctionType) and _is_made_inside(result):
            return bounded(result, name)
        return wrap_result(name, result) if wrap_result else result

    call.__bounded__ = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _is_made_inside(function: FunctionType) -> bool:
    """Whether a function was made by a public function, such as a schedule, and is not yet bounded."""
    inside = str(function.__module__).startswith("tvmfun") and "<locals>" in function.__qualname__
    return inside and not hasattr(function, "__bounded__")


def _is_about_call(error: Exception) -> bool:
    """Whether the arguments of a call do not fit the signature, so that the function has not begun."""
    inside = error.__traceback__ and error.__traceback__.tb_next
    return isinstance(error, TypeError) and inside is None and "argument" in str(error)


def is_ours(error: BaseException) -> bool:
    """Whether an error came from inside of the library, not from the call itself or a user's code."""
    inside = error.__traceback__ and error.__traceback__.tb_next
    return inside is not None and all(map(_is_known, _files(inside)))


def _files(traceback: TracebackType | None) -> Iterable[str]:
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename
        traceback = traceback.tb_next


@functools.cache
def _is_known(file: str) -> bool:
    standard = file.startswith(_STANDARD) and not file.startswith(_INSTALLED)
    standard = standard or file.startswith("<frozen ")
    return standard or file.startswith(_PACKAGES) or file in _NO_FILES or file.endswith((".cc", ".h", ".pxi", ".pyx"))


def _explained(error: Exception, name: str, function: Callable, args: tuple, kwargs: dict) -> Exception:
    """The error to raise instead of one of Python's."""
    wrong = _annotation_error(error, name, function, args, kwargs)
    if wrong:
        return wrong
    if isinstance(error, LookupError | ArithmeticError) and not isinstance(error, IndexError | OverflowError):
        return error  # not clearly because of the arguments
    parameters = inspect.signature(function).parameters
    if next(iter(parameters), "") == "self":
        args = args[1:]
    values = [described(value) for value in args] + [f"{key}={described(value)}" for key, value in kwargs.items()]
    reason = str(error).rstrip(".").replace("\n", " ")
    # Whether the error is about this call, not about a user's function that is called inside.
    is_own = _is_about_call(error) or reason.startswith(f"{inspect.unwrap(function).__qualname__}()")
    what, hint = f"it cannot work with these arguments: {reason}", f"help({name})"
    missing = _MISSING.search(reason)
    if missing and (is_own or missing[1] == "keyword-only"):
        names = ", ".join(f"{one}=" for one in re.findall(r"'(\w+)'", missing[2]))
        what = f"the arguments {names} are missing" if "," in names else f"the argument {names} is missing"
    elif is_own and (unknown := _UNKNOWN.search(reason)):
        what = f"there is no argument {unknown[1]}="
        hint = argument_for(unknown[1], parameters) or hint
    elif is_own and _TOO_MANY.search(reason):
        named = [one.name for one in parameters.values() if one.kind is one.KEYWORD_ONLY]
        what = "too many arguments are given without a name"
        hint = ", ".join(f"{one}=" for one in named[:3]) or hint
    return _error_class(error)(name, what, got=", ".join(values) or "none", hint=hint)


def _error_class(error: Exception) -> type[ArgumentError]:
    return ArgumentTypeError if isinstance(error, TypeError | AttributeError) else ArgumentError


def _annotation_error(error: Exception, name: str, function: Callable, args: tuple, kwargs: dict) -> TvmfunError | None:
    """The error about the first argument that does not fit its annotation, or None."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:  # it passes its arguments on to another function
        return None
    wrong = _wrong_argument(function, bound)
    if wrong is None:
        return None
    # A value that cannot become an array is a DtypeError, whether or not the parameter is annotated as an array.
    kind = DtypeError if isinstance(error, DtypeError) and "Array" in wrong[1] else _error_class(error)
    return kind(name, f"{wrong[0]} must be {wrong[1]}", got=described(wrong[2]), hint=f"help({name})")


def _is_conversion(error: BaseException) -> bool:
    """Whether an error began with the conversion of an array that is being traced, such as ``bool()``."""
    while isinstance(error.__cause__, ConcretizationError):
        error = error.__cause__
    return isinstance(error, ConcretizationError) and error.where.endswith("()")


def _traced_argument(name: str, function: Callable, args: tuple, kwargs: dict) -> ConcretizationError | None:
    """The error about the first argument that is being traced where the annotation has numbers of Python, or None."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):
        return None
    for parameter, value in bound.arguments.items():
        kinds = typing.get_args(hints.get(parameter)) or (hints.get(parameter),)
        are_numbers = not {bool, int, float}.isdisjoint(kinds) and np.ndarray not in kinds
        if are_numbers and type(value).__name__ == "Tracer":
            what = f"{parameter} must be a Python number, which is known while the function is traced"
            return ConcretizationError(name, what, got=described(value), hint="static_argnums of jit")
    return None


def _wrong_argument(function: Callable, bound: inspect.BoundArguments) -> tuple[str, str, Any] | None:
    """The first argument that does not fit its annotation: the parameter, the annotation, and the value."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):  # names that exist for type checkers only
        return None
    for parameter in bound.signature.parameters.values():
        if parameter.name not in bound.arguments or parameter.name not in hints:
            continue
        value, hint = bound.arguments[parameter.name], hints[parameter.name]
        values = {parameter.VAR_POSITIONAL: lambda v: v, parameter.VAR_KEYWORD: lambda v: tuple(v.values())}
        for one in values.get(parameter.kind, lambda v: (v,))(value):
            if one is not parameter.default and not _matches_hint(one, hint):
                return parameter.name, _written(hint), one
    return None


def _written(hint: Any) -> str:
    """An annotation as it reads in source code, aliases resolved except ``ArrayLike``."""
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(hint)).replace("NoneType", "None")
    return text.replace("Array | ndarray | generic | bool | int | float", "ArrayLike")


def _matches_hint(value: Any, hint: Any) -> bool:
    """Whether a value may fit an annotation; True if that cannot be decided."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches_hint(value, part) for part in parts) or (np.ndarray in parts and _becomes_array(value))
    if origin is typing.Literal:
        return any(value is part or (type(value) is type(part) and value == part) for part in parts)
    if hint is None or hint is type(None):
        return value is None
    if hint in (bool, int, float):
        return _is_number(value, hint)
    if isinstance(origin, type) and issubclass(origin, Collection | Iterable) and not issubclass(origin, Mapping):
        return _is_sequence(value, origin) and (len(parts) > 2 or _items_fit(value, parts))
    kind = origin or hint
    if kind is Callable:
        return callable(value)
    if isinstance(kind, type) and kind is not typing.Any and not getattr(kind, "_is_protocol", False):
        return isinstance(value, kind) or _is_array(value)
    return True


def _is_number(value: Any, kind: type) -> bool:
    if _is_array(value):
        return getattr(value, "ndim", len(value.shape)) == 0
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    return hasattr(value, "__index__") or (kind is float and isinstance(value, float | np.floating))


def _is_sequence(value: Any, kind: type) -> bool:
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return False
    if _is_array(value):
        return len(value.shape) > 0
    return isinstance(value, kind) or (issubclass(kind, Sequence) and hasattr(value, "__len__"))


def _items_fit(value: Any, parts: tuple) -> bool:
    known = isinstance(value, list | tuple) and bool(parts)
    return not known or all(_matches_hint(item, parts[0]) for item in value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type)


def _becomes_array(value: Any) -> bool:
    """Whether an array can perhaps be made of a value, such as nested lists of numbers."""
    return value is not None and not isinstance(value, str | bytes | Mapping) and not callable(value)


def described(value: Any) -> str:
    """A value in an error: short, and an array by its type."""
    if _is_array(value):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, list | tuple) and type(value) in (list, tuple) and len(value) <= 4:
        items = ", ".join(map(described, value))
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' * (len(value) == 1)})"
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else type(value).__name__
