"""Starts `shim` where nothing is installed: `python -I -S starting.py RUN_FOLDER [NEWS]`.

The modules beside this file come last on the search path. What is executed by path is compiled at
each start, and what is imported once, so that this file is short.
"""

import os
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import shim  # type: ignore[import-not-found]

if sys.argv[1] == "--init":
    shim.init_main(int(sys.argv[2]))
sys.exit(shim.main(sys.argv[1], *map(int, sys.argv[2:])))
