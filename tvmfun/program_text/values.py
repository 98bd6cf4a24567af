"""Parameters of ops and literals as text. Floats are written with the digits that make them exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.dims import Dim
from tvmfun.core.program import Literal, Program
from tvmfun.errors import ProgramError
from tvmfun.manifest.static import found_function, reference
from tvmfun.program_text.sizes import Sizes
from tvmfun.program_text.tokens import Tokens

#: Programs and tuples that contain each other may be nested so often.
MOST_LEVELS = 64
_WORDS = {"None": None, "True": True, "False": False, "inf": math.inf, "nan": math.nan}
_DTYPES = {name: dtype for dtype, name in dtypes.NAMES.items()}
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


# -- writing -----------------------------------------------------------------------------------------------------------


def written(value: Any, write_program: Callable[[Program], str]) -> str:
    """A parameter as text.

    Args:
        value: the parameter.
        write_program: writes a Program that it has.

    Raises:
        ProgramError: if it holds a Python function, or anything else that is not plain.
    """
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, Dim):
        return f"[{value}]"
    if isinstance(value, Program):
        return write_program(value)
    if type(value) is tuple:
        items = [written(item, write_program) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, np.generic) and value.dtype in dtypes.NAMES:
        return written_literal(value)
    if isinstance(value, np.dtype) and value in dtypes.NAMES:
        return f"dtype({dtypes.NAMES[value]!r})"
    if is_own_function(value):
        return f"function({reference(value)!r})"
    if holds_function(value):
        what = "a call with a Python function cannot be saved: a custom derivative, or the policy of a checkpoint"
        hint = "save(path, inline=True), which keeps what it computes, or saving the gradient"
        raise ProgramError("Program.save", what, got=repr(value), hint=hint)
    hint = "numbers, text, None, dtypes and tuples of them"
    raise ProgramError("Program.save", "a parameter of an op cannot be saved", got=type(value).__name__, hint=hint)


def holds_function(value: Any) -> bool:
    """Whether a parameter is or holds a Python function that cannot be written as text."""
    if isinstance(value, Program | np.dtype | type) or value is None:
        return False
    return callable(value) or callable(getattr(value, "call", None))  # a rule is an object with a function


def is_own_function(value: Any) -> bool:
    """Whether a parameter is a function of this package that is found by its name, such as a policy."""
    if not isinstance(value, FunctionType):
        return False
    try:
        return found_function(reference(value)) is value
    except (ProgramError, ValueError):
        return False


def written_literal(value: np.generic) -> str:
    """A scalar as text: its value, or its bits for a NaN that is not the usual one, and its dtype.

    >>> written_literal(np.float32(0.1)), written_literal(-np.float64("nan"))
    ('0.10000000149011612:float32', '0xfff8000000000000:float64')
    """
    name = dtypes.NAMES[value.dtype]
    if value != value and value.tobytes() != value.dtype.type(math.nan).tobytes():
        return f"{int(np.frombuffer(value.tobytes(), _BITS[value.dtype.itemsize])[0]):#x}:{name}"
    return f"{value.item()!r}:{name}"


# -- reading -----------------------------------------------------------------------------------------------------------


class Values:
    """Reads parameters and literals of one Program.

    Args:
        tokens: the tokens.
        sizes: reads its dynamic sizes.
        read_program: reads a Program, at a level of nesting.
    """

    def __init__(self, tokens: Tokens, sizes: Sizes, read_program: Callable[[int], Program]) -> None:
        self._tokens, self._sizes, self._read_program = tokens, sizes, read_program

    def read(self, level: int) -> Any:
        """Reads a parameter, at a level of nesting."""
        tokens = self._tokens
        if tokens.kind == "string":
            return tokens.string()
        if tokens.at("("):
            return self._tuple(level + 1)
        if tokens.accept("["):
            size = self._sizes.read()
            tokens.expect("]")
            return size
        if tokens.at("program"):
            return self._read_program(level + 1)
        if tokens.at("dtype") or tokens.at("function"):
            return self._named()
        value, text = self._number()
        return _scalar(tokens, value, text) if tokens.at(":") else value

    def _number(self) -> tuple[Any, str]:
        """Reads a number or word; the bits of a NaN stay text."""
        tokens = self._tokens
        negative = tokens.accept("-")
        text = tokens.text
        value: Any
        if text in _WORDS:
            value = _WORDS[tokens.next()]
            if negative and text not in ("inf", "nan"):
                raise tokens.error("expected a number after '-'")
        elif text.startswith("0x"):
            value = tokens.next()
            if negative or not tokens.at(":"):
                raise tokens.error("expected ':' and a dtype after bits")
        elif text.isdecimal():
            value = tokens.natural()
        else:
            value = float(tokens.expect_kind("number", "a value"))
            if math.isinf(value):
                raise tokens.error("this number is too large", got=text)
        return -value if negative else value, text

    def literal(self) -> Literal:
        """Reads a scalar with its dtype."""
        value, text = self._number()
        return Literal(_scalar(self._tokens, value, text))

    def _tuple(self, level: int) -> tuple:
        tokens = self._tokens
        if level > MOST_LEVELS:
            raise tokens.error(f"more than {MOST_LEVELS} values inside of each other")
        tokens.expect("(")
        items: list[Any] = []
        while not tokens.at(")"):
            items.append(self.read(level))
            if not tokens.accept(","):
                break
        tokens.expect(")")
        return tuple(items)

    def _named(self) -> Any:
        tokens = self._tokens
        position, kind = tokens.position, tokens.next()
        tokens.expect("(")
        text = tokens.string()
        tokens.expect(")")
        try:
            return _DTYPES[text] if kind == "dtype" else found_function(text)
        except (ProgramError, KeyError, ValueError):
            raise tokens.error(f"there is no {kind} of this name", got=text, position=position) from None


def dtype_of(name: str) -> np.dtype | None:
    """The dtype of exactly this name, or None."""
    return _DTYPES.get(name)


def _scalar(tokens: Tokens, value: Any, text: str) -> np.generic:
    """The scalar of a number whose dtype follows."""
    position = tokens.position
    tokens.expect(":")
    name = tokens.expect_kind("name", "a dtype")
    dtype = dtype_of(name)
    if dtype is None:
        hint = f"one of {', '.join(_DTYPES)}"
        raise tokens.error("there is no such dtype", got=repr(name), hint=hint, position=position)
    scalar = _nan(value, dtype) if isinstance(value, str) else _exactly(value, dtype)
    if scalar is None:
        raise tokens.error(f"expected a value of the dtype {name}", got=text, position=position)
    return scalar


def _nan(bits: str, dtype: np.dtype) -> np.generic | None:
    """The NaN of these bits, or None if they are none."""
    if not dtypes.is_float(dtype) or len(bits) > 2 + 2 * dtype.itemsize:
        return None
    scalar: Any = np.array(int(bits, 16), _BITS[dtype.itemsize]).view(dtype)[()]
    return scalar if scalar != scalar else None


def _exactly(value: Any, dtype: np.dtype) -> np.generic | None:
    """The scalar of a number that the dtype has exactly, or None."""
    expected = bool if dtype == dtypes.bool_ else float if dtypes.is_float(dtype) else int
    if type(value) is not expected:
        return None
    if expected is int and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        return None
    with np.errstate(over="ignore"):
        scalar = dtype.type(value)
    return scalar if scalar.item() == value or value != value else None
