"""Commands that run as processes of a cluster, each imported only when it is added to a program."""

from importlib import import_module

import typer

from .flag_groups import Version
from .go_flags import GoFlagCommand

COMPONENTS = {
    "apiserver": ("components", None),
    "controllers": ("controllers", GoFlagCommand),
    "scheduler": ("scheduler", GoFlagCommand),
    "admission": ("admission", GoFlagCommand),
    "agent": ("components", None),
    "api": ("components", None),
    "workloads": ("components", None),
    "proxy": ("components", None),
}
"""Commands that run as processes of a cluster: the module that has the function of that name, and
the class of the command if it takes flags in Go's syntax."""


def new_app() -> typer.Typer:
    """Return the program without commands."""
    app = typer.Typer(name="batholith", no_args_is_help=True, pretty_exceptions_enable=False)

    @app.callback()
    def batholith(version: Version = False) -> None:
        """A batch platform for Kubernetes, with an embedded cluster for one machine."""

    return app


def add_component(app: typer.Typer, name: str) -> None:
    """Add the command of a component, and import what it needs to parse its flags."""
    module, kind = COMPONENTS[name]
    command = getattr(import_module(f".{module}", __package__), name)
    app.command(cls=kind)(command)
