"""Word language models here and in PyTorch: ``python -m bench.case_studies.word_lm --into /tmp/word_lm --model lstm``.

Both drop elements at the same rates, with other masks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import word_lm
from bench.case_studies import beside_torch
from support import torch_models

from tvmfun.interop.state_dict import to_state_dict, to_torch
from tvmfun.models import LSTMConfig, lstm_state_dict, transformer_state_dict


def run(arguments: list[str], folder: Path) -> None:
    """Trains in PyTorch what the example trains."""
    options = word_lm.parse(arguments)
    prepared = word_lm.prepare(options)
    config = prepared.config
    is_lstm = isinstance(config, LSTMConfig)
    if is_lstm:
        module, table = torch_models.LSTMLanguageModel(config), lstm_state_dict(config)
    else:
        module, table = torch_models.TransformerLanguageModel(config), transformer_state_dict()
    module.load_state_dict(to_torch(to_state_dict(prepared.task.state.model, table)), strict=True)
    kind = torch.optim.Adam if options.optimizer == "adam" else torch.optim.SGD
    optimizer, schedule = kind(module.parameters(), lr=1.0), word_lm.make_schedule(options)
    rates = iter([float(schedule(np.int32(step))) for step in range(options.steps)])
    hidden = None

    def loss(tokens: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        nonlocal hidden
        if is_lstm:
            logits, hidden = module(tokens[:, :-1], hidden)
            hidden = tuple(state.detach() for state in hidden)
        else:
            logits = module(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction=reduction)

    def update(batch: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        nonlocal hidden
        module.train()
        tokens = batch
        if is_lstm:
            (tokens,), (is_first,) = batch
            hidden = None if is_first else hidden
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.zero_grad()
        value = loss(tokens)
        value.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), options.clip)
        optimizer.step()
        return value

    def evaluate() -> dict[str, float]:
        nonlocal hidden
        module.eval()
        kept, hidden, losses = hidden, None, []
        with torch.no_grad():
            for batch in prepared.held_out():
                tokens = batch if is_lstm else batch.examples[batch.mask]
                losses.append(loss(beside_torch.tensor(tokens), "none").flatten())
        hidden = kept
        value = float(torch.cat(losses).mean())
        return {"validation loss": value, "perplexity": float(np.exp(value))}

    beside_torch.train(prepared.task, options, folder, update, evaluate)


if __name__ == "__main__":
    beside_torch.compare(word_lm.main, run)
