"""Writes the table of ONNX operators into a page: ``python -m tvmfun.interop.onnx docs/interop.md``."""

import sys
from pathlib import Path

from tvmfun.interop.onnx.coverage import updated

if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(updated(page.read_text()))
