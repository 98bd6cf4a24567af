"""State dicts of PyTorch: a table maps their arrays to the leaves of a model.

A row of the table is a key path, a name and a layout of the axes; it is used in both directions.
PyTorch is imported only by :func:`to_torch`.

>>> import numpy as np
>>> from tvmfun import nn, random
>>> table = [Row(".weight", "weight", "linear"), Row(".bias", "bias")]
>>> theirs = {"weight": np.ones((2, 3), "float32"), "bias": np.zeros(2, "float32")}
>>> layer = from_state_dict(nn.Linear(3, 2, key=random.key(0)), theirs, table)
>>> layer.weight.shape
(3, 2)
>>> {name: array.shape for name, array in to_state_dict(layer, table).items()}
{'weight': (2, 3), 'bias': (2,)}
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import checkpoints, tree
from tvmfun.boundary import publish
from tvmfun.errors import ArgumentError, ShapeError, TreeError
from tvmfun.typing import PyTree

__all__ = ["Row", "from_state_dict", "linear", "norm", "to_state_dict", "to_torch"]


class Row(NamedTuple):
    """The array of a state dict that belongs to a leaf of a model.

    Args:
        path: the key path of the leaf, as :func:`tvmfun.tree.keystr` writes it, with ``{i}`` for any index.
        name: the name of the array, with ``{i}`` for the same index.
        layout: the arrangement of the axes there: ``"same"``; ``"linear"``, (outputs, inputs); ``"conv"``,
            ``(outputs, inputs, *window)``; ``"conv_transpose"``, ``(inputs, outputs / groups, *window)``.
        part: ``(k, n)`` if the leaf is the k-th of n equal parts of the array, along its axis of outputs.
        tied: whether the array is another name for a leaf that has a row already: it may be missing, and is written.
        groups: the groups of a transposed convolution.
    """

    path: str
    name: str
    layout: str = "same"
    part: tuple[int, int] = (0, 1)
    tied: bool = False
    groups: int = 1


def linear(path: str, name: str, layout: str = "linear", **fields: Any) -> list[Row]:
    """Returns the rows of a linear layer, or (by another layout) of a convolution: a weight and a bias."""
    return [Row(f"{path}.weight", f"{name}.weight", layout, **fields), Row(f"{path}.bias", f"{name}.bias", **fields)]


def norm(path: str, name: str) -> list[Row]:
    """Returns the rows of a normalization: a weight and a bias."""
    return linear(path, name, "same")


def _read_conv_transpose(array: np.ndarray, groups: int) -> np.ndarray:
    inputs, outputs, *window = array.shape
    if inputs % groups:
        raise ShapeError("from_state_dict", f"{groups} groups must have equally many inputs", got=str(array.shape))
    parts = array.reshape(groups, inputs // groups, outputs, *window)
    return np.moveaxis(parts, (1, 0, 2), (-3, -2, -1)).reshape(*window, inputs // groups, groups * outputs)


def _write_conv_transpose(array: np.ndarray, groups: int) -> np.ndarray:
    *window, inputs, outputs = array.shape
    parts = array.reshape(*window, inputs, groups, outputs // groups)
    return np.moveaxis(parts, (-3, -2, -1), (1, 0, 2)).reshape(groups * inputs, outputs // groups, *window)


# The reader and the writer of each layout, functions of an array and the groups.
_LAYOUTS = {
    "same": (lambda array, _: array, lambda array, _: array),
    "linear": (lambda array, _: array.T, lambda array, _: array.T),
    "conv": (
        lambda array, _: np.moveaxis(array, (0, 1), (-1, -2)),
        lambda array, _: np.moveaxis(array, (-1, -2), (0, 1)),
    ),
    "conv_transpose": (_read_conv_transpose, _write_conv_transpose),
}


def _read(array: np.ndarray, row: Row) -> np.ndarray:
    return _LAYOUTS[row.layout][0](array, row.groups)


def _write(array: np.ndarray, row: Row) -> np.ndarray:
    return _LAYOUTS[row.layout][1](array, row.groups)


def from_state_dict(model: PyTree, source: Any, table: Iterable[Row], *, prefix: str = "", ignore: str = "") -> PyTree:
    """Returns the model with the arrays of a state dict.

    Args:
        model: a tree with the structure, shapes and dtypes of the result.
        source: arrays by name, a module with a method ``state_dict``, or the path of a ``.safetensors`` file.
        table: which array is which leaf.
        prefix: what names begin with there in addition, such as ``"transformer."``.
        ignore: a regular expression; arrays whose whole names match it are left out.

    Raises:
        TreeError: if a leaf has no array, or an array no leaf.
        ShapeError: if an array has another shape than its leaf.
        ArgumentError: if a leaf has no row, tied arrays differ, or ``ignore`` is not a regular expression.
        FileNotFoundError: if there is no such file.
    """
    try:
        ignored = re.compile(ignore)
    except re.error as error:
        raise ArgumentError("from_state_dict", f"ignore must be a regular expression ({error})", got=ignore) from None
    arrays = {name: array for name, array in _arrays(source).items() if not (ignore and ignored.fullmatch(name))}
    leaves, used = {}, set()
    for path, leaf, rows in _rows(model, table):
        found = None
        for row in rows:
            name = prefix + row.name
            if name not in arrays:
                if row.tied:
                    continue
                raise TreeError("from_state_dict", f"{path} needs an array {name!r}", got=_similar(name, arrays))
            used.add(name)
            array = _split_part(_read(arrays[name], row), row, name)
            if found is not None and not np.array_equal(found, array, equal_nan=True):
                raise ArgumentError(
                    "from_state_dict", f"{name!r} must be tied to {rows[0].name!r}", got="other numbers"
                )
            found = array
            if tuple(array.shape) != tuple(np.shape(leaf)):
                what = f"{name!r} must have the shape of {path}, {_theirs(np.shape(leaf), row)}"
                raise ShapeError("from_state_dict", what, got=str(arrays[name].shape))
        leaves[path] = np.asarray(found, leaf.dtype)
    unused = sorted(arrays.keys() - used)
    if unused:
        hint = f"ignore={re.escape(unused[0])!r}"
        raise TreeError(
            "from_state_dict", "every array must be a leaf of the model", got=", ".join(unused[:5]), hint=hint
        )
    return checkpoints.restore(leaves, model)


def to_state_dict(model: PyTree, table: Iterable[Row], *, prefix: str = "") -> dict[str, np.ndarray]:
    """Returns the arrays of a model by the names of a state dict, in the order of the table.

    Args:
        model: the model.
        table: which leaf is which array.
        prefix: what names begin with in addition.

    Raises:
        ArgumentError: if a leaf has no row.
    """
    table = list(table)
    parts: dict[str, dict[int, np.ndarray]] = {}
    by_name: dict[str, Row] = {}
    for _, leaf, rows in _rows(model, table):
        for row in rows:
            parts.setdefault(row.name, {})[row.part[0]] = np.asarray(leaf)
            by_name[row.name] = row
    joined = {name: np.concatenate([p[k] for k in sorted(p)], -1) if len(p) > 1 else p[0] for name, p in parts.items()}
    return {prefix + name: np.ascontiguousarray(_write(a, by_name[name])) for name, a in joined.items()}


def to_torch(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns PyTorch's tensors for ``module.load_state_dict``, which own their memory."""
    import torch

    def tensor(array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":  # which NumPy's arrays have only by an extension
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(array.copy())

    return {name: tensor(array) for name, array in arrays.items()}


def _arrays(source: Any) -> dict[str, np.ndarray]:
    """Arrays by name."""
    if isinstance(source, str | os.PathLike):
        return checkpoints.read(source).arrays
    state = source if isinstance(source, Mapping) else source.state_dict()
    return {name: _numpy(value) for name, value in state.items()}


def _numpy(value: Any) -> np.ndarray:
    # Through DLPack, because tensors of PyTorch in bfloat16 do not become NumPy arrays.
    return np.asarray(tnp.asarray(value.detach().cpu()) if hasattr(value, "detach") else value)


def _rows(model: PyTree, table: Iterable[Row]) -> list[tuple[str, Any, list[Row]]]:
    """Each leaf's key path, the leaf, and its rows with the indices filled in, tied ones last."""
    table = list(table)
    for row in table:
        if row.layout not in _LAYOUTS:
            layouts = ", ".join(map(repr, _LAYOUTS))
            raise ArgumentError("from_state_dict", f"the layout must be one of {layouts}", got=repr(row.layout))
    patterns = [
        (re.compile(re.escape(row.path).replace(r"\{i\}", r"(?P<i>\d+)", 1).replace(r"\{i\}", "(?P=i)")), row)
        for row in table
    ]
    result = []
    for path, leaf in tree.leaves_with_path(model):
        text = tree.keystr(path)
        matches = [(found, row) for pattern, row in patterns if (found := pattern.fullmatch(text))]
        rows = [row._replace(name=row.name.format(**found.groupdict())) for found, row in matches]
        if not rows:
            raise ArgumentError("from_state_dict", f"the table must have a row for {text}", got="none")
        result.append((text, leaf, sorted(rows, key=lambda row: row.tied)))
    return result


def _split_part(array: np.ndarray, row: Row, name: str) -> np.ndarray:
    k, n = row.part
    if n == 1:
        return array
    if array.ndim == 0 or array.shape[-1] % n:
        raise ShapeError("from_state_dict", f"{name!r} must have {n} equal parts", got=str(array.shape))
    return np.split(array, n, -1)[k]


def _theirs(shape: Sequence[int], row: Row) -> tuple[int, ...]:
    """The shape that an array must have there."""
    whole = (*shape[:-1], shape[-1] * row.part[1]) if shape else ()
    return tuple(_write(np.broadcast_to(np.int8(0), whole), row).shape)


def _similar(name: str, arrays: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, arrays, 3, 0.8)
    return f"none, but {', '.join(close)}" if close else "none"


publish(globals())
