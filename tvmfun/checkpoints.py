"""Checkpoints: trees of arrays in files, of which a crash at any instant leaves the old one or the new one.

A file is a safetensors file, which names every leaf by its key path; the ``safetensors`` package and the tools that
know the format read it. Everything that training changes is a tree (parameters, optimizer state, random keys, the
number of the step), so a training run goes on from a file with the bits it would have had.

>>> import tempfile
>>> import tvmfun.numpy as tnp
>>> from tvmfun import random
>>> folder = tempfile.TemporaryDirectory()
>>> state = {"w": tnp.ones((2, 3)), "key": random.key(42), "step": 7}
>>> save(Path(folder.name) / "state.safetensors", state)
>>> load(Path(folder.name) / "state.safetensors", like=state)["key"]
Array([ 0, 42], dtype=uint32)
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.boundary import publish
from tvmfun.core.array import Array, DeviceArray, ShapeDtype, device_array, foreign_array, move
from tvmfun.errors import ArgumentError, CheckpointError, DtypeError, ShapeError, TreeError
from tvmfun.names import missing as _missing

__all__ = ["Contents", "Manager", "load", "read", "restore", "save"]

_NAMES = {
    dtypes.bool_: "BOOL",
    **{dtype: f"I{8 * dtype.itemsize}" for dtype in dtypes.SIGNED},
    **{dtype: f"U{8 * dtype.itemsize}" for dtype in dtypes.UNSIGNED},
    **{dtype: f"F{8 * dtype.itemsize}" for dtype in (dtypes.float16, dtypes.float32, dtypes.float64)},
    dtypes.bfloat16: "BF16",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
# The format keeps strings beside the tensors; under this name are the containers of the tree.
_CONTAINERS = "tvmfun.containers"
_CHECKSUMS = "tvmfun.crc32"
_OWN_METADATA = (_CONTAINERS, _CHECKSUMS)
_METADATA = "__metadata__"
_LARGEST_HEADER = 100_000_000
# Of NumPy's arrays: elements of eight bytes each must have addresses.
_MOST_AXES, _LARGEST_ARRAY = 64, 2**59
_PYTHON_DTYPES = {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float64}


class Contents(NamedTuple):
    """What a file holds: the arrays by name, and the metadata."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, str]


def save(path: Any, tree: Any, *, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a tree into a file, and replaces a file of that name in one step.

    When this returns, the new file is on the disk. If the process dies before, the old file is untouched.

    Args:
        path: the name of the file, usually ``*.safetensors``.
        tree: a tree of arrays and Python numbers. Arrays of other libraries are read through DLPack or NumPy.
        metadata: strings to keep beside the arrays.

    Raises:
        DtypeError: if a leaf is no array and no number, or of a dtype that there is not in tvmfun.
        ArgumentError: if the metadata are not strings.
        OSError: if the file cannot be written.

    Source: the safetensors format, https://huggingface.co/docs/safetensors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.safetensors", {"w": np.arange(3)}, metadata={"run": "first"})
    ...     read(f"{folder}/a.safetensors")
    Contents(arrays={"['w']": array([0, 1, 2])}, metadata={'run': 'first'})
    """
    _write(path, _Snapshot("save", tree, metadata, owned=False))


def load(path: Any, like: Any) -> Any:
    """Reads a tree that :func:`save` wrote, and checks that it is the expected one.

    Args:
        path: the name of the file.
        like: a tree of the same structure, shapes and dtypes: an initial state, or what ``eval_shape`` returns.

    Returns:
        A tree like ``like``. Where that has a NumPy array or a Python number there is one; everywhere else there are
        arrays of tvmfun, on the same device.

    Raises:
        TreeError: if the file lacks a leaf, has one too many, or its containers are of another kind.
        ShapeError: if a leaf has another shape.
        DtypeError: if a leaf has another dtype.
        CheckpointError: if the file is damaged.
        FileNotFoundError: if there is no such file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.safetensors", {"w": np.zeros(3)})
    ...     load(f"{folder}/a.safetensors", like={"w": np.zeros(2)})
    Traceback (most recent call last):
    ...
    tvmfun.errors.ShapeError: [load] ['w'] must have the shape (2,), got (3,). Try a file of this model.
    """
    with open(path, "rb") as file:
        reader = _Reader(path, file)
        result = _restore("load", reader.tensors, reader.array, like)
        _check_containers(reader.containers, like)
        return result


def read(path: Any) -> Contents:
    """Reads any safetensors file, whoever wrote it, as NumPy arrays by name.

    Args:
        path: the name of the file.

    Raises:
        CheckpointError: if the file is damaged, or has a dtype that there is not in tvmfun.
        FileNotFoundError: if there is no such file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.safetensors", [1.5, (True,)])
    ...     read(f"{folder}/a.safetensors").arrays
    {'[0]': array(1.5), '[1][0]': array(True)}
    """
    with open(path, "rb") as file:
        reader = _Reader(path, file)
        names = sorted(reader.tensors)
        return Contents({name: reader.array(name) for name in names}, reader.metadata)


def restore(arrays: Mapping[str, Any], like: Any) -> Any:
    """Puts arrays into a tree, and checks that every leaf gets one that fits.

    This is the way for states of other libraries: give each array the key path of the leaf it belongs to.

    Args:
        arrays: arrays by key path, as :func:`tvmfun.tree.keystr` writes it.
        like: a tree with the structure, shapes and dtypes of the result.

    Returns:
        A tree like ``like``, as from :func:`load`.

    Raises:
        TreeError: if a leaf has no array, or an array no leaf.
        ShapeError: if a leaf has another shape.
        DtypeError: if a leaf has another dtype.

    >>> from tvmfun import nn, random
    >>> theirs = {"weight": np.ones((2, 3), "float32"), "bias": np.zeros(2, "float32")}
    >>> layer = nn.Linear(3, 2, key=random.key(0))
    >>> restore({".weight": theirs["weight"].T, ".bias": theirs["bias"]}, like=layer).weight.shape
    (3, 2)
    """
    found = {name: _as_numpy("restore", name, array, owned=True) for name, array in arrays.items()}
    described = {name: ShapeDtype(array.shape, array.dtype) for name, array in found.items()}
    return _restore("restore", described, found.__getitem__, like)


class Manager:
    """A folder with the checkpoints of one training run, of which the last few are kept.

    A save returns at once and is written by a thread: it keeps the arrays of that moment alive. One save at a time is
    under way; the next one waits for it. Use it in a ``with`` block, which waits for the last save and raises its error
    if it failed; so do :meth:`save` and :meth:`wait`. Reading methods wait as well.

    Args:
        folder: where the files are; made if it does not exist.
        keep: the number of checkpoints to keep; ``None`` for all. Older ones go when a newer one is on the disk.
        background: False to write before :meth:`save` returns.

    Raises:
        ArgumentError: if ``keep`` is not positive.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Manager(folder, keep=2) as checkpoints:
    ...     for step in range(5):
    ...         checkpoints.save(step, {"loss": 1 / (step + 1)})
    ...     checkpoints.steps(), checkpoints.load({"loss": 0.0})
    ([3, 4], {'loss': 0.2})
    """

    _PREFIX, _SUFFIX = "step_", ".safetensors"

    def __init__(self, folder: Any, *, keep: int | None = 3, background: bool = True) -> None:
        if keep is not None and (not isinstance(keep, int) or keep < 1):
            raise ArgumentError("Manager", "keep must be a positive integer or None", got=repr(keep))
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._keep, self._background = keep, background
        self._executor = ThreadPoolExecutor(1, "checkpoints")
        self._pending: Future | None = None
        self._lock = threading.Lock()

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.folder / f"{self._PREFIX}{step:010d}{self._SUFFIX}"

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, in order."""
        self.wait()
        return self._found()

    def save(self, step: int, tree: Any, *, metadata: Mapping[str, str] | None = None) -> None:
        """Saves the tree of a step; see :func:`tvmfun.checkpoints.save`.

        Raises:
            ArgumentError: if the step is not a natural number.
            OSError: if this or the last save could not be written.
        """
        if not isinstance(step, int) or step < 0:
            raise ArgumentError("Manager.save", "the step must be a natural number", got=repr(step))
        with self._lock:
            self._wait()
            snapshot = _Snapshot("Manager.save", tree, metadata, owned=self._background)
            if self._background:
                self._pending = self._executor.submit(self._save, step, snapshot)
            else:
                self._save(step, snapshot)

    def load(self, like: Any, step: int | None = None) -> Any:
        """Loads the tree of a step, by default of the last one; see :func:`tvmfun.checkpoints.load`.

        Raises:
            FileNotFoundError: if there is no such checkpoint.
        """
        if step is None:
            steps = self.steps()
            if not steps:
                raise FileNotFoundError(f"[Manager.load] there is no checkpoint in {self.folder}.")
            step = steps[-1]
        self.wait()
        return load(self.path(step), like)

    def wait(self) -> None:
        """Waits until what was saved is on the disk.

        Raises:
            OSError: if it could not be written.
        """
        with self._lock:
            self._wait()

    def close(self) -> None:
        """Waits for the last save and ends the thread."""
        try:
            self.wait()
        finally:
            self._executor.shutdown()

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _save(self, step: int, snapshot: _Snapshot) -> None:
        _write(self.path(step), snapshot)
        if self._keep is not None:
            # A run that went back to an earlier step keeps what it has just written.
            others = [other for other in self._found() if other != step]
            for other in others[: max(0, len(others) + 1 - self._keep)]:
                self.path(other).unlink(missing_ok=True)

    def _found(self) -> list[int]:
        middle = slice(len(self._PREFIX), -len(self._SUFFIX))
        names = [path.name[middle] for path in self.folder.glob(f"{self._PREFIX}*{self._SUFFIX}")]
        return sorted([int(name) for name in names if name.isdecimal()])


# -- writing ---


class _Snapshot:
    """The leaves of a tree by name as NumPy arrays, and the header of their file."""

    def __init__(self, where: str, values: Any, metadata: Mapping[str, str] | None, owned: bool) -> None:
        leaves, structure = tree.flatten_with_path(values)
        self._strings = dict(metadata or {})
        for key, value in self._strings.items():
            if not isinstance(key, str) or not isinstance(value, str) or key in _OWN_METADATA:
                raise ArgumentError(
                    where, "the metadata must be strings", got=f"{key!r}: {value!r}", hint="numbers as leaves"
                )
        arrays: dict[str, np.ndarray] = {}
        # Nothing is written over arrays while somebody has their addresses.
        self._held: list[int] = []
        for place, leaf in leaves:
            name = tree.keystr(place)
            if isinstance(leaf, DeviceArray):
                self._held.append(leaf.held())
            array = _as_numpy(where, name, leaf, owned)
            if name in arrays:
                raise TreeError(where, "two leaves have one key path", got=name)
            arrays[name] = array
        # Wide elements first, so that all of them are aligned.
        self.arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
        self._strings[_CONTAINERS] = json.dumps(_containers(structure))

    def _header(self) -> bytes:
        checksums = {name: zlib.crc32(_bytes_of(array)) for name, array in self.arrays.items()}
        header: dict[str, Any] = {_METADATA: {**self._strings, _CHECKSUMS: json.dumps(checksums)}}
        end = 0
        for name, array in self.arrays.items():
            start, end = end, end + array.nbytes
            header[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": (start, end)}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8)

    def write(self, file: IO[bytes]) -> None:
        header = self._header()
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for array in self.arrays.values():
            file.write(_bytes_of(array))


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _as_numpy(where: str, name: str, leaf: Any, owned: bool) -> np.ndarray:
    """The elements of a leaf; ``owned`` if nobody may change them after this.

    Raises:
        DtypeError: if the leaf is no array and no number.
    """
    if isinstance(leaf, Array):
        array = leaf.concrete(where)
        # To hold a view for longer the array must know of it, or its buffer may be used again.
        return array.numpy() if owned else array.read(np.asarray)
    hint = "an array or a number"
    try:
        if type(leaf) in _PYTHON_DTYPES:
            return np.asarray(leaf, _PYTHON_DTYPES[type(leaf)])
        if isinstance(leaf, np.ndarray | np.generic):
            dtype = dtypes.canonical(leaf.dtype)
            return np.array(leaf, dtype) if owned else np.asarray(leaf, dtype)
        if hasattr(leaf, "__dlpack__") or hasattr(leaf, "__array__"):
            return foreign_array(leaf, where).numpy()
        got = type(leaf).__name__
    except OverflowError:
        got = f"{leaf}, an integer of more than 64 bits"
    except DtypeError as error:
        got = error.got
        if str(leaf.dtype).startswith("key<"):
            hint = "jax.random.key_data(key)"
    raise DtypeError(where, f"{name or 'the root'} cannot be read", got=got, hint=hint) from None


def _write(path: Any, snapshot: _Snapshot) -> None:
    # A link stays, and the file it leads to is replaced.
    place = Path(os.path.realpath(path))
    for leftover in place.parent.glob(f".{_escaped(place.name)}.*.partial"):
        _remove_if_abandoned(leftover)
    with _new_file(place) as (file, name):
        snapshot.write(file)
        file.flush()
        os.fsync(file.fileno())
        os.replace(name, place)
    # The new name has to reach the disk, too.
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _new_file(place: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file beside ``place``, locked as long as somebody writes it, and deleted if that fails."""
    while True:
        name = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
        with open(name, "xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                # Before it was locked it looked abandoned, and may be gone.
                if not name.exists():
                    continue
                yield file, name
            except BaseException:
                name.unlink(missing_ok=True)
                raise
            return


def _remove_if_abandoned(path: Path) -> None:
    """Removes what a killed process has left; whoever still writes it has it locked."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except OSError:
        pass  # somebody writes it, or has removed it already


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


# -- reading ---


class _Reader:
    """The header of an open file, checked, and its arrays one by one."""

    def __init__(self, path: Any, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise self._damaged(f"a header of {length} bytes in a file of {size}")
        try:
            header = json.loads(file.read(length))
            strings = header.pop(_METADATA, {})
            tensors = {
                name: (entry["dtype"], tuple(map(_natural, entry["shape"])), *map(_natural, entry["data_offsets"]))
                for name, entry in header.items()
            }
            for dtype, shape, _, _ in tensors.values():
                _check_size(dtype, shape)
            self.metadata = {str(key): str(value) for key, value in strings.items()}
            self.containers = json.loads(self.metadata.pop(_CONTAINERS, "null"))
            self._checksums = dict(json.loads(self.metadata.pop(_CHECKSUMS, "{}")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._damaged(f"a header that cannot be read ({error})") from None
        self._start = 8 + length
        self._offsets: dict[str, int] = {}
        self.tensors: dict[str, ShapeDtype] = {}
        end = 0
        for name, (dtype, shape, first, last) in sorted(tensors.items(), key=lambda item: item[1][2:]):
            if dtype not in _DTYPES:
                raise CheckpointError("read", f"{name} of {path} must have a dtype of tvmfun", got=dtype)
            self.tensors[name] = ShapeDtype(shape, _DTYPES[dtype])
            self._offsets[name] = first
            if first != end or last - first != self.tensors[name].nbytes:
                raise self._damaged(f"{self.tensors[name]} in bytes {first} to {last} at {name}")
            end = last
        if self._start + end != size:
            raise self._damaged(f"{size} bytes instead of {self._start + end}")

    def _damaged(self, got: str) -> CheckpointError:
        return CheckpointError("read", f"{self._path} is no whole safetensors file", got=got)

    def array(self, name: str) -> np.ndarray:
        """Reads one array."""
        aval = self.tensors[name]
        array = np.empty(aval.shape, aval.dtype)
        self._file.seek(self._start + self._offsets[name])
        if self._file.readinto(array.reshape(-1).view(np.uint8)) != aval.nbytes:  # type: ignore[attr-defined]
            raise self._damaged(f"fewer bytes than the header says at {name}")
        # Files that others wrote have none.
        if name in self._checksums and zlib.crc32(_bytes_of(array)) != self._checksums[name]:
            raise self._damaged(f"another checksum than the header says at {name}")
        return array


def _natural(value: Any) -> int:
    """A size or a place in a header: int() would make one of 1.5, of True and of text as well."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no natural number")
    return value


def _check_size(dtype: Any, shape: tuple[int, ...]) -> None:
    """Refuses shapes that no array can have, also where it would have no element."""
    if not isinstance(dtype, str):
        raise ValueError(f"{dtype!r} is no dtype")
    if len(shape) > _MOST_AXES or math.prod(size for size in shape if size) > _LARGEST_ARRAY:
        raise ValueError(f"no array has the shape {shape}")


def _restore(where: str, found: Mapping[str, ShapeDtype], array: Callable[[str], np.ndarray], like: Any) -> Any:
    """Puts arrays that fit into a tree."""
    leaves, structure = tree.flatten_with_path(like)
    expected = {tree.keystr(place): leaf for place, leaf in leaves}
    hint = "a file of this model" if where == "load" else "arrays of this model"
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    if missing or extra:
        what = [
            f"{len(names)} {kind}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            for kind, names in (("missing", missing), ("too many", extra))
            if names
        ]
        raise TreeError(where, "the arrays must be those of the tree's leaves", got="; ".join(what), hint=hint)
    for name, leaf in expected.items():
        shape, dtype = _expected(where, name, leaf)
        if found[name].shape != shape:
            what = f"{name or 'the root'} must have the shape {shape}"
            raise ShapeError(where, what, got=str(found[name].shape), hint=hint)
        if found[name].dtype != dtype:
            what = f"{name or 'the root'} must have the dtype {dtype}"
            raise DtypeError(where, what, got=str(found[name].dtype), hint=hint)
    return structure.unflatten([_like(leaf, array(name)) for name, leaf in expected.items()])


def _expected(where: str, name: str, leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    if type(leaf) in _PYTHON_DTYPES:
        return (), _PYTHON_DTYPES[type(leaf)]
    if isinstance(leaf, Array | ShapeDtype | np.ndarray | np.generic):
        return tuple(leaf.shape), dtypes.canonical(leaf.dtype)
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        what = f"{name or 'the root'} of the tree must be an array or a number"
        raise DtypeError(where, what, got=type(leaf).__name__)
    # PyTorch's dtypes are not NumPy's, but have the same names.
    return tuple(leaf.shape), dtypes.canonical(str(leaf.dtype).removeprefix("torch."))


def _like(leaf: Any, array: np.ndarray) -> Any:
    if type(leaf) in _PYTHON_DTYPES:
        return array.item()
    if isinstance(leaf, np.ndarray):
        return array
    if isinstance(leaf, np.generic):
        return array[()]
    result = device_array(array, weak=isinstance(leaf, Array) and leaf.weak_type)
    return move(result, leaf.device) if isinstance(leaf, DeviceArray) and not leaf.is_deleted() else result


def _containers(structure: tree.Structure) -> dict[str, str]:
    """The kind of every container by its key path: what the names of the leaves do not tell apart."""
    kinds: dict[str, str] = {}

    def visit(node: tree.Structure, path: tree.Path) -> None:
        if node.type is None:
            return
        kinds[tree.keystr(path)] = node.type.__name__
        level = node.one_level()
        if level is not None:
            for entry, child in zip(level.accessors(), node.children(), strict=True):
                visit(child, path + entry)

    visit(structure, tree.Path())
    return kinds


def _check_containers(saved: Any, like: Any) -> None:
    """Checks that the containers are of the same kinds, too, if their kinds are known."""
    if not isinstance(saved, dict):
        return  # some other program wrote the file
    expected = _containers(tree.structure(like))
    for name in sorted(expected.keys() | saved.keys()):
        kind, other = expected.get(name, "absent"), saved.get(name, "absent")
        if kind != other:
            what = f"the container at {name or 'the root'} must be {kind}"
            raise TreeError("load", what, got=str(other), hint="a tree like the saved one, or read and restore")


__getattr__ = _missing(__name__)
publish(globals())
