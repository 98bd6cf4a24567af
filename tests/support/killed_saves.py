"""Kills processes that save, at random instants, and looks at the file each has left.

Prints a line of JSON: the number of killed processes, of those killed during a save, and the defects found.
"""

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np

from tvmfun import checkpoints


def tree_of(version: int) -> dict:
    return {"version": version, "w": np.full(50_000, version), "moments": [np.full((3, 1000), version, "float32")]}


def save_for_ever(path: Path, done: mmap.mmap) -> None:
    (version,) = struct.unpack("q", done[:8])
    while True:
        version += 1
        checkpoints.save(path, tree_of(version))
        done[:8] = struct.pack("q", version)


def main(folder: Path, kills: int) -> None:
    path, done, rng = folder / "state.safetensors", mmap.mmap(-1, 8), random.Random(0)
    checkpoints.save(path, tree_of(0))
    wrong, within = [], 0
    for kill in range(kills):
        child = os.fork()
        if not child:
            save_for_ever(path, done)
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        (acknowledged,) = struct.unpack("q", done[:8])
        state = checkpoints.load(path, like=tree_of(0))
        version = state["version"]
        if version not in (acknowledged, acknowledged + 1):
            wrong.append(f"kill {kill}: version {version} after {acknowledged}")
        if not all((part == version).all() for part in (state["w"], state["moments"][0])):
            wrong.append(f"kill {kill}: a mixture of versions")
        within += len(list(folder.glob(".*.partial"))) > 0
        done[:8] = struct.pack("q", version)
    checkpoints.save(path, tree_of(-1))
    print(json.dumps({"kills": kills, "within": within, "wrong": wrong, "left": os.listdir(folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
