"""DLRM on MovieLens, here and in PyTorch: ``python -m bench.case_studies.dlrm --into /tmp/dlrm``.

PyTorch's tables have sparse gradients and ``SparseAdam``, which also updates only the rows of a batch; the layers have
``Adam``.
"""

from __future__ import annotations

from pathlib import Path

import dlrm_movielens
import numpy as np
import torch
from bench.case_studies import beside_torch
from movielens_data import Examples
from support import torch_models

from tvmfun.data import Padded
from tvmfun.interop.state_dict import to_state_dict, to_torch
from tvmfun.models import dlrm_state_dict


def run(arguments: list[str], folder: Path) -> None:
    """Trains in PyTorch what the example trains."""
    options = dlrm_movielens.parse(arguments)
    if options.optimizer != "adam":
        raise SystemExit(f"--optimizer must be adam for a comparison, got {options.optimizer}")
    task, data, config = dlrm_movielens.prepare(options)
    module = torch_models.DLRM(config)
    module.load_state_dict(to_torch(to_state_dict(task.state.model, dlrm_state_dict(config))), strict=True)
    for table in module.emb_l:
        table.sparse = True
    layers = [*module.bot_l.parameters(), *module.top_l.parameters()]
    optimizers = [torch.optim.SparseAdam(list(module.emb_l.parameters())), torch.optim.Adam(layers)]
    schedule = dlrm_movielens.make_schedule(options)
    rates = iter([float(schedule(np.int32(step))) for step in range(options.steps)])

    def update(batch: Padded) -> torch.Tensor:
        rate, examples, mask = next(rates), batch.examples, batch.mask
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
        logits = module(examples.dense, examples.ids)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[mask], examples.clicks[mask])
        looked_up = torch.stack([table(examples.ids[mask, i]) for i, table in enumerate(module.emb_l)], 1)
        (loss + options.decay * (looked_up**2).sum((1, 2)).mean()).backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    def metrics(examples: Examples) -> dict[str, float]:
        with torch.no_grad():
            logits = module(torch.from_numpy(examples.dense), torch.from_numpy(examples.ids).long()).numpy()
        return {name: float(value) for name, value in dlrm_movielens.measure(logits, examples.clicks).items()}

    beside_torch.train(task, options, folder, update, lambda: metrics(data.validation))
    if data.test is not None:
        print(f"PyTorch test AUC {metrics(data.test)['AUC']:.4f}")


if __name__ == "__main__":
    beside_torch.compare(dlrm_movielens.main, run)
