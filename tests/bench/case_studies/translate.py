"""Translation of numbers here and in PyTorch: ``python -m bench.case_studies.translate --into /tmp/translate``.

Both drop elements at the same rates, with other masks. The search is the library's in both cases: PyTorch's weights are
copied into its model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import translate
from bench.case_studies import beside_torch
from support import torch_models

from tvmfun.interop.state_dict import from_state_dict, to_state_dict, to_torch
from tvmfun.models import translator_state_dict


def run(arguments: list[str], folder: Path) -> None:
    """Trains in PyTorch what the example trains."""
    options = translate.parse(arguments)
    prepared = translate.prepare(options)
    model, table = prepared.task.state.model, translator_state_dict()
    module = torch_models.Translator(prepared.config)
    module.load_state_dict(to_torch(to_state_dict(model, table)), strict=True)
    optimizer = torch.optim.Adam(module.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    schedule = translate.make_schedule(options)
    rates = iter([float(schedule(np.int32(step))) for step in range(options.steps)])

    def loss(batch: translate.Sentences, smoothing: float, reduction: str) -> torch.Tensor:
        logits = module(batch.source, batch.target[:, :-1], batch.source_lengths)
        settings = {"ignore_index": translate.PADDING, "label_smoothing": smoothing, "reduction": reduction}
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.target[:, 1:], **settings)

    def update(batch: translate.Sentences) -> torch.Tensor:
        module.train()
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.zero_grad()
        value = loss(batch, options.smoothing, "mean")
        value.backward()
        optimizer.step()
        return value

    def evaluate() -> dict[str, float]:
        module.eval()
        total = count = 0
        with torch.no_grad():
            for batch in prepared.held_out():
                sentences = translate.Sentences(*(beside_torch.tensor(x[batch.mask]) for x in batch.examples))
                total += float(loss(sentences, 0.0, "sum"))
                count += int((sentences.target[:, 1:] != translate.PADDING).sum())
        trained = from_state_dict(model, module, table)
        found = translate.translate(trained, prepared.held_out, prepared.pieces, options.beams)
        return {"validation loss": total / count, "exact match": translate.exact_match(found, prepared.pairs)}

    beside_torch.train(prepared.task, options, folder, update, evaluate)


if __name__ == "__main__":
    beside_torch.compare(translate.main, run)
