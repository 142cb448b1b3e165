"""The shared language of MIA: records, errors, config, chat models, prompts, the HTTP edge and the command line.

A module belongs here only if at least two top-level folders use it and it is a noun of the problem or one edge of the
system. Nothing here imports a sibling folder, and importing `mia.types` loads no heavy library.
"""

__version__ = "0.1.0"
