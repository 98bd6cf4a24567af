"""Makes the table of the fastest tiles of what ``tests.gpu.all`` measured: ``python -m gpu.tiles FILE ...``.

Each pair of arguments is the file of :mod:`gpu.candidates` and the results of its run by ``tests.gpu.all``. Rows of
other sizes than the measured ones stay.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

from tvmfun.lower.schedule.gpu import measured_tiles

_HEAD = '''"""The fastest tiles of products, as measured: ``python -m gpu.tiles`` writes this file.

For an architecture, by the dtype of the factors and the numbers of matrices, rows, columns and terms: the key of the
tile, and the ranges that the terms are split into. An H100 measured those of the steps in docs/performance.md, with
their epilogues.
"""

MEASURED: dict[str, dict[tuple[str, int, int, int, int], tuple[str, int]]] = {
'''


def fastest(bundle: Path, results: Path) -> dict[tuple, tuple[str, int]]:
    """The tile of each product; where several kernels have the same sizes, that of the shortest time of all."""
    index = json.loads(zipfile.ZipFile(bundle).read("index.json"))["entries"]
    times = json.loads(results.read_text())["tiles"]
    sums: dict[tuple, dict[tuple[str, int], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for about in index:
        if about["name"] in times and "sizes" in about:
            product, option = (about["format"], *about["sizes"]), (about["tile"], about["splits"])
            sums[product][option][f"{about['step']}: {about['title']}"] = times[about["name"]]
    found = {}
    for product, options in sums.items():
        most = max(len(kernels) for kernels in options.values())
        complete = {option: sum(kernels.values()) for option, kernels in options.items() if len(kernels) == most}
        found[product] = min(complete, key=complete.__getitem__)
    return found


def main(*arguments: str) -> None:
    """Writes the table with the rows of these files."""
    rows = dict(measured_tiles.MEASURED.get("sm_90a", {}))
    for bundle, results in zip(arguments[::2], arguments[1::2], strict=True):
        rows |= fastest(Path(bundle), Path(results))
    text = [_HEAD, '    "sm_90a": {\n', *(f"        {key!r}: {rows[key]!r},\n" for key in sorted(rows)), "    }\n}\n"]
    Path(measured_tiles.__file__).write_text("".join(text).replace("'", '"'))


if __name__ == "__main__":
    main(*sys.argv[1:])
