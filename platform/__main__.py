# ruff: noqa: A005 - the directory is imported as batholith
"""``python -m batholith``: the same as the console script ``batholith``."""

from .cli.program import main

main(prog_name="batholith")
