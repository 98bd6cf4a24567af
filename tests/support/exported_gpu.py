"""A C++ program that trains on a GPU, with the training step of exported libraries for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import tvmfun
from support import exported
from support.emulated_export import CHECKED, CONTROLS, compiled
from tvmfun import checkpoints, random

TRAIN = (
    CONTROLS
    + """
// train LIBRARY START END COUNT: prints the losses.
int main(int, char** words) {
  {
    tvmfun::CudaCall call{tvmfun::CudaStep(words[1])};
    tvmfun::HostCopies state = call.download("state");
    tvmfun::load_safetensors(words[2], state.arrays());
    call.upload("state", state.arrays());
    std::vector<float> x(32 * 8);
    std::vector<std::int32_t> labels(32);
    for (int i = 0; i < std::atoi(words[4]); i++) {
      for (std::size_t j = 0; j < x.size(); j++) {
        x[j] = static_cast<float>((j * 7 + static_cast<std::size_t>(i)) % 11) - 5.0f;
        labels[j / 8] = static_cast<std::int32_t>((j / 8 + static_cast<std::size_t>(i)) % 3);
      }
      call.argument("x").upload(x);
      call.argument("labels").upload(labels);
      call.run();
      for (float loss : call.result("[1]").download<float>()) {
        std::printf("%a ", static_cast<double>(loss));
      }
      call.feed("[0]", "state");
    }
    tvmfun::save_safetensors(words[3], call.download("state").arrays());
  }
  std::printf("%d", live());
}
"""
)


def check_training(export: Callable, printed: Callable, folder: Path) -> None:
    """Exports the step, trains in C++, and compares losses and states with the CPU's.

    Args:
        export: exports a function for a GPU.
        printed: what a program prints.
        folder: for files.
    """
    state = tvmfun.jit(exported.start)(random.key(0))
    export(exported.train_step, (state, *exported.batch()), folder / "step.so", donate=0)
    checkpoints.save(folder / "start", state)
    words = printed(compiled(TRAIN, *CHECKED), folder / "step.so", folder / "start", folder / "end", 6)
    *losses, alive = words.split()
    j = np.arange(32 * 8)
    train, expected = tvmfun.jit(exported.train_step), []
    for i in range(6):
        x = ((j * 7 + i) % 11 - 5).astype("float32").reshape(32, 8)
        state, of_step = train(state, x, ((np.arange(32) + i) % 3).astype("int32"))
        expected += np.asarray(of_step).tolist()
    np.testing.assert_allclose(list(map(float.fromhex, losses)), expected, rtol=1e-3)
    ours = checkpoints.load(folder / "end", like=tvmfun.tree.map(np.asarray, state))
    for left, right in zip(tvmfun.tree.leaves(ours), tvmfun.tree.leaves(state), strict=True):
        np.testing.assert_allclose(left, np.asarray(right), rtol=1e-3, atol=1e-5)
    assert alive == "0"
