"""Files that appear whole or not at all, however many processes write them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Gives the path of a file to write, which takes the place of another when all went well."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial = Path(folder, path.name)
        yield partial
        partial.replace(path)
