"""Prints what a bug report should say: versions, and the machine that kernels are compiled for."""

import platform
from importlib.metadata import version

from tvmfun.lower import machine, target

PACKAGES = ("tvmfun", "apache-tvm", "apache-tvm-ffi", "numpy", "optree")

if __name__ == "__main__":
    for name in PACKAGES:
        print(f"{name:16}{version(name)}")
    print(f"{'Python':16}{platform.python_version()} on {platform.platform()}")
    print(f"{'LLVM target':16}{target.host()}")
    print(machine.Machine.of(target.host()))
