"""``python -m batholith.cli``: the same as the console script ``batholith``."""

from .program import main

main()
