"""The program ``batholith``. A component's process imports only its own command, to start fast.

An embedded cluster consists of ten such processes: all commands would be a third of their imports.
"""

import sys

from ..kube.gc_tuning import raise_gc_thresholds
from .component_commands import COMPONENTS, add_component, new_app


def main(prog_name: str | None = None) -> None:
    """Run the command that the arguments name."""
    raise_gc_thresholds()  # before the imports, which create most of the objects of a small cluster
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in COMPONENTS:
        app = new_app()
        add_component(app, name)
    else:
        from .main import app
    app(prog_name=prog_name)
