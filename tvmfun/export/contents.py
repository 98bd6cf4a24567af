"""The generated C file of an exported library: its signature, its machine code by target, and the bytes it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.export.c_source import Payload, address, braces, numbers, text
from tvmfun.export.dynamic_contents import Formulas, plan_lines, shape_lines, static_axes
from tvmfun.export.features import Feature
from tvmfun.export.loader import DTYPES, SizeInfo
from tvmfun.manifest.entries import leaf_entry
from tvmfun.runtime.plan import DynamicPlan, Plan

_CODES = {name: code for code, name in DTYPES.items()}


@dataclass(frozen=True)
class Leaf:
    """An array among the arguments or results.

    Args:
        name: its name.
        shape: its shape.
        dtype: its dtype.
        partner: for an argument the result that is written over it; for a result that argument; -1 if there is none.
        donated: whether it is a donated argument.
        initial: its initial value, or None.
    """

    name: str
    shape: tuple[Any, ...]
    dtype: np.dtype
    partner: int = -1
    donated: bool = False
    initial: np.ndarray | None = field(default=None, compare=False)

    @property
    def nbytes(self) -> int:
        """The size in bytes; 0 if it is dynamic."""
        return 0 if dims.is_dynamic(self.shape) else math.prod(self.shape) * self.dtype.itemsize

    def entry(self) -> dict[str, Any]:
        """The entry in the manifest."""
        entry = leaf_entry(self.name, self.shape, self.dtype, donated=self.donated)
        return {**entry, "partner": self.partner, "has_value": self.initial is not None}


@dataclass(frozen=True)
class Variant:
    """Machine code for one target.

    Args:
        target: the target, for people.
        features: the features of the processor that it needs.
        symbol: the name of ``main``.
        plan: the layout of its table of addresses.
    """

    target: str
    features: dict[str, Feature]
    symbol: str
    plan: Plan | DynamicPlan
    platform: ClassVar[str] = "cpu"

    def entry(self) -> dict[str, Any]:
        """The entry in the manifest."""
        entry = {"target": self.target, "features": list(self.features)}
        if isinstance(self.plan, DynamicPlan):
            return entry
        analysis = self.plan.analysis
        return {**entry, "temporaries": analysis.temporaries, "workspaces": analysis.workspaces}


class Contents:
    """The contents of a library.

    Args:
        name: the name of the function.
        inputs: its arguments.
        outputs: its results.
        variants: the machine code, the most demanding first.
        constants: arrays that the function closes over.
        manifest: the manifest, as JSON.
        sizes: its dynamic sizes.
        counts: the numbers of elements of its values that depend on sizes.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Leaf],
        outputs: Sequence[Leaf],
        variants: Sequence[Variant],
        constants: Sequence[np.ndarray],
        manifest: bytes,
        sizes: Sequence[SizeInfo] = (),
        counts: Sequence[Any] = (),
    ) -> None:
        self._name = name
        self._sizes, self._counts = sizes, counts
        self._inputs, self._outputs, self._variants = inputs, outputs, variants
        self._payload = Payload()
        self._manifest = manifest
        self._manifest_offset = self._payload.add(self._manifest)
        self._constants = [self._payload.add_array(array) for array in constants]
        self._initial = [None if leaf.initial is None else self._payload.add_array(leaf.initial) for leaf in inputs]

    def write(self, folder: Path) -> Path:
        """Writes the C file, and the bytes that it includes, into a folder; returns the path of the first."""
        source = folder / "contents.c"
        source.write_text("\n".join(self._lines(folder)))
        return source

    def _lines(self, folder: Path) -> list[str]:
        variants = [_variant_entry(i, variant) for i, variant in enumerate(self._variants)]
        formulas = Formulas([size.name for size in self._sizes])
        shapes = [leaf.shape for leaf in (*self._inputs, *self._outputs)] if self._sizes else []
        dynamic = [
            *shape_lines(shapes, self._counts, formulas),
            *(line for i, variant in enumerate(self._variants) for line in _variant_lines(i, variant, formulas)),
        ]
        sizes = [f"{{{text(size.name)}, {size.min}, {size.max}}}" for size in self._sizes]
        return [
            '#include "internal.h"',
            *self._payload.write(folder / "payload.bin"),
            *leaf_lines("inputs", self._inputs, self._initial),
            *leaf_lines("outputs", self._outputs, [None] * len(self._outputs)),
            *formulas.lines(),
            *dynamic,
            f"static const tvmfun_size sizes[] = {braces([*sizes, '{0}'])};",
            f"static const struct variant variants[] = {braces(variants)};",
            f"static const void *const constants[] = {braces([*map(address, self._constants), '0'])};",
            "const struct contents tvmfun_contents = {",
            f"  {{{text(self._name)}, inputs, outputs, {len(self._inputs)}, {len(self._outputs)}, "
            f"sizes, {len(self._sizes)}}},",
            f"  variants, {len(self._variants)}, constants, {len(self._constants)},",
            f"  {address(self._manifest_offset)}, {len(self._manifest)},",
            f"  {{axes, counts, {sum(map(len, shapes))}, {len(self._counts)}}}}};",
            "",
        ]


def leaf_lines(name: str, leaves: Sequence[Leaf], initial: Sequence[int | None]) -> list[str]:
    """The C array of leaves, after the arrays of their shapes."""
    shapes = [
        f"static const int64_t {name}_{i}[] = {numbers(static_axes(leaf.shape))};" for i, leaf in enumerate(leaves)
    ]
    entries = [
        f"{{{text(leaf.name)}, {name}_{i}, {len(leaf.shape)}, {_CODES[dtypes.NAMES[leaf.dtype]]}, {leaf.nbytes}u, "
        f"{leaf.partner}, {int(leaf.donated)}, {address(offset)}}}"
        for i, (leaf, offset) in enumerate(zip(leaves, initial, strict=True))
    ]
    return [*shapes, f"static const tvmfun_leaf {name}[] = {braces([*entries, '{0}'])};"]


def _variant_lines(i: int, variant: Variant, formulas: Formulas) -> list[str]:
    """The arrays of a variant, and the declaration of its ``main``."""
    features = [
        f"{{{text(name)}, {', '.join(f'{number}u' for number in feature)}}}"
        for name, feature in variant.features.items()
    ]
    if isinstance(variant.plan, DynamicPlan):
        fresh, lines = (), plan_lines(i, variant.plan, formulas)
    else:
        fresh, lines = variant.plan.fresh, []
    return [
        *lines,
        f"int {variant.symbol}(void *, struct value *, int32_t, struct value *);",
        f"static const uint64_t fresh_{i}[] = {numbers(fresh)};",
        f"static const int32_t slots_{i}[] = {numbers(variant.plan.results)};",
        f"static const struct feature features_{i}[] = {braces([*features, '{0}'])};",
    ]


def _variant_entry(i: int, variant: Variant) -> str:
    plan = variant.plan
    if isinstance(plan, DynamicPlan):
        rest = f"0, 0, &dynamic_{i}"
    else:
        rest = f"{plan.analysis.temporaries}u, {plan.analysis.workspaces}u, 0"
    return (
        f"{{{text(variant.target)}, features_{i}, {len(variant.features)}, {variant.symbol}, "
        f"fresh_{i}, {len(plan.fresh)}, slots_{i}, {rest}}}"
    )
