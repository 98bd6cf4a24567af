"""The table of ONNX operators that are read, and the cases of the backend suite: a section of ``docs/interop.md``."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from tvmfun.interop.coverage_page import by_family, with_section
from tvmfun.interop.onnx.operators import TRANSLATIONS
from tvmfun.interop.onnx.writing import SPELLINGS
from tvmfun.interop.onnx.writing.builder import LEFT_OUT as NOT_WRITTEN

BEGIN = "<!-- Written by `python -m tvmfun.interop.onnx docs/interop.md`. -->"
END = "<!-- The end of what was written about ONNX. -->"

STRINGS = "strings"
SEQUENCES = "sequences, or optional sequences"
_DRAWN = "expects the numbers that NumPy's generator draws"

#: The kinds of cases of the suite whose models are in the wheel.
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

#: The cases of the suite that are left out for another reason than their types, and the reasons.
LEFT_OUT_CASES: dict[str, str] = {
    "test_ai_onnx_ml_tree_ensemble_*": "ensembles of trees",
    "test_bernoulli*": _DRAWN,
    "test_dft_inverse": "expects the rounding errors of another algorithm",
    "test_dft_inverse_opset19": "expects the rounding errors of another algorithm",
    "test_image_decoder_*": "decodes files of images",
    "test_training_dropout": _DRAWN,
    "test_training_dropout_default": _DRAWN,
    "test_training_dropout_default_mask": _DRAWN,
    "test_training_dropout_mask": _DRAWN,
}

#: The operators of ONNX's own domain without a translation or a definition as a function, and the reasons.
LEFT_OUT: dict[str, str] = {
    "ImageDecoder": "decodes files of images",
    "MaxRoiPool": "the sizes of its windows depend on data",
    **dict.fromkeys(("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"), STRINGS),
    **dict.fromkeys(
        (
            "ConcatFromSequence",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
            "SplitToSequence",
        ),
        "sequences",
    ),
}


def left_out(name: str, model: Any) -> str | None:
    """Returns why a case of the suite is left out, or None if it must pass.

    Args:
        name: of the case, such as ``"test_add"``.
        model: its ``ModelProto``.
    """
    for pattern, reason in LEFT_OUT_CASES.items():
        if fnmatchcase(name, pattern):
            return reason
    found = set(_reasons(model.graph))
    return next((reason for reason in (STRINGS, SEQUENCES) if reason in found), None)


def _reasons(graph: Any) -> Iterator[str]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
        yield SEQUENCES if kind.HasField("sequence_type") else STRINGS if kind.tensor_type.elem_type == 8 else ""
    for node in graph.node:
        reason = LEFT_OUT.get(node.op_type, "")
        yield SEQUENCES if reason == "sequences" else reason
        for attribute in node.attribute:
            yield from _reasons(attribute.g)
            if attribute.t.data_type == 8 or (node.op_type == "LabelEncoder" and attribute.strings):
                yield STRINGS


@cache
def suite() -> dict[str, Any]:
    """The models of the suite by the names of their cases; those that would have to be downloaded are not there."""
    import onnx
    from onnx.backend.test.loader import load_model_tests

    cases = (case for kind in KINDS for case in load_model_tests(kind=kind))
    return {case.name: case.model or onnx.load(f"{case.model_dir}/model.onnx") for case in cases}


def counts() -> Counter[str]:
    """Counts the cases of the suite that pass, under the empty string, and those left out, by reason."""
    return Counter(left_out(name, model) or "" for name, model in suite().items())


def by_definition() -> list[str]:
    """The operators without a row that ONNX defines as functions of others, sorted."""
    from onnx import defs

    schemas = [s for s in defs.get_all_schemas() if not s.deprecated]
    names = {
        s.name if not s.domain else f"{s.domain}.{s.name}"
        for s in schemas
        if s.has_function or s.has_context_dependent_function
    }
    return sorted(names - TRANSLATIONS.keys() - LEFT_OUT.keys())


def markdown() -> str:
    """The section about operators and the suite, between its two comments."""
    found = counts()
    total, passed, typed = found.total(), found[""], found.total() - found[STRINGS] - found[SEQUENCES]
    lines = [
        BEGIN,
        "",
        f"Of the {total:,} cases of ONNX's backend suite whose models are in its wheel, {passed:,} pass:"
        f" {100 * passed / typed:.1f}% of the {typed:,}",
        "without strings and sequences, and all of the training domain. The others:",
        "",
        "| Cases | Why they are left out |",
        "| --- | --- |",
        *(f"| {count} | {reason} |" for reason, count in sorted(found.items(), key=lambda item: -item[1]) if reason),
        "",
        f"The table has rows for {len(TRANSLATIONS)} operators:",
        "",
        "| Family | Operators |",
        "| --- | --- |",
    ]
    for family, names in by_family({name: rows[0].family for name, rows in TRANSLATIONS.items()}).items():
        title = (importlib.import_module(f"tvmfun.interop.onnx.operators.{family}").__doc__ or family).partition(".")[0]
        lines.append(f"| {title} | {', '.join(f'`{name}`' for name in names)} |")
    defined = ", ".join(f"`{name}`" for name in by_definition())
    lines += ["", f"ONNX's own definitions as functions of these are read for {defined}.", ""]
    lines += ["Left out of ONNX's own domain:", "", "| Operator | Why |", "| --- | --- |"]
    lines += [f"| `{name}` | {reason} |" for name, reason in sorted(LEFT_OUT.items())]
    lines += ["", f"`to_onnx` writes {len(SPELLINGS)} ops. Left out:", "", "| Op | Why |", "| --- | --- |"]
    lines += [f"| `{name}` | {reason} |" for name, reason in sorted(NOT_WRITTEN.items())]
    return "\n".join([*lines, "", END])


def updated(page: str) -> str:
    """The text of the page with the section as the table is now."""
    return with_section(page, markdown())
