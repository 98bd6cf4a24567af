"""A ResNet on digits, here and in PyTorch: ``python -m bench.case_studies.resnet --into /tmp/resnet``."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import resnet
import torch
from bench.case_studies import beside_torch
from support import torch_models

import tvmfun
from tvmfun.interop.state_dict import to_state_dict, to_torch
from tvmfun.models import resnet_state_dict


def run(arguments: list[str], folder: Path) -> None:
    """Trains in PyTorch what the example trains, on images that the example's function augments."""
    options = resnet.parse(arguments)
    prepared = resnet.prepare(options)
    state, augment = prepared.task.state, tvmfun.jit(prepared.augment)
    module = torch_models.ResNet(state.model.config)
    weights = to_state_dict((state.model, state.statistics), resnet_state_dict(state.model.config))
    counts = {name: value for name, value in module.state_dict().items() if name.endswith("num_batches_tracked")}
    module.load_state_dict(to_torch(weights) | counts, strict=True)
    averaged = copy.deepcopy(module)
    decaying = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    groups = [{"params": decaying, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True)
    schedule = resnet.make_schedule(options)
    steps = iter([(step, float(schedule(np.int32(step)))) for step in range(options.steps)])
    key = np.array(state.key)

    def update(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        step, rate = next(steps)
        images = beside_torch.tensor(np.asarray(augment(key, step, images.numpy())))
        module.train()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(images), labels, label_smoothing=options.smoothing)
        loss.backward()
        optimizer.step()
        share = max(1 - options.average, 1 / (1 + step))
        for mean, new in zip(averaged.state_dict().values(), module.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(new, share)
        return loss

    def metrics(module: torch.nn.Module) -> tuple[float, float]:
        module.eval()
        losses, right, count = 0.0, 0, 0
        with torch.no_grad():
            for (images, labels), real in prepared.held_out():
                images, labels = beside_torch.tensor(images[real]), beside_torch.tensor(labels[real])
                logits = module(images)
                losses += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
                right += int((logits.argmax(dim=1) == labels).sum())
                count += len(labels)
        return losses / count, right / count

    def evaluate() -> dict[str, float]:
        (loss, accuracy), (averaged_loss, averaged_accuracy) = metrics(module), metrics(averaged)
        names = "validation loss", "accuracy", "averaged loss", "averaged accuracy"
        return dict(zip(names, (loss, accuracy, averaged_loss, averaged_accuracy), strict=True))

    beside_torch.train(prepared.task, options, folder, update, evaluate)


if __name__ == "__main__":
    beside_torch.compare(resnet.main, run)
