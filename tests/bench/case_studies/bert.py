"""BERT on text, here and in transformers: ``python -m bench.case_studies.bert --into /tmp/bert``."""

from __future__ import annotations

from pathlib import Path

import bert_mlm
import numpy as np
import torch
from bench.case_studies import beside_torch
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

import tvmfun
from tvmfun import random, tree
from tvmfun.interop.state_dict import to_state_dict, to_torch
from tvmfun.models import BERT_STATE_DICT, NEXT_SENTENCE_STATE_DICT


def run(arguments: list[str], folder: Path) -> None:
    """Trains in PyTorch what the example trains, on the same masks."""
    options = bert_mlm.parse(arguments)
    if options.optimizer != "adamw":
        raise SystemExit(f"PyTorch has no --optimizer {options.optimizer}. Try adamw.")
    prepared = bert_mlm.prepare(options)
    config, state = prepared.config, prepared.task.state
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sizes = {name: getattr(config, name) for name in (*sizes, "max_position_embeddings")}
    rates = {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.dropout}
    kind, table = BertForMaskedLM, BERT_STATE_DICT
    if options.next_sentence:
        kind, table = BertForPreTraining, BERT_STATE_DICT + NEXT_SENTENCE_STATE_DICT
    module = kind(BertConfig(**sizes, **rates))
    module.load_state_dict(to_torch(to_state_dict(state.model, table)), strict=True)
    decaying = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    groups = [{"params": decaying, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.98), eps=1e-6)
    schedule = bert_mlm.make_schedule(options)
    rates_of_steps = iter([float(schedule(np.int32(step))) for step in range(options.steps)])
    masking, key = tvmfun.jit(prepared.masking), state.key

    def answers(batch: bert_mlm.Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The logits of the words to predict, and of the next sentence."""
        output = module.bert(batch.tokens, token_type_ids=batch.segments)
        index = batch.positions[..., None].expand(-1, -1, config.hidden_size)
        picked = output.last_hidden_state.gather(1, index)
        return module.cls(picked, output.pooler_output) if options.next_sentence else (module.cls(picked), None)

    def word_losses(words: torch.Tensor, batch: bert_mlm.Batch) -> torch.Tensor:
        losses = torch.nn.functional.cross_entropy(words.flatten(0, 1), batch.targets.flatten(), reduction="none")
        return losses * batch.weights.flatten()

    def update(text: torch.Tensor) -> torch.Tensor:
        nonlocal key
        module.train()
        rate = next(rates_of_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        mask_key, _, key = random.split(key, 3)
        batch = tree.map(beside_torch.tensor, masking(mask_key, text.numpy().astype("int32")))
        words, sentence = answers(batch)
        value = word_losses(words, batch).sum() / batch.weights.sum()
        if sentence is not None:
            value = value + torch.nn.functional.cross_entropy(sentence, batch.follows.long())
        value.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return value

    def evaluate() -> dict[str, float]:
        module.eval()
        totals = np.zeros(5)
        with torch.no_grad():
            for batch in prepared.held_out():
                batch = tree.map(beside_torch.tensor, batch)
                words, sentence = answers(batch)
                right = ((words.argmax(-1) == batch.targets) * batch.weights).sum()
                follows = 0 if sentence is None else (sentence.argmax(-1) == batch.follows).sum()
                totals += [word_losses(words, batch).sum(), right, batch.weights.sum(), follows, len(words)]
        metrics = {"validation loss": totals[0] / totals[2], "accuracy": totals[1] / totals[2]}
        return metrics | ({"next-sentence accuracy": totals[3] / totals[4]} if options.next_sentence else {})

    beside_torch.train(prepared.task, options, folder, update, evaluate)


if __name__ == "__main__":
    beside_torch.compare(bert_mlm.main, run)
