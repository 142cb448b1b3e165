"""`python -m memory_serve` is `mia serve memory`."""

from __future__ import annotations

import sys

from mia.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", "memory", *sys.argv[1:]]))
