"""Arrays: ``ShapeDtype`` describes one, ``Array`` is the interface, ``DeviceArray`` owns a buffer.

Arrays are immutable. Data that comes in is copied into an aligned buffer that nobody else can write to;
data goes out as read-only zero-copy views wherever NumPy and DLPack know the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm.runtime import Device

from tvmfun import dtypes
from tvmfun.counters import counters
from tvmfun.errors import ConcretizationError, DonatedArrayError, ShapeError

_ALIGNMENT = 64


@dataclass(frozen=True)
class ShapeDtype:
    """The shape and dtype of an array: everything a trace knows about a value.

    Args:
        shape: the sizes of the axes.
        dtype: a dtype or its name.
        weak: whether the dtype gives way in promotion, as that of a Python scalar does.

    >>> ShapeDtype((2, 3), "float32")
    float32[2,3]
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    weak: bool = False

    def __post_init__(self) -> None:
        shape = tuple(map(int, self.shape))
        if any(size < 0 for size in shape):
            raise ShapeError("ShapeDtype", "sizes must not be negative", got=str(shape))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtypes.canonical(self.dtype))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes the elements take."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{dtypes.NAMES[self.dtype]}[{','.join(map(str, self.shape))}]"


# Operators and methods of arrays are ordinary functions of `tvmfun.numpy`, which is built on this module;
# it hands them over once, when it is imported.
_METHODS: dict[str, Callable] = {}


def install_methods(methods: dict[str, Callable]) -> None:
    """Makes the functions of ``tvmfun.numpy`` available as operators and methods of every array."""
    _METHODS.update(methods)
    for name, method in methods.items():
        setattr(Array, name, method)


class Array:
    """An immutable n-dimensional array: either data on a device or a value being traced.

    Arrays have NumPy's operators, indexing and methods, ``x.at[index].set(y)`` for functional updates, and
    speak ``__array__`` and ``__dlpack__``. Make them with :func:`tvmfun.numpy.asarray`.
    """

    __slots__ = ("__weakref__", "aval")
    __array_priority__ = 100
    aval: ShapeDtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def nbytes(self) -> int:
        """The number of bytes the elements take."""
        return self.aval.nbytes

    @property
    def weak_type(self) -> bool:
        """Whether the dtype gives way in promotion, as that of a Python scalar does."""
        return self.aval.weak

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of a 0-d array")
        return self.aval.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "[Array] arrays are immutable, got an assignment to an index. Try x = x.at[index].set(value)."
        )

    # Equality is elementwise, so arrays cannot be dictionary keys.
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        # Reached only for names nobody defined; a table of names keeps the message helpful.
        raise AttributeError(f"[Array] there is no attribute {name!r}. Try a function of tvmfun.numpy.")

    def concrete(self, what: str) -> DeviceArray:
        """Returns the array with data, or explains that ``what`` needs data that a traced value lacks."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(
                "bool", "the truth value needs one element", got=repr(self.aval), hint="x.any() or x.all()"
            )
        return bool(self.concrete("bool()").numpy().reshape(()))

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __index__(self) -> int:
        if not dtypes.is_integer(self.dtype) or self.ndim:
            raise TypeError(f"[Array] only 0-d integer arrays can be an index, got {self.aval}")
        return int(self._scalar("an index"))

    def _scalar(self, what: str) -> Any:
        if self.size != 1:
            raise ShapeError(
                what, "a Python scalar needs one element", got=repr(self.aval), hint="indexing first"
            )
        return self.concrete(what).numpy().reshape(())[()]

    def item(self) -> bool | int | float:
        """Returns the only element as a Python scalar."""
        return self._scalar("item()").item()

    def tolist(self) -> Any:
        """Returns the elements as nested Python lists."""
        return self.concrete("tolist()").numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        view = self.concrete("np.asarray").numpy()
        if dtype is not None and np.dtype(dtype) != view.dtype:
            if copy is False:
                raise ValueError("[Array] a dtype conversion needs a copy, got copy=False")
            return view.astype(dtype)
        return view.copy() if copy else view

    def __dlpack__(self, **kwargs: Any) -> Any:
        kwargs.pop("stream", None)
        array = self.concrete("__dlpack__")
        if kwargs.get("copy"):
            array = device_array(array.numpy(), array.device)
        if kwargs.get("max_version", (0,))[0] >= 1:
            return array.tensor._to_dlpack_versioned()  # the capsule says who owns the buffer
        return array.tensor._to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.concrete("__dlpack_device__").tensor.__dlpack_device__()

    def __repr__(self) -> str:
        body = np.array2string(self.concrete("repr").numpy(), separator=", ", prefix="Array(")
        return f"Array({body}, dtype={dtypes.NAMES[self.dtype]})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and not self.ndim else str(self) if not spec else repr(self)


class DeviceArray(Array):
    """An array whose elements lie in a buffer on a device."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: tvm.runtime.Tensor, aval: ShapeDtype) -> None:
        self.aval = aval
        self._tensor = tensor

    @property
    def tensor(self) -> tvm.runtime.Tensor:
        """The TVM tensor; raises ``DonatedArrayError`` after donation."""
        if self._tensor is None:
            raise DonatedArrayError(
                "Array",
                "the buffer was donated to a compiled function and is gone",
                got=repr(self.aval),
                hint="the array that function returned, or call it without donate_argnums",
            )
        return self._tensor

    @property
    def device(self) -> Device:
        """The device the buffer is on."""
        return self.tensor.device

    def is_deleted(self) -> bool:
        """Whether the buffer has been donated."""
        return self._tensor is None

    def delete(self) -> None:
        """Gives up the buffer; later uses of this array raise ``DonatedArrayError``."""
        self._tensor = None

    def concrete(self, what: str) -> DeviceArray:
        return self

    def numpy(self) -> np.ndarray:
        """Returns a read-only NumPy array: a zero-copy view on the CPU (a copy for bfloat16), a copy elsewhere."""
        tensor = self.tensor
        counters.to_host += 1
        if (
            tensor.device.dlpack_device_type() != tvm.cpu().dlpack_device_type()
            or self.dtype == dtypes.bfloat16
        ):
            view = tensor.numpy()
        else:
            view = np.from_dlpack(tensor)
        view.flags.writeable = False
        return view

    def block_until_ready(self) -> DeviceArray:
        """Waits until the device has computed the elements."""
        self.device.sync()
        return self

    def __reduce__(self):
        return _unpickle, (np.array(self.numpy()), self.aval.weak)

    def __deepcopy__(self, memo: dict) -> DeviceArray:
        return self

    def __copy__(self) -> DeviceArray:
        return self


def _unpickle(value: np.ndarray, weak: bool) -> DeviceArray:
    return device_array(value, weak=weak)


def device_array(
    value: np.ndarray | np.generic, device: Device | None = None, *, weak: bool = False
) -> DeviceArray:
    """Copies a NumPy array of any layout into a new aligned buffer on ``device`` (default: the CPU).

    Raises:
        DtypeError: if tvmfun has no such dtype.
    """
    dtype = dtypes.canonical(value.dtype)
    device = device or tvm.cpu()
    counters.to_device += 1
    host = _host_tensor(np.asarray(value, dtype))
    tensor = (
        host if device.dlpack_device_type() == tvm.cpu().dlpack_device_type() else _to_device(host, device)
    )
    return DeviceArray(tensor, ShapeDtype(value.shape, dtype, weak))


def _host_tensor(value: np.ndarray) -> tvm.runtime.Tensor:
    if value.dtype == dtypes.bfloat16:  # NumPy's DLPack does not know it: go through the same bits
        return tvm.runtime.tensor(np.ascontiguousarray(value))
    tensor = tvm.runtime.empty(value.shape, dtypes.NAMES[value.dtype])
    np.copyto(np.from_dlpack(tensor), value)
    return tensor


def _to_device(tensor: tvm.runtime.Tensor, device: Device) -> tvm.runtime.Tensor:
    moved = tvm.runtime.empty(tensor.shape, tensor.dtype, device)
    tensor.copyto(moved)
    return moved


def move(array: DeviceArray, device: Device) -> DeviceArray:
    """Returns ``array`` on ``device``, copied only if it is not there already."""
    if array.device == device:
        return array
    if tvm.cpu() in (array.device, device):
        return DeviceArray(_to_device(array.tensor, device), array.aval)
    return move(move(array, tvm.cpu()), device)


def explain_no_data(aval: ShapeDtype, what: str, name: str) -> ConcretizationError:
    """The error for a traced value used where Python needs data."""
    hints = {
        "bool()": "tvmfun.numpy.where(condition, x, y), or make the argument static with static_argnums",
        "np.asarray": "the same function of tvmfun.numpy",
    }
    return ConcretizationError(
        what,
        "a value that is being traced has a shape and a dtype but no data yet",
        got=f"{aval} ({name})",
        hint=hints.get(
            what, "to keep the computation in tvmfun.numpy, or return the value from the jitted function"
        ),
    )
