"""Machine code of kernels: each is compiled once, and found again by its source in memory and on disk."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvmfun.executors import ThreadPool
from tvmfun.lower import disk_cache
from tvmfun.lower.codegen.cuda.compilers import Compiler, Image, Options
from tvmfun.runtime.cuda_module import Cubin, TensorMap, Usage
from tvmfun.threads import cpu_count

#: The name of a kernel in its own source, until it gets its final one.
PLACEHOLDER = "tvmfun_kernel"

# A source costs nvcc half a second, however few kernels there are in it.
_FEWEST_KERNELS = 4
_KEPT = 4096
_IMAGES: OrderedDict[str, Image] = OrderedDict()


@dataclass(frozen=True)
class KernelSource:
    """A kernel as CUDA C++.

    Args:
        title: the start of its name, such as its ops.
        prelude: includes and definitions.
        body: the kernel, named :data:`PLACEHOLDER`.
        maps: the tensor maps by the positions of their parameters, with addresses relative to the argument.
    """

    title: str
    prelude: str
    body: str
    maps: tuple[tuple[int, TensorMap], ...] = ()

    @cached_property
    def name(self) -> str:
        """The kernel's name: the title, and a hash that tells it from all other kernels."""
        digest = hashlib.sha256(f"{self.prelude}\n{self.body}".encode()).hexdigest()
        return f"{self.title}_{digest[:16]}"

    @property
    def text(self) -> str:
        """The kernel under its own name."""
        return self.body.replace(PLACEHOLDER, self.name)


def compiled(sources: Iterable[KernelSource], compiler: Compiler, options: Options) -> list[Cubin]:
    """Returns the machine code of kernels, in the order of the sources; equal ones share it.

    Raises:
        TargetError: if the compiler refuses something.
    """
    by_key = {_key(source, compiler, options): source for source in sources}
    images = {key: _stored(key) for key in by_key}
    missing = {key: by_key[key] for key, image in images.items() if image is None}
    units = _units(list(missing.values()), compiler)
    compile_unit = lambda unit: compiler.compile(unit[0], [source.name for source in unit[1]], options)
    with ThreadPool(max(1, min(len(units), cpu_count()))) as pool:
        new = {
            source.name: image
            for (_, unit), made in zip(units, pool.map(compile_unit, units), strict=True)
            for source, image in zip(unit, made, strict=True)
        }
    for key, source in missing.items():
        images[key] = new[source.name]
        _store(key, new[source.name])
    return [Cubin(images[key].content, (source.name,), (images[key].usage,)) for key, source in by_key.items()]


def clear_cache() -> None:
    """Forgets the machine code in this process; the disk cache stays."""
    _IMAGES.clear()


# Definitions of kernels follow TVM's lines before a kernel, guarded by their names.
_GUARD = re.compile(r"^#ifndef (tvmfun_\w+)\n#define \1$", re.MULTILINE)


class Group:
    """Kernels that one source can hold.

    The lines before them are the first kernel's, which include those of the others. Guards let a definition appear only
    once, so a name must mean the same in all kernels.
    """

    def __init__(self, header: str) -> None:
        self.header = header
        self.definitions: dict[str, str] = {}
        self.kernels: list[KernelSource] = []

    def takes(self, header: str, definitions: dict[str, str]) -> bool:
        """Whether a kernel with these lines and definitions before it is the same in a source of this group."""
        is_equal = all(self.definitions.get(name, text) == text for name, text in definitions.items())
        return is_equal and (header == self.header or _has_lines(self.header, header))

    def source(self, kernels: Sequence[KernelSource]) -> str:
        """The source of some of its kernels."""
        needed = {name: text for kernel in kernels for name, text in _parts(kernel.prelude)[1].items()}
        return "\n".join([self.header, *needed.values(), *(kernel.text for kernel in kernels)])


def _parts(prelude: str) -> tuple[str, dict[str, str]]:
    """Splits a prelude into the lines that are not guarded, and definitions by name."""
    guards = list(_GUARD.finditer(prelude))
    bounds = [*(guard.start() for guard in guards), len(prelude)]
    definitions: dict[str, str] = {}
    for guard, end in zip(guards, bounds[1:], strict=True):
        definitions.setdefault(guard[1], prelude[guard.start() : end].strip())
    return prelude[: bounds[0]], definitions


def _has_lines(text: str, others: str) -> bool:
    """Whether a text contains the lines of another text, in order."""
    lines = iter(text.splitlines())
    return all(line in lines for line in others.splitlines())


def _units(sources: Sequence[KernelSource], compiler: Compiler) -> list[tuple[str, list[KernelSource]]]:
    """Texts for the compiler, and the kernels in each: one kernel per text, or as many texts as cores."""
    if not compiler.is_slow_to_start:
        return [(f"{source.prelude}\n{source.text}", [source]) for source in sources]
    units = []
    for group in grouped(sources):
        kernels = sorted(group.kernels, key=lambda source: -len(source.body))
        count = max(1, min(cpu_count(), len(kernels) // _FEWEST_KERNELS))
        units += [(group.source(kernels[i::count]), kernels[i::count]) for i in range(count)]
    return units


def grouped(sources: Iterable[KernelSource]) -> list[Group]:
    """Groups kernels that one source can hold."""
    groups: list[Group] = []
    for source in sorted(sources, key=lambda source: -len(_parts(source.prelude)[0])):
        header, definitions = _parts(source.prelude)
        group = next((group for group in groups if group.takes(header, definitions)), None)
        if group is None:
            group = Group(header)
            groups.append(group)
        group.definitions.update(definitions)
        group.kernels.append(source)
    return groups


# -- the cache -----------------------------------------------------------------------------------------------------

_LENGTH = struct.Struct("<Q")


def _key(source: KernelSource, compiler: Compiler, options: Options) -> str:
    parts = (source.name, source.prelude, source.body, *map(str, options), compiler.version)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _stored(key: str) -> Image | None:
    if key in _IMAGES:
        _IMAGES.move_to_end(key)
        return _IMAGES[key]
    content = disk_cache.load_bytes(f"{key}.cubin")
    if content is None:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    image = Image(content[end:], Usage(*json.loads(content[_LENGTH.size : end])))
    _keep(key, image)
    return image


def _store(key: str, image: Image) -> None:
    _keep(key, image)
    usage = json.dumps(image.usage).encode()
    disk_cache.store_bytes(f"{key}.cubin", _LENGTH.pack(len(usage)) + usage + image.content)


def _keep(key: str, image: Image) -> None:
    _IMAGES[key] = image
    if len(_IMAGES) > _KEPT:
        _IMAGES.popitem(last=False)
