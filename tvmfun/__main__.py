"""Prints the facts for a bug report: versions, and the machine that kernels are compiled for.

``python -m tvmfun calibrate`` times a few kernels, and keeps the settings that suit this machine.
"""

import argparse
import platform
from importlib.metadata import version

from tvmfun import calibration
from tvmfun.lower import machine, target

PACKAGES = ("tvmfun", "apache-tvm", "apache-tvm-ffi", "numpy", "optree")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tvmfun", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("report", "calibrate"), default="report")
    if parser.parse_args().command == "calibrate":
        calibration.run(lambda line: print(line, flush=True))
        return
    for name in PACKAGES:
        print(f"{name:16}{version(name)}")
    print(f"{'Python':16}{platform.python_version()} on {platform.platform()}")
    print(f"{'LLVM target':16}{target.host()}")
    print(machine.Machine.of(target.host()))


if __name__ == "__main__":
    main()
