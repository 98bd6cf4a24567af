"""Writes the table of Relay operators into a page: ``python -m tvmfun.interop.relay docs/interop.md``."""

import sys
from pathlib import Path

from tvmfun.interop.relay.coverage import updated

if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(updated(page.read_text()))
