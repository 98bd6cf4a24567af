"""Saving trees to files, and loading them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from tvmfun import dtypes, tree
from tvmfun.checkpoints.atomic import replace_file
from tvmfun.checkpoints.safetensors import CONTAINERS, OWN_METADATA, Reader, write_arrays
from tvmfun.core.array import Array, DeviceArray, ShapeDtype, device_array, foreign_array, move
from tvmfun.errors import ArgumentError, DtypeError, ShapeError, TreeError
from tvmfun.typing import PyTree

__all__ = ["Contents", "load", "read", "restore", "save"]

_PYTHON_DTYPES = {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float64}


class Contents(NamedTuple):
    """The contents of a file: arrays by name, and metadata."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, str]


def save(path: str | os.PathLike[str], tree: PyTree, *, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a tree into a file, which replaces a file of that name atomically.

    When this returns, the new file is on the disk. If the process dies before, the old file is untouched.

    Args:
        path: the name of the file, usually ``*.safetensors``.
        tree: a tree of arrays and Python numbers. Arrays of other libraries are read through DLPack or NumPy.
        metadata: strings to keep beside the arrays.

    Raises:
        DtypeError: if a leaf is neither an array nor a number, or has a dtype that tvmfun does not have.
        ArgumentError: if the metadata are not strings.
        OSError: if the file cannot be written.

    Source: the safetensors format, https://huggingface.co/docs/safetensors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.safetensors", {"w": np.arange(3)}, metadata={"run": "first"})
    ...     read(f"{folder}/a.safetensors")
    Contents(arrays={"['w']": array([0, 1, 2])}, metadata={'run': 'first'})
    """
    replace_file(path, Snapshot("save", tree, metadata, owned=False).write)


def load(path: str | os.PathLike[str], like: PyTree) -> PyTree:
    """Reads a tree that :func:`save` wrote, and checks that it is the expected one.

    Args:
        path: the name of the file.
        like: a tree of the same structure, shapes and dtypes: an initial state, or the result of ``eval_shape``. A
            Python number takes any number of its kind, because a step makes arrays of such numbers.

    Returns:
        A tree like ``like``: NumPy arrays and Python numbers where ``like`` has them, and arrays of tvmfun on the same
        device elsewhere.

    Raises:
        TreeError: if the file lacks a leaf, has an extra one, or has containers of other types.
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
    # An integer would be a file descriptor.
    with open(os.fspath(path), "rb") as file:
        reader = Reader(path, file)
        result = _restore("load", reader.tensors, reader.array, like)
        _check_containers(reader.containers, like)
        return result


def read(path: str | os.PathLike[str]) -> Contents:
    """Reads any safetensors file as NumPy arrays by name.

    Args:
        path: the name of the file.

    Raises:
        CheckpointError: if the file is damaged, or has a dtype that tvmfun does not have.
        FileNotFoundError: if there is no such file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.safetensors", [1.5, (True,)])
    ...     read(f"{folder}/a.safetensors").arrays
    {'[0]': array(1.5), '[1][0]': array(True)}
    """
    # An integer would be a file descriptor.
    with open(os.fspath(path), "rb") as file:
        reader = Reader(path, file)
        names = sorted(reader.tensors)
        return Contents({name: reader.array(name) for name in names}, reader.metadata)


def restore(arrays: Mapping[str, Any], like: PyTree) -> PyTree:
    """Puts arrays into a tree, and checks names, shapes and dtypes.

    States of other libraries are restored so: name each array by the key path of its leaf.

    Args:
        arrays: arrays by key path, as :func:`tvmfun.tree.keystr` writes it.
        like: a tree with the structure, shapes and dtypes of the result.

    Returns:
        A tree like ``like``, as from :func:`load`.

    Raises:
        TreeError: if the names differ from the key paths of the leaves.
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


class Snapshot:
    """The leaves of a tree by name as NumPy arrays, and the header of their file."""

    def __init__(self, where: str, values: PyTree, metadata: Mapping[str, str] | None, owned: bool) -> None:
        leaves, structure = tree.flatten_with_path(values)
        self._metadata = dict(metadata or {})
        for key, value in self._metadata.items():
            if not isinstance(key, str) or not isinstance(value, str) or key in OWN_METADATA:
                raise ArgumentError(
                    where, "the metadata must be strings", got=f"{key!r}: {value!r}", hint="numbers as leaves"
                )
        arrays: dict[str, np.ndarray] = {}
        # Held arrays are not written in place.
        self._held: list[int] = []
        for path, leaf in leaves:
            name = tree.keystr(path)
            if isinstance(leaf, DeviceArray):
                self._held.append(leaf.held())
            array = _as_numpy(where, name, leaf, owned)
            if name in arrays:
                raise TreeError(where, "two leaves have one key path", got=name)
            arrays[name] = array
        # Wide elements first, so that all are aligned.
        self.arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
        self._metadata[CONTAINERS] = json.dumps(_containers(structure))

    def write(self, file: IO[bytes]) -> None:
        """Writes the file's contents."""
        write_arrays(file, self.arrays, self._metadata)


def _as_numpy(where: str, name: str, leaf: Any, owned: bool) -> np.ndarray:
    """The elements of a leaf; with ``owned``, the result never changes afterwards.

    Raises:
        DtypeError: if the leaf is neither an array nor a number.
    """
    if isinstance(leaf, Array):
        array = leaf.concrete(where)
        # numpy() marks the buffer as shared; otherwise it could be reused while the view exists.
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


def _restore(where: str, found: Mapping[str, ShapeDtype], array: Callable[[str], np.ndarray], like: PyTree) -> PyTree:
    """Puts arrays into a tree, and checks that they fit."""
    leaves, structure = tree.flatten_with_path(like)
    expected = {tree.keystr(path): leaf for path, leaf in leaves}
    hint = "a file of this model" if where == "load" else "arrays of this model"
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    if missing or extra:
        what = [
            f"{len(names)} {kind}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            for kind, names in (("missing", missing), ("too many", extra))
            if names
        ]
        raise TreeError(where, "the arrays must match the leaves of the tree", got="; ".join(what), hint=hint)
    for name, leaf in expected.items():
        shape, dtype = _expected(where, name, leaf)
        if found[name].shape != shape:
            what = f"{name or 'the root'} must have the shape {shape}"
            raise ShapeError(where, what, got=str(found[name].shape), hint=hint)
        got = found[name].dtype
        if got != dtype and not (type(leaf) in _PYTHON_DTYPES and _is_same_kind(got, dtype)):
            what = f"{name or 'the root'} must have the dtype {dtype}"
            may_be_number = shape == () and _is_same_kind(got, dtype) and got in _PYTHON_DTYPES.values()
            raise DtypeError(where, what, got=str(got), hint="a Python number there" if may_be_number else hint)
    return structure.unflatten([_convert_like(leaf, array(name)) for name, leaf in expected.items()])


def _is_same_kind(found: np.dtype, expected: np.dtype) -> bool:
    """Whether a number may have been a Python number of a dtype before a program computed with it."""
    kinds = dtypes.is_float, dtypes.is_integer
    return any(is_kind(found) and is_kind(expected) for is_kind in kinds)


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


def _convert_like(leaf: Any, array: np.ndarray) -> Any:
    if type(leaf) in _PYTHON_DTYPES:
        return array.item()
    if isinstance(leaf, np.ndarray):
        return array
    if isinstance(leaf, np.generic):
        return array[()]
    result = device_array(array, weak=isinstance(leaf, Array) and leaf.weak_type)
    return move(result, leaf.device) if isinstance(leaf, DeviceArray) and not leaf.is_deleted() else result


def _containers(structure: tree.Structure) -> dict[str, str]:
    """The type of each container by its key path, which the names of the leaves do not determine."""
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


def _check_containers(saved: Any, like: PyTree) -> None:
    """Checks that the containers have the saved types, if the file has them."""
    if not isinstance(saved, dict):
        return  # another program wrote the file
    expected = _containers(tree.structure(like))
    for name in sorted(expected.keys() | saved.keys()):
        kind, other = expected.get(name, "absent"), saved.get(name, "absent")
        if kind != other:
            what = f"the container at {name or 'the root'} must be {kind}"
            raise TreeError("load", what, got=str(other), hint="a tree like the saved one, or read and restore")
