"""The command ``batholith``. Each command imports its dependencies when it runs, to start fast."""

import typer

from . import cluster, components, images
from .admission import admission
from .controllers import controllers
from .export import export
from .flag_groups import Version
from .go_flags import GoFlagCommand
from .jobs.commands import register
from .preflight import preflight
from .scheduler import scheduler

app = typer.Typer(
    name="batholith",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def batholith(version: Version = False) -> None:
    """A batch platform for Kubernetes, with an embedded cluster for one machine."""


app.command()(cluster.up)
app.command()(cluster.down)
app.command()(cluster.status)
app.command()(cluster.demo)
app.command()(export)
app.command()(preflight)
app.command()(components.apiserver)
app.command(cls=GoFlagCommand)(controllers)
app.command(cls=GoFlagCommand)(scheduler)
app.command(cls=GoFlagCommand)(admission)
app.command()(components.agent)
app.command()(components.api)
app.command()(components.workloads)
app.command()(components.proxy)
app.add_typer(images.app, name="image")
app.command()(cluster.version)
register(app)
