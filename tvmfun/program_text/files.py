"""Files of Programs: a line with the format, a checksum, a manifest as JSON, and the text of the Program.

Arrays that the Program captured are in a safetensors file beside it, whose checksum the manifest has.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from tvmfun.checkpoints.atomic import replace_file
from tvmfun.checkpoints.safetensors import Reader as ArrayReader
from tvmfun.checkpoints.safetensors import write_arrays
from tvmfun.core.array import Array, device_array
from tvmfun.core.program import Program
from tvmfun.errors import CheckpointError, ProgramError
from tvmfun.manifest.entries import leaf_entry, versions
from tvmfun.manifest.trees import leaf_names, result_names, stored
from tvmfun.program_text.calls import without_functions
from tvmfun.program_text.reader import Reader, Trees, read_tree
from tvmfun.program_text.writer import Writer

FORMAT = 1
_FIRST_LINE = "tvmfun program, format "
_CHECKSUM_LINE = "sha256 "
# The lines before the manifest.
_LINES = 2
_DAMAGED = "saving or copying it again, or allow_edits=True if it was edited"


class Saved(NamedTuple):
    """The contents of a file."""

    program: Program
    manifest: dict[str, Any]


def save(
    program: Program,
    path: str | os.PathLike[str],
    *,
    inline: bool = False,
    arguments: Sequence[str] = (),
    donated: Sequence[int] = (),
    more: Mapping[str, Any] | None = None,
) -> None:
    """Writes a Program into a file; see :meth:`tvmfun.Program.save`.

    Args:
        program: the Program.
        path: the file to write or replace.
        inline: whether to replace calls that hold Python functions by their equations.
        arguments: the names of its arguments, if they are known.
        donated: the indices of the leaves of its arguments that may be overwritten.
        more: more entries for the manifest.
    """
    if inline:
        program = without_functions(program)
    writer = Writer()
    text = writer.write(program, with_trees=False)
    arrays = {str(i): array.concrete("Program.save").numpy() for i, array in enumerate(writer.arrays)}
    # Only a text that reads back is saved: limits and names are checked before a file is replaced.
    if Reader(text, writer.arrays).read((program.in_tree, program.out_tree)).text != program.text:
        raise ProgramError("Program.save", "the Program has values that its text does not have", got=program.name)
    manifest = {
        "name": program.name,
        "versions": versions(),
        **_signature(program, arguments, donated),
        **(more or {}),
    }
    path = Path(path)
    if arrays:
        beside = arrays_path(path)
        replace_file(beside, lambda file: write_arrays(file, arrays, {}))
        weak = [i for i, array in enumerate(writer.arrays) if array.aval.weak]
        checksum = hashlib.sha256(beside.read_bytes()).hexdigest()
        manifest["arrays"] = {"count": len(arrays), "weak": weak, "sha256": checksum}
    body = f"{_manifest_text(manifest)}\n{text}\n".encode()
    head = f"{_FIRST_LINE}{FORMAT}\n{_CHECKSUM_LINE}{hashlib.sha256(body).hexdigest()}\n"

    def write(file: IO[bytes]) -> None:
        file.write(head.encode() + body)

    replace_file(path, write)


def arrays_path(path: Path) -> Path:
    """The file of the arrays that belongs to the file of a Program."""
    return path.with_name(f"{path.name}.safetensors")


def _signature(program: Program, arguments: Sequence[str], donated: Sequence[int]) -> dict[str, Any]:
    """The entries of the manifest for leaves and trees."""
    positional, by_name = program.in_tree.children()
    names = list(arguments) or [f"args[{i}]" for i in range(positional.num_children)] + list(by_name.entries())
    return {
        "inputs": [
            leaf_entry(name, aval.shape, aval.dtype, donated=i in donated)
            for i, (name, aval) in enumerate(zip(leaf_names(program.in_tree, names), program.in_avals, strict=True))
        ],
        "outputs": [
            leaf_entry(name, aval.shape, aval.dtype)
            for name, aval in zip(result_names(program.out_tree), program.out_avals, strict=True)
        ],
        "arguments": stored(program.in_tree),
        "results": stored(program.out_tree),
    }


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    """JSON with a line for each entry, and for each leaf."""

    def entry(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        return json.dumps(value)

    return "{\n  " + ",\n  ".join(f"{json.dumps(key)}: {entry(value)}" for key, value in manifest.items()) + "\n}"


def load(path: str | os.PathLike[str], allow_edits: bool = False) -> Saved:
    """Reads a Program and its manifest; nothing of the file is run.

    Args:
        path: the file.
        allow_edits: whether the checksum may be another one, because a person edited the text.

    Raises:
        ProgramError: if it is truncated, altered, of another format, or has an op or a class that is not here.
        OSError: if it, or the file of its arrays, cannot be read.
    """
    path = Path(path)
    body = _checked(path, path.read_bytes(), allow_edits)
    try:
        text = body.decode()
        manifest, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"a manifest that cannot be read ({error})") from None
    if not isinstance(manifest, dict):
        raise _damaged(path, "a manifest that is not an object")
    try:
        arrays = _arrays(path, manifest.get("arrays"))
        lines = _LINES + 1 + text.count("\n", 0, end)
        program = Reader(text[end:], arrays, lines).read(_trees(path, manifest))
        if _signature_of(manifest) != _without_names(_signature(program, (), ())):
            raise _damaged(path, "a manifest of another Program")
    except ProgramError as error:
        written = manifest.get("versions")
        if written == versions() or error.hint:
            raise
        hint = f"the versions that wrote it, {written}"
        raise ProgramError(error.where, error.what, got=error.got, hint=hint) from None
    return Saved(program, manifest)


def _checked(path: Path, content: bytes, allow_edits: bool) -> bytes:
    """The manifest and the text of a complete file."""
    first, _, rest = content.partition(b"\n")
    if not first.startswith(_FIRST_LINE.encode()):
        raise _damaged(path, f"a file that begins with {content[:16]!r}")
    number = first[len(_FIRST_LINE) :]
    if number != str(FORMAT).encode():
        what = f"{path} must have format {FORMAT}"
        hint = "the version of tvmfun that wrote it"
        raise ProgramError("Program.load", what, got=f"format {number[:16].decode(errors='replace')}", hint=hint)
    checksum, _, body = rest.partition(b"\n")
    expected = f"{_CHECKSUM_LINE}{hashlib.sha256(body).hexdigest()}".encode()
    if checksum != expected and not (allow_edits and len(checksum) == len(expected)):
        raise _damaged(path, "another checksum than the file says")
    return body


def _damaged(path: Path, got: str) -> ProgramError:
    return ProgramError("Program.load", f"{path} is not a complete saved Program", got=got, hint=_DAMAGED)


def _trees(path: Path, manifest: Mapping[str, Any]) -> Trees:
    error = lambda what, got: _damaged(path, f"{what} ({got})")
    arguments, results = (read_tree(manifest.get(key, ""), error) for key in ("arguments", "results"))
    if arguments.type is not tuple or [child.type for child in arguments.children()] != [tuple, dict]:
        raise error("a tree of arguments of another form", str(arguments))
    return arguments, results


def _signature_of(manifest: Mapping[str, Any]) -> Any:
    try:
        return _without_names({key: manifest[key] for key in ("inputs", "outputs", "arguments", "results")})
    except (KeyError, TypeError, AttributeError):
        return None


def _without_names(signature: Mapping[str, Any]) -> dict[str, Any]:
    """A signature without the parts that a Program lacks: the names of arguments, and donation."""
    leaves = {key: [(entry["shape"], entry["dtype"]) for entry in signature[key]] for key in ("inputs", "outputs")}
    return {**signature, **leaves}


def _arrays(path: Path, entry: Any) -> list[Array]:
    """The captured arrays of the file beside it."""
    if entry is None:
        return []
    if not isinstance(entry, dict) or type(entry.get("count")) is not int:
        raise _damaged(path, "an entry for arrays of another form")
    beside = arrays_path(path)
    weak = entry.get("weak")
    with open(beside, "rb") as file:
        if hashlib.sha256(file.read()).hexdigest() != entry.get("sha256") or not isinstance(weak, list):
            raise _damaged(beside, f"another checksum than {path} says")
        file.seek(0)
        try:
            reader = ArrayReader(beside, file)
            names = [str(i) for i in range(len(reader.tensors))]
            if set(reader.tensors) != set(names) or len(names) != entry["count"]:
                raise _damaged(beside, f"{len(names)} arrays")
            return [device_array(reader.array(name), weak=i in weak) for i, name in enumerate(names)]
        except CheckpointError as error:
            raise _damaged(beside, str(error)) from None
