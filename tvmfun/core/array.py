"""Arrays: ``ShapeDtype`` describes one, ``Array`` is the interface, ``DeviceArray`` owns a buffer.

Arrays are immutable. Data is copied into an aligned private buffer,
and handed out as read-only zero-copy views.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.dlpack import mark_read_only
from tvmfun.core.donation import CLAIMS, discard, donated_error
from tvmfun.counters import counters
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.names import missing_attribute
from tvmfun.runtime.cuda.arrays import DeviceMemory, copy, copy_in, copy_out, new, synchronize
from tvmfun.runtime.devices import CPU, Device, public
from tvmfun.runtime.memory import Memory, allocate

if TYPE_CHECKING:
    from tvmfun.typing import DTypeLike


@dataclass(frozen=True)
class ShapeDtype:
    """The shape and dtype of an array: everything a trace knows about a value.

    Args:
        shape: the sizes of the axes: integers, and names or Dims for dynamic sizes.
        dtype: a dtype or its name.
        weak: whether the dtype is weak: it yields in promotion, like that of a Python scalar.

    >>> ShapeDtype((2, 3), "float32")
    float32[2,3]
    >>> ShapeDtype(("b", 3), "float32").size
    3*b
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    weak: bool = False

    def __post_init__(self) -> None:
        try:
            shape = tuple([size if type(size) is int else dims.size(size) for size in self.shape])
        except TypeError:
            hint = "integers, Dims, and names of Dims"
            raise ShapeError("ShapeDtype", "a shape is a tuple of sizes", got=repr(self.shape), hint=hint) from None
        if any(size < 0 for size in shape):
            raise ShapeError("ShapeDtype", "sizes must not be negative", got=str(shape))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtypes.canonical(self.dtype))
        # Part of the key of every compiled call: computed once.
        object.__setattr__(self, "_hash", hash((self.shape, self.dtype, self.weak)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

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


# One object for equal types of arrays with data, so that `jit` can compare them by identity.
_INTERNED: dict[ShapeDtype, ShapeDtype] = {}
_INTERNED_KEPT = 4096


def interned(aval: ShapeDtype) -> ShapeDtype:
    """One object for all equal avals."""
    if len(_INTERNED) >= _INTERNED_KEPT:
        _INTERNED.clear()
    return _INTERNED.setdefault(aval, aval)


def install_methods(methods: dict[str, Any]) -> None:
    """Makes functions of ``tvmfun.numpy`` operators and methods of every array.

    ``tvmfun.numpy`` is built on this module; it hands them over once, when it is imported.
    """
    for name, method in methods.items():
        setattr(Array, name, method)


class Array:
    """An immutable n-dimensional array: either data on a device or a value being traced.

    Arrays have NumPy's operators, indexing and methods, ``x.at[index].set(y)`` for functional updates, and
    support ``__array__`` and ``__dlpack__``. Make them with :func:`tvmfun.numpy.asarray`.
    """

    __slots__ = ("__weakref__", "aval")
    # A NumPy array on the left of an operator defers to the array on the right.
    __array_priority__ = 100
    aval: ShapeDtype

    if TYPE_CHECKING:  # installed by `tvmfun.numpy`; other methods have no type

        def _unary(self) -> Array: ...
        def _binary(self, other: Any, /) -> Array: ...

        __neg__ = __pos__ = __abs__ = __invert__ = _unary
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _binary
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _binary
        __pow__ = __rpow__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _binary
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _binary

        def __eq__(self, other: Any, /) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: Any, /) -> Array: ...  # type: ignore[override]
        def __contains__(self, value: Any, /) -> bool: ...

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
    def itemsize(self) -> int:
        """The number of bytes an element takes."""
        return self.aval.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The number of bytes the elements take."""
        return self.aval.nbytes

    @property
    def weak_type(self) -> bool:
        """Whether the dtype yields in promotion, like that of a Python scalar."""
        return self.aval.weak

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of a 0-d array")
        size = self.aval.shape[0]
        if not isinstance(size, int):
            raise dims.unknown_length(size)
        return size

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("[Array] arrays are immutable, got an assignment to an index. Try x = x.at[index].set(value).")

    # Equality is elementwise, so arrays cannot be dictionary keys.
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        # Called only for undefined names.
        raise missing_attribute("array", "Array", name)

    def concrete(self, what: str) -> DeviceArray:
        """Returns the array with data, or raises because ``what`` needs data that a traced value lacks."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(
                "bool", "the truth value needs one element", got=repr(self.aval), hint="x.any() or x.all()"
            )
        return bool(self._scalar("bool()"))

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
            raise ShapeError(what, "a Python scalar needs one element", got=repr(self.aval), hint="indexing first")
        return self.concrete(what).read(lambda view: view.reshape(())[()])

    def item(self) -> bool | int | float:
        """Returns the only element as a Python scalar."""
        return self._scalar("item()").item()

    def tolist(self) -> Any:
        """Returns the elements as nested Python lists."""
        return self.concrete("tolist()").read(np.ndarray.tolist)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        array = self.concrete("np.asarray")
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError("[Array] a dtype conversion needs a copy, got copy=False")
            return array.read(lambda view: view.astype(dtype))
        return array.read(np.ndarray.copy) if copy else array.numpy()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Exports the buffer without a copy, marked read-only for consumers that ask for that."""
        array = self.concrete("__dlpack__").block_until_ready()
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if tuple(dl_device) != _CPU_KEY or copy is False:
                raise BufferError(f"[Array] the array cannot be exported to another device, got {dl_device}")
            array = move(array, CPU)
        elif copy:
            array = duplicate(array)
        tensor = array.shown()
        if max_version is None or max_version[0] < 1:
            return tensor._to_dlpack()
        capsule = tensor._to_dlpack_versioned()
        if array is self:
            mark_read_only(capsule)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.concrete("__dlpack_device__").tensor.__dlpack_device__()

    def __repr__(self) -> str:
        body = self.concrete("repr").read(lambda view: np.array2string(view, separator=", ", prefix="Array("))
        shape = f", shape={self.shape}" if not self.size and self.shape != (0,) else ""
        return f"Array({body}{shape}, dtype={dtypes.NAMES[self.dtype]})"

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if self.ndim:
            raise TypeError(f"[Array] a format needs a 0-d array, got {spec!r} for {self.aval}")
        return format(self.item(), spec)


class DeviceArray(Array):
    """An array whose elements are in a buffer on a device.

    A reader of the elements refers to the ``address`` object while it reads. If the array is donated to a call, the
    object's reference count tells whether there are readers (:mod:`tvmfun.core.donation`).
    """

    # Donation deletes `address`; `memory` stays for current readers. Arrays that are not shared lack `shared`.
    __slots__ = ("address", "memory", "shared")
    memory: Memory
    address: int  # of the first element; negative on other devices than the CPU
    shared: int  # one more reference to the address: others may read the elements later

    def __init__(self, memory: Memory, address: int, aval: ShapeDtype) -> None:
        self.aval = aval
        self.memory = memory
        self.address = address

    @property
    def tensor(self) -> tvm.runtime.Tensor:
        """The elements as a TVM tensor; raises ``DonatedArrayError`` after donation."""
        return self.tensor_at(self.held())

    def tensor_at(self, address: int) -> tvm.runtime.Tensor:
        """The tensor for a caller that holds the address, also if the array has been donated since."""
        memory = self.memory
        if memory.aval is not self.aval and memory.aval != self.aval:
            if address < 0:
                self.memory = memory = memory.of(self.aval)
                return memory.tensor
            elements = tvm.runtime.from_dlpack(self._elements(memory, address))
            tensor = elements._create_view(self.shape, dtypes.NAMES[self.dtype])
            self.memory = memory = Memory(tensor, self.aval)
        return memory.tensor

    def shown(self) -> tvm.runtime.Tensor:
        """The tensor for users to keep: the elements will not be overwritten."""
        held = self.held()
        self.shared = held
        return self.tensor_at(held)

    def _elements(self, memory: Memory, address: int) -> np.ndarray:
        """The bytes of the elements, a part of the memory."""
        view = _host_view(memory.tensor, memory.aval.dtype if memory.aval else dtypes.uint8)
        offset = address - memory.address
        return view.reshape(-1).view(np.uint8)[offset : offset + self.nbytes]

    def held(self) -> int:
        """The address; the elements are not overwritten while the caller refers to it."""
        try:
            return self.address
        except AttributeError:
            with CLAIMS:  # a failed claim restores the addresses
                if self.is_deleted():
                    raise donated_error("Array", self) from None
                return self.address

    @property
    def device(self) -> Device:
        """The device the buffer is on."""
        return CPU if self.held() >= 0 else public(self.memory.device)

    def devices(self) -> set[Device]:
        """Returns the set of the one device that the array is on, as in JAX."""
        return {self.device}

    def __repr__(self) -> str:
        # Debuggers and tracebacks show arrays, also donated ones.
        return f"Array(donated, {self.aval})" if self.is_deleted() else super().__repr__()

    def is_deleted(self) -> bool:
        """Whether the buffer has been donated."""
        return not hasattr(self, "address")

    def delete(self) -> None:
        """Frees the buffer; later uses of this array raise ``DonatedArrayError``."""
        if not self.is_deleted():
            discard([self], "Array")

    def concrete(self, what: str) -> DeviceArray:
        """Returns the array itself: it has data."""
        return self

    def __str__(self) -> str:
        return self.read(str)

    def numpy(self) -> np.ndarray:
        """Returns a read-only NumPy array: a zero-copy view on the CPU, a copy elsewhere."""
        held = self.held()
        self.shared = held
        return self._view(held)

    def read(self, function: Callable[[np.ndarray], Any]) -> Any:
        """Calls a function with the elements, a read-only NumPy array that it must not keep; returns its result."""
        held = self.held()
        return function(self._view(held))

    def _view(self, address: int) -> np.ndarray:
        counters.to_host += 1
        memory = self.memory
        if address < 0:
            view = np.empty(self.shape, self.dtype)
            copy_out(memory, address, view.ctypes.data, self.nbytes)
        elif memory.aval is None:
            offset = address - memory.address
            view = np.ndarray(self.shape, self.dtype, np.from_dlpack(memory.tensor), offset)  # type: ignore[arg-type]
        else:
            view = _host_view(self.tensor_at(address), self.dtype)
        view.flags.writeable = False
        return view

    def block_until_ready(self) -> DeviceArray:
        """Waits until the device has computed the elements."""
        if self.held() < 0:
            synchronize(self.memory)
        return self

    def __reduce__(self):
        return _unpickle, (self.read(np.array), self.aval.weak)

    def __deepcopy__(self, memo: dict) -> DeviceArray:
        return self

    def __copy__(self) -> DeviceArray:
        return self


def on_device(tensor: tvm.runtime.Tensor, aval: ShapeDtype) -> DeviceArray:
    """The array of a TVM tensor's elements."""
    memory = Memory(tensor, aval)
    return DeviceArray(memory, memory.address, aval)


def _unpickle(value: np.ndarray, weak: bool) -> DeviceArray:
    return device_array(value, weak=weak)


_CPU_KEY = (int(CPU.dlpack_device_type()), 0)


def is_on_cpu(array: DeviceArray) -> bool:
    """Whether the buffer is in the CPU's memory."""
    return array.device.dlpack_device_type() == _CPU_KEY[0]


def device_array(value: np.ndarray | np.generic, device: Device | None = None, *, weak: bool = False) -> DeviceArray:
    """Copies a NumPy array of any layout and byte order into a new aligned buffer (default: on the CPU).

    Raises:
        DtypeError: if tvmfun has no such dtype.
    """
    dtype = dtypes.canonical(value.dtype)
    masked = sys.modules.get("numpy.ma")  # NumPy imports it lazily; it takes 0.9 MB
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise DtypeError("Array", "an array has no mask", got=type(value).__name__, hint="x.filled(value)")
    counters.to_device += 1
    array = _copied(value, interned(ShapeDtype(value.shape, dtype, weak)))
    return array if device is None else move(array, device)


def _copied(value: np.ndarray | np.generic, aval: ShapeDtype) -> DeviceArray:
    memory = allocate(value.nbytes)
    memory.fill(value, aval.dtype)
    return DeviceArray(memory, memory.address, aval)


def _host_view(tensor: tvm.runtime.Tensor, dtype: np.dtype) -> np.ndarray:
    """A NumPy array that shares the memory of a tensor on the CPU."""
    if dtype == dtypes.bfloat16:  # NumPy's DLPack lacks this dtype: go through the bits
        return np.from_dlpack(tensor._create_view(tensor.shape, "uint16")).view(dtype)
    return np.from_dlpack(tensor)


def is_foreign_array(value: Any) -> bool:
    """Whether a value is an array of another library, or lends its memory, as a ``memoryview`` does."""
    if any(hasattr(value, name) for name in ("__dlpack__", "__array__", "__array_interface__")):
        return True
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


def foreign_array(value: Any, where: str) -> DeviceArray:
    """Copies an array of another library that supports DLPack, or what NumPy reads.

    Raises:
        DtypeError: if it cannot be read, or if tvmfun has no such dtype.
    """
    if hasattr(value, "__dlpack__"):
        if hasattr(value, "resolve_neg"):  # PyTorch's DLPack ignores a sign that is yet to be applied
            value = value.resolve_neg()
        try:
            return _from_dlpack(value)
        except DtypeError:
            raise
        except (BufferError, RuntimeError, TypeError, ValueError):
            pass  # `__array__` may still work
    try:
        view = np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise DtypeError(
            where, "the array cannot be read", got=f"{type(value).__name__}: {error}", hint="a NumPy array"
        ) from error
    return device_array(view)


def _from_dlpack(value: Any) -> DeviceArray:
    try:
        view = np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        # Not on the CPU, or bfloat16: TVM reads both, but only dense, aligned arrays. PyTorch can make one.
        try:
            tensor = tvm.runtime.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError):
            if not hasattr(value, "contiguous"):
                raise
            tensor = tvm.runtime.from_dlpack(value.contiguous().clone())
        counters.to_device += 1
        aval = interned(ShapeDtype(tuple(tensor.shape), str(tensor.dtype)))  # type: ignore[arg-type]
        if tensor.device == CPU:
            return _copied(_host_view(tensor, aval.dtype), aval)
        return duplicate(on_device(tensor, aval).block_until_ready())
    return device_array(view)


def _on_gpu(memory: DeviceMemory) -> DeviceArray:
    return DeviceArray(memory, memory.address, memory.aval)


def duplicate(array: DeviceArray, address: int | None = None, *, weak: bool | None = None) -> DeviceArray:
    """Returns a copy of the array, ``weak`` or not; pass its ``address`` if it has been claimed."""
    held = array.held() if address is None else address
    aval = array.aval if weak is None else interned(replace(array.aval, weak=weak))
    if held >= 0:
        return _copied(_host_view(array.tensor_at(held), array.dtype), aval)
    memory = new(aval, array.memory.device)
    copy(array.memory, held, memory)
    return _on_gpu(memory)


def move(array: DeviceArray, device: Device) -> DeviceArray:
    """Returns ``array`` on ``device``, copied only if it is not there already."""
    if array.device == device:
        return array
    held = array.held()
    if device == CPU:
        host = allocate(array.nbytes)
        copy_out(array.memory, held, host.address, array.nbytes)
        return DeviceArray(host, host.address, array.aval)
    memory = new(array.aval, device)
    if held >= 0:
        copy_in(held, memory)
    else:
        copy(array.memory, held, memory)
    return _on_gpu(memory)
