"""GPT-2 on text, here and in transformers: ``python -m bench.case_studies.gpt2 --into /tmp/gpt2 --steps 600``."""

from __future__ import annotations

from pathlib import Path

import gpt2_lm
import numpy as np
import torch
from bench.case_studies import beside_torch
from transformers import GPT2Config, GPT2LMHeadModel

from tvmfun.interop.state_dict import to_state_dict, to_torch
from tvmfun.models import GPT2_STATE_DICT


def run(arguments: list[str], folder: Path) -> None:
    """Trains in PyTorch what the example trains."""
    options = gpt2_lm.parse(arguments)
    prepared = gpt2_lm.prepare(options)
    config, model = prepared.config, prepared.task.state.model
    rates = {"resid_pdrop": config.dropout, "embd_pdrop": config.dropout, "attn_pdrop": config.dropout}
    sizes = {"vocab_size": config.vocab_size, "n_positions": config.n_positions, "n_embd": config.n_embd}
    sizes |= {"n_layer": config.n_layer, "n_head": config.n_head, "bos_token_id": None, "eos_token_id": None}
    theirs = GPT2Config(**sizes, **rates)
    module = GPT2LMHeadModel(theirs)
    module.load_state_dict(to_torch(to_state_dict(model, GPT2_STATE_DICT)), strict=True)
    decaying = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    groups = [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.99))
    schedule = gpt2_lm.make_schedule(options)
    rates_of_steps = [float(schedule(np.int32(step))) for step in range(options.steps)]
    steps = iter(rates_of_steps)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        logits = module(tokens[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def update(tokens: torch.Tensor) -> torch.Tensor:
        module.train()
        rate = next(steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        value = loss(tokens)
        value.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return value

    def evaluate() -> dict[str, float]:
        module.eval()
        with torch.no_grad():
            losses = [(len(batch), float(loss(beside_torch.tensor(batch)))) for batch in prepared.held_out()]
        total = sum(count for count, _ in losses)
        return {"validation loss": sum(count * value for count, value in losses) / total}

    beside_torch.train(prepared.task, options, folder, update, evaluate)


if __name__ == "__main__":
    beside_torch.compare(gpt2_lm.main, run)
