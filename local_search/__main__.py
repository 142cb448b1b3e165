"""`python -m local_search` is `mia serve search`."""

from __future__ import annotations

import sys

from mia.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", "search", *sys.argv[1:]]))
