"""`python -m web_tools` is `mia serve web`."""

from __future__ import annotations

import sys

from mia.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", "web", *sys.argv[1:]]))
