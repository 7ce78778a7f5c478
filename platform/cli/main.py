"""All commands of ``batholith``. Each imports its dependencies when it runs, to start fast."""

from . import cluster, images, nodes
from .component_commands import COMPONENTS, add_component, new_app
from .export import export
from .jobs.commands import register
from .preflight import preflight

app = new_app()
app.command()(cluster.up)
app.command()(cluster.down)
app.command()(cluster.status)
app.command()(cluster.demo)
app.command()(nodes.join)
app.command()(export)
app.command()(preflight)
for _name in COMPONENTS:
    add_component(app, _name)
app.add_typer(images.app, name="image")
app.add_typer(nodes.tokens, name="token")
app.command()(cluster.version)
register(app)
