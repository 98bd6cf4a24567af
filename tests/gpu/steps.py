"""Training steps that are timed on a GPU in every precision, and small ones whose losses are the CPU's."""

from __future__ import annotations

from dataclasses import replace

from bench.case import Case
from bench.models import dlrm, lstm, mnist_cnn, resnet, transformer

PRECISIONS = ("bfloat16", "tensorfloat32", "float32")

_BERT, _GPT2 = (transformer.SIZES[name] for name in ("BERT-base", "GPT-2 124M"))
_SMALL = {"layers": 2, "width": 128, "heads": 4, "vocabulary": 512, "length": 48, "batch": 4}


def _transformer(name: str, sizes: transformer.Sizes) -> Case:
    return transformer.case(name, replace(sizes, is_fused=True))


_TIMED = [
    _transformer("BERT-base, 32 x 128", replace(_BERT, batch=32)),
    _transformer("GPT-2 124M, 8 x 1024", replace(_GPT2, length=1024, batch=8)),
    replace(mnist_cnn.CASE, name="MNIST CNN"),
    dlrm.CASE,
    resnet.CASE,
    lstm.CASE,
]


def _in_precision(case: Case, precision: str) -> Case:
    return replace(case, name=f"{case.name}, {precision}", precision=precision)


#: Timed beside PyTorch and JAX, by name.
TIMED: dict[str, Case] = {
    case.name: case for precision in PRECISIONS for case in (_in_precision(step, precision) for step in _TIMED)
}

#: Trained for some steps beside the CPU, by name: without dropout of scores, so that rounding alone differs.
TRAINED: dict[str, Case] = {
    case.name: case
    for case in (
        _transformer("BERT, 2 layers", replace(_BERT, **_SMALL)),
        _transformer("GPT-2, 2 layers", replace(_GPT2, **_SMALL)),
        _in_precision(_transformer("GPT-2, 2 layers", replace(_GPT2, **_SMALL)), "bfloat16"),
        replace(mnist_cnn.CASE, name="MNIST CNN"),
        dlrm.CASE,
        resnet.case(4),
        lstm.CASE,
    )
}
