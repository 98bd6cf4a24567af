"""Writes the table of ATen operators into a page: ``python -m tvmfun.interop.torch docs/interop.md``."""

import sys
from pathlib import Path

from tvmfun.interop.torch.coverage import updated

if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(updated(page.read_text()))
