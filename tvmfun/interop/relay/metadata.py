"""The metadata section at the end of a text: a graph of objects in JSON, from which constants are read.

A node refers to others by their numbers. Only the path from the root to a constant is followed, which has a known
length, so that a graph with cycles does no harm.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun.errors import ProgramError
from tvmfun.interop.relay.params import Reader
from tvmfun.interop.relay.source import Source

#: The only kind of objects that are read.
CONSTANT = "relay.Constant"


class Metadata:
    """The constants of a metadata section, each decoded when it is needed.

    Args:
        source: the text.
        offset: of the section's JSON; None if there is no section.
    """

    def __init__(self, source: Source, offset: int | None) -> None:
        self.source = source
        self.offset = offset or 0
        self.graph = {} if offset is None else self._json()
        self._constants: dict[int, Any] = {}

    def _json(self) -> dict:
        try:
            graph = json.loads(self.source.text[self.offset :])
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from None
        if not isinstance(graph, dict):
            raise self._damaged(type(graph).__name__)
        return graph

    def _damaged(self, got: str) -> ProgramError:
        return self.source.error(self.offset, "the metadata section is damaged", got=got[:80])

    def constant(self, key: str, index: int, offset: int) -> Any:
        """The constant of ``meta[key][index]``, which is written at ``offset``: an array, and NumPy's without axes.

        Raises:
            ProgramError: if it is not a constant, is not in the section, or is damaged.
        """
        if key != CONSTANT:
            what = f"of the metadata section only {CONSTANT} is read"
            raise self.source.error(offset, what, got=f"meta[{key[:40]}][{index}]")
        if index not in self._constants:
            try:
                data = self._encoded(index)
            except (KeyError, IndexError, TypeError, ValueError):
                raise self.source.error(offset, "the metadata section lacks this constant", got=str(index)) from None
            array = self._decoded(data)
            # All uses share one array, which a Program captures once.
            self._constants[index] = tnp.asarray(array) if array.ndim else array
        return self._constants[index]

    def _decoded(self, data: str) -> np.ndarray:
        try:
            reader = Reader(base64.b64decode(data, validate=True), "from_relay")
        except (binascii.Error, ValueError) as error:
            raise self._damaged(str(error)) from None
        array = reader.array()
        reader.end()
        return array

    def _encoded(self, index: int) -> str:
        """The array of a constant in base64; the format of the graph changed when TVM's object system did."""
        nodes = self.graph["nodes"]
        if "root_index" in self.graph:
            return self._followed(nodes, _natural(self.graph["root_index"]), index, _new_entries, _new_data)
        arrays = self.graph["b64ndarrays"]
        return self._followed(
            nodes, _natural(self.graph["root"]), index, _old_entries, lambda _, node: _old_data(arrays, node)
        )

    @staticmethod
    def _followed(nodes: list, root: int, index: int, entries: Callable, data: Callable) -> str:
        """The array of a constant, from the map at the root by the list of constants."""
        members = nodes[entries(nodes, nodes[root])[CONSTANT]]["data"]
        found = data(nodes, nodes[_natural(members[index])])
        if not isinstance(found, str):
            raise TypeError
        return found


def _natural(value: Any) -> int:
    """An index that is not negative; Python would count others from the end."""
    number = int(value)
    if isinstance(value, bool | float) or number < 0:
        raise ValueError
    return number


def _old_entries(nodes: list, root: dict) -> dict[str, int]:
    """The nodes of the entries of a map: ``{"type_key": "Map", "keys": [...], "data": [...]}``."""
    return {key: _natural(number) for key, number in zip(root["keys"], root["data"], strict=True)}


def _old_data(arrays: list, node: dict) -> Any:
    if node["type_key"] != CONSTANT:
        raise ValueError
    return arrays[_natural(node["attrs"]["data"])]


def _new_entries(nodes: list, root: dict) -> dict[str, int]:
    """Likewise for ``{"type": "ffi.Map", "data": [key, value, ...]}``, whose keys are nodes, too."""
    numbers = [_natural(number) for number in root["data"]]
    return {nodes[key]["data"]: value for key, value in zip(numbers[::2], numbers[1::2], strict=True)}


def _new_data(nodes: list, node: dict) -> Any:
    if node["type"] != CONSTANT:
        raise ValueError
    tensor = nodes[_natural(node["data"]["data"])]
    return tensor["data"]
