"""``batholith nodes``: nodes of other machines."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ..model.node_identity import REVOKED_NAMESPACE, REVOKED_NODES
from .cluster import DataDirOption
from .nodes import with_client

if TYPE_CHECKING:
    from ..kube.client.client import Client

app = typer.Typer(
    help="Nodes of other machines that have joined the cluster of this one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def nodes() -> None:
    """Keep the name of the only command: without this, the group would be that command."""


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")],
    data_dir: DataDirOption = None,
) -> None:
    """Refuse the certificates of a node from now on, and delete it: for a machine that was lost."""
    from ..kube.errors import ConfigError, NotFoundError
    from ..local.agent.settings import node_name
    from ..model.names import CONFIGMAPS, NODES

    async def work(client: "Client") -> None:
        if name == node_name():
            raise ConfigError(f"{name} is the node of this machine, which has no certificate")
        data = {name: f"{datetime.now(UTC):%FT%TZ}"}
        try:
            await client.patch(
                CONFIGMAPS, REVOKED_NODES, {"data": data}, namespace=REVOKED_NAMESPACE, view=dict
            )
        except NotFoundError:
            body = {"metadata": {"name": REVOKED_NODES}, "data": data}
            await client.create(CONFIGMAPS, body, namespace=REVOKED_NAMESPACE, view=dict)
        try:
            await client.delete(NODES, name)
        except NotFoundError:
            # It may have been deleted before, but the name may also be misspelt.
            typer.echo(
                f"there is no node {name}; its certificates are refused nevertheless", err=True
            )
        typer.echo(f"revoked {name}")

    with_client(data_dir, work, command="nodes")
