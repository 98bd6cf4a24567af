"""C++ programs of tests: compiled with warnings as errors, and run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tvmfun.export import INCLUDE

#: Options for the sanitizers of addresses and of undefined behaviour.
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def compiled(source: str, folder: Path, *options: str) -> Path:
    path = folder / "program.cpp"
    path.write_text(source)
    warnings = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
    command = ["g++", "-std=c++17", *warnings, f"-I{INCLUDE}", *options, path, "-o", folder / "program", "-ldl"]
    subprocess.run(command, check=True)
    return folder / "program"


def printed(*command) -> str:
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout
