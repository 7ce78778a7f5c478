"""Entry point of `shim` without an installation: `python -I -S starting.py RUN_DIR [READY_FD]`.

With `--serve DESCRIPTOR` it is that of `shim_server`.

This directory is last on the search path. Python compiles a script at each start but an imported
module only once, so that this file is short.
"""

import os
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import shim  # type: ignore[import-not-found]

if sys.argv[1] == "--serve":
    import shim_server  # type: ignore[import-not-found]

    shim_server.serve(int(sys.argv[2]))
    os._exit(0)
if sys.argv[1] == "--init":
    shim.init_main(int(sys.argv[2]))
# Without the end of the interpreter, which takes time: the shim has written all files.
os._exit(shim.main(sys.argv[1], *map(int, sys.argv[2:])))
