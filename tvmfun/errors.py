"""One exception class per kind of mistake; every message says where, what, got and try.

The message always reads ``[where] what, got ... . Try ... .`` so that a user who meets one for the
first time knows which call failed, which rule it broke, what arrived instead, and what to do next.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError

from tvmfun.names import missing as _missing


class TvmfunError(Exception):
    """Base class of all errors raised by tvmfun.

    Args:
        where: the public function or op that found the mistake, e.g. ``"grad"``.
        what: the rule that was broken, as a sentence without a full stop.
        got: what arrived instead.
        hint: what to do next, as an imperative without ``Try`` and without a full stop.

    >>> print(ShapeError("reshape", "the sizes must agree", got="6 elements", hint="(2, 3)"))
    [reshape] the sizes must agree, got 6 elements. Try (2, 3).
    """

    def __init__(self, where: str, what: str, *, got: str = "", hint: str = "") -> None:
        super().__init__()
        self.what = what
        self.got = got
        self.hint = hint
        self.rename(where)

    def rename(self, where: str) -> None:
        """Changes the function that the message names to the one that the user called."""
        message = f"[{where}] {self.what}"
        if self.got:
            message += f", got {self.got}"
        message += "."
        if self.hint:
            message += f" Try {self.hint}."
        self.args = (message,)
        self.where = where

    def __reduce__(self):
        return _rebuild, (type(self), self.where, self.what, self.got, self.hint)


def _rebuild(cls: type[TvmfunError], where: str, what: str, got: str, hint: str) -> TvmfunError:
    return cls(where, what, got=got, hint=hint)


class ShapeError(TvmfunError, ValueError):
    """Shapes, axes or sizes that do not fit together."""


class DimensionError(ShapeError):
    """A dynamic size where a static one is needed, or a comparison whose result differs between calls."""

    values: tuple = ()


class IndexingError(TvmfunError, IndexError):
    """An index outside its axis, of a wrong kind, or one too many."""


class DtypeError(TvmfunError, TypeError):
    """A dtype that is unknown, unsupported, or not allowed here."""


class TreeError(TvmfunError, ValueError):
    """Two pytrees that should have the same structure differ; the message names the key path."""


class ArgumentError(TvmfunError, ValueError):
    """An argument value outside what the function accepts."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of a type that the function does not take."""


class ImmutableError(TvmfunError, FrozenInstanceError):
    """An assignment to a field of something immutable, such as a layer."""


class CheckpointError(TvmfunError, ValueError):
    """A checkpoint file that is damaged, or has values that tvmfun has no dtype for."""


class DataError(TvmfunError, ValueError):
    """Training data that is missing, damaged, or differs from the data that a state was saved with."""


class ConcretizationError(TvmfunError, TypeError):
    """A traced value was used where Python needs a concrete one (``if``, ``float()``, ``np.asarray``)."""


class LeakedTracerError(TvmfunError, RuntimeError):
    """A traced value was used after its trace had ended."""


class GradientError(TvmfunError, TypeError):
    """Something that cannot be differentiated: a non-scalar loss, an integer argument, an op without a rule."""


class BatchingError(TvmfunError, ValueError):
    """Something that cannot be batched: axes that do not fit together, an op without a rule."""


class DonatedArrayError(TvmfunError, RuntimeError):
    """An array was used after its buffer had been donated to a compiled function."""


class OutOfMemoryError(TvmfunError, MemoryError):
    """Out of memory for an array or for the workspace of a kernel; the message has the number of bytes."""


class DeviceError(TvmfunError, RuntimeError):
    """A GPU that could not run a kernel; after most such errors the process cannot use the GPU any more."""

    #: The kernel, if it is known.
    kernel: str = ""


class NanError(TvmfunError, FloatingPointError):
    """``debug_nans`` found a NaN; the message names the op that made it."""


class TargetError(TvmfunError, RuntimeError):
    """A device or compilation target that this machine or this TVM cannot serve."""


class ExportError(TvmfunError, RuntimeError):
    """A function that cannot be exported, or an exported one that cannot be loaded or run."""

    #: For an exported function: a name of ``tvmfun_status`` in ``step.h``, such as ``"DAMAGED_FILE"``.
    status: str = ""


class ProgramError(TvmfunError, ValueError):
    """A Program whose IR is not well formed, or holds an op the registry does not know."""


class KernelError(TvmfunError, ArithmeticError):
    """``check`` found a compiled kernel that differs from its ops; a bug of tvmfun."""


class PerformanceWarning(UserWarning):
    """Something works, but slower than it should."""


__getattr__ = _missing(__name__)
