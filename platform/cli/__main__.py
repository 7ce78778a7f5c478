"""``python -m batholith.cli``: the same as the console script ``batholith``."""

from .main import app

app()
