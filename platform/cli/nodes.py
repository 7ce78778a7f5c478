"""``batholith join`` and ``batholith token``: other machines as nodes of an embedded cluster."""

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

from ..local.supervisor.datadir import DataDir
from ..model import bootstrap_tokens
from ..model.bootstrap_tokens import BootstrapToken, JoinToken
from .cluster import (
    DATA_DIR_ERRORS,
    CpusOption,
    DataDirOption,
    MountOption,
    host_dirs_of,
    registries_of,
    resolve_data_dir,
    run_supervised,
)
from .flag_groups import PodsOption, RegistryOption
from .manager import exit_on_error
from .node_flags import (
    LogFilesOption,
    LogSizeOption,
    SysctlsOption,
    log_flags_of,
    sysctl_flags_of,
)

if TYPE_CHECKING:
    from ..kube.client.client import Client
    from ..local.agent.volumes.host_dirs import HostDir
    from ..local.supervisor.child_process import Entry
    from ..local.supervisor.membership import Membership
    from ..local.supervisor.supervisor import Supervisor

DEFAULT_PORT = 7443
TOKEN_VARIABLE = "BATHOLITH_JOIN_TOKEN"  # noqa: S105 - a name

app = typer.Typer(
    help="Tokens with which other machines join the cluster of this one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Options of ``join``."""

    token: JoinToken | None
    """``None``: the machine has joined before."""
    name: str | None
    address: str
    cpus: int | None
    host_dirs: "tuple[HostDir, ...]"
    pods: Literal["processes", "images", "auto"]
    registries: tuple[str, ...]
    agent_flags: tuple[str, ...] = ()


def join(
    context: typer.Context,
    token: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN@ADDRESS",
            envvar=TOKEN_VARIABLE,
            help="What `batholith up --listen` or `batholith token create` has printed on the "
            "first machine; not needed after the first time.",
        ),
    ] = "",
    name: Annotated[
        str | None, typer.Option(help="Name of the node.", show_default="the host name")
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            help="IPv4 address of this machine, at which the others reach it.",
            show_default="that with which it connects to the first machine",
        ),
    ] = "",
    data_dir: DataDirOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the node is ready.")
    ] = False,
    cpus: CpusOption = None,
    mount: MountOption = None,
    pods: PodsOption = "auto",
    registry: RegistryOption = None,
    container_log_max_size: LogSizeOption = "10Mi",
    container_log_max_files: LogFilesOption = 5,
    allowed_unsafe_sysctls: SysctlsOption = "",
) -> None:
    """Run pods of the cluster of another machine on this one."""
    data = resolve_data_dir(data_dir)
    with exit_on_error(ValueError):
        if address:
            bootstrap_tokens.parse_address(address, default_port=0)
        options = NodeOptions(
            token=JoinToken.parse(token, default_port=DEFAULT_PORT) if token else None,
            name=name,
            address=address,
            cpus=cpus,
            host_dirs=host_dirs_of(mount or [], data, simulate=0),
            pods=pods,
            registries=registries_of(registry, pods=pods, simulate=0),
            agent_flags=(
                *log_flags_of(container_log_max_size, container_log_max_files),
                *sysctl_flags_of(allowed_unsafe_sysctls),
            ),
        )
    run_supervised(context, data, lambda: JoinedNode(data, options), detach=detach, name="join")


class JoinedNode:
    """The components of a machine that has joined; a context manager as `EmbeddedCluster`."""

    def __init__(self, data: DataDir, options: NodeOptions) -> None:
        self._data = data
        self._options = options
        self.notices: list[str] = []
        self._claim: socket.socket | None = None

    def __enter__(self) -> Self:
        """Join, unless the machine has joined before.

        Raises:
            OSError: a file cannot be used.
            JoinError: the machine cannot join, or its node was revoked.
        """
        from ..local.supervisor import joining
        from .isolation_check import isolation_warnings

        self._membership = self._joined()
        self._kubeconfig = joining.write_kubeconfig(self._data, self._membership)
        joining.check_accepted(self._data, self._kubeconfig, self._membership)
        self._address = self._options.address or joining.local_address(self._membership.server)
        self.notices += isolation_warnings()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the addresses of Services; the components have their own connections."""
        if self._claim is not None:
            self._claim.close()

    def _joined(self) -> "Membership":
        from ..local.agent.settings import node_name
        from ..local.supervisor import joining
        from ..local.supervisor.membership import JoinError, read

        data, options = self._data, self._options
        if data.cluster_db.exists():
            raise JoinError(f"{data.root} has another cluster: choose another --data-dir")
        known, token = read(data), options.token
        if known is not None and options.name not in (None, known.node):
            raise JoinError(f"{data.root} belongs to node {known.node}: choose another --data-dir")
        if known is not None and token is not None and known.server != token.server:
            raise JoinError(f"{data.root} belongs to {known.server}: choose another --data-dir")
        if cluster := token or known:
            self._check_address(cluster.server)
        if known is not None and joining.is_current(data):
            return known
        if token is None:
            why = "its certificate has expired" if known else "it has not joined a cluster yet"
            raise JoinError(
                f"{why}: give the TOKEN@ADDRESS that `batholith token create` prints on the "
                "first machine"
            )
        node = known.node if known else options.name or node_name()
        return joining.join(data, token, node)

    def _check_address(self, server: str) -> None:
        """Check that other nodes have neither the address of the node nor those of Services.

        Raises:
            JoinError: another node has them.
        """
        from ..local.supervisor import joining
        from ..local.supervisor.membership import JoinError

        self._shares_first_machine = joining.is_on_this_machine(server)
        if self._shares_first_machine and self._options.address in ("", joining.host_of(server)):
            raise JoinError(
                f"the first machine is this one, and {joining.host_of(server)} is the address of "
                "its node: name another address of this machine with --address"
            )
        if not self._shares_first_machine:
            self._claim = joining.claim_service_addresses(server)

    def start_supervisor(self, entry: "Entry") -> "Supervisor":
        """Create the supervisor and fork the components, which run their arguments with *entry*."""
        from ..local.supervisor.supervisor import Supervisor

        supervisor = Supervisor(
            self._data,
            self._components(),
            program=[sys.executable, "-m", "batholith.cli"],
            version=metadata.version("batholith"),
            ports={},
            mounts=[str(each) for each in self._options.host_dirs],
        )
        os.environ.update(self._environment())
        supervisor.fork(entry)
        return supervisor

    def _environment(self) -> Mapping[str, str]:
        return {"SSL_CERT_FILE": str(self._data.pki / "ca.crt"), "SSL_CERT_DIR": ""}

    def _components(self) -> list[Any]:
        from ..local.network.resolvers import choose_dns_address
        from ..local.supervisor.supervisor import ComponentSpec
        from ..model.service_network import PodNetwork
        from .embedded import AGENT_SHUTDOWN_TIMEOUT

        data, options = self._data, self._options
        client = ["--kubeconfig", str(self._kubeconfig)]
        agent = ["agent", *client, "--data-dir", str(data.root), "--pki-dir", str(data.pki)]
        agent += ["--node-name", self._membership.node, "--node-address", self._address]
        agent += ["--rotate-certificates", "--end-pods", "--pods", options.pods]
        agent += [] if options.cpus is None else ["--cpus", str(options.cpus)]
        agent += [f"--registry={each}" for each in options.registries]
        agent += [*options.agent_flags, *(f"--mount={each}" for each in options.host_dirs)]
        dns = choose_dns_address(PodNetwork.HOST.ranges, data.root)
        names = [f"--cluster-dns={dns}"] if dns else []
        environment = self._environment()
        # The addresses of Services are the same on each machine: on the first one, the proxy of its
        # own node listens there.
        proxy = [
            "proxy",
            *client,
            *names,
            *(["--names-only"] if self._shares_first_machine else []),
        ]
        return [
            ComponentSpec(name="proxy", arguments=proxy, environment=environment),
            ComponentSpec(
                name="agent",
                arguments=[*agent, *names],
                environment=environment,
                stop_timeout=AGENT_SHUTDOWN_TIMEOUT,
            ),
        ]

    def usage(self, *, detached: bool) -> str:
        """Return the usage message for the user."""
        from .embedded import stop_usage

        return "\n".join(
            [
                f"This machine is the node {self._membership.node} of {self._membership.server}, "
                f"with the address {self._address} ({self._data.root})",
                "",
                stop_usage(self._data, detached=detached),
            ]
        )


# -- tokens


@contextmanager
def _errors(command: str) -> Iterator[None]:
    """Print errors of a command, and exit with 1."""
    from ..kube.errors import ApiError, ConfigError, ConnectionLostError

    try:
        yield
    except (ApiError, ConfigError, ConnectionLostError, *DATA_DIR_ERRORS) as error:
        typer.echo(f"batholith {command}: {error}", err=True)
        raise typer.Exit(1) from None


def with_client(
    data_dir: Path | None,
    work: "Callable[[Client], Awaitable[None]]",
    *,
    command: str = "token",
) -> None:
    """Run *work* as the administrator of the cluster in a data directory."""
    from ..kube.client.client import Client
    from ..kube.client.config import load_credentials

    data = resolve_data_dir(data_dir)

    async def main() -> None:
        credentials = load_credentials(str(data.kubeconfig))
        async with Client(credentials, user_agent=f"batholith-{command}") as client:
            await work(client)

    with _errors(command):
        asyncio.run(main())


@app.command()
def create(
    ttl: Annotated[
        float, typer.Option(min=0, help="Hours for which it is valid; 0: until it is deleted.")
    ] = bootstrap_tokens.DEFAULT_TTL / timedelta(hours=1),
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    data_dir: DataDirOption = None,
) -> None:
    """Create a token, and print the command for the other machine."""
    from ..model.names import SECRETS

    async def work(client: "Client") -> None:
        address = await _join_address(client)
        expires_at = datetime.now(UTC) + timedelta(hours=ttl) if ttl else None
        token = BootstrapToken.new(expires_at=expires_at, description=description)
        await client.create(SECRETS, token.to_secret(), namespace=bootstrap_tokens.NAMESPACE)
        joined = JoinToken(token=str(token), **address)
        typer.echo(f"batholith join {shlex.quote(str(joined))}")

    with_client(data_dir, work)


async def _join_address(client: "Client") -> dict[str, Any]:
    """Return address, port and hash of the CA, for other machines."""
    import base64
    from urllib.parse import urlsplit

    import yaml
    from cryptography import x509

    from ..kube.errors import ConfigError, NotFoundError
    from ..machinery.x509 import public_key_hash
    from ..model.names import CONFIGMAPS

    name, namespace = bootstrap_tokens.CLUSTER_INFO, bootstrap_tokens.CLUSTER_INFO_NAMESPACE
    try:
        found = await client.get(CONFIGMAPS, name, namespace=namespace, view=dict)
    except NotFoundError:
        raise ConfigError(
            "other machines cannot reach this cluster: start it with `batholith up --listen "
            "ADDRESS`"
        ) from None
    info = yaml.safe_load(found["data"][bootstrap_tokens.KUBECONFIG_KEY])
    cluster = info["clusters"][0]["cluster"]
    ca = x509.load_pem_x509_certificate(base64.b64decode(cluster["certificate-authority-data"]))
    server = urlsplit(cluster["server"])
    return {"ca_hash": public_key_hash(ca), "host": server.hostname, "port": server.port}


@app.command("list")
def list_tokens(
    data_dir: DataDirOption = None,
) -> None:
    """List the tokens, without their secrets."""

    async def work(client: "Client") -> None:
        rows = [("ID", "EXPIRES", "DESCRIPTION")]
        for token in await _tokens(client):
            expires = "never" if token.expires_at is None else f"{token.expires_at:%FT%TZ}"
            rows.append((token.id, expires, token.description))
        for identity, expires, description in rows:
            typer.echo(f"{identity:<8} {expires:<22} {description}".rstrip())

    with_client(data_dir, work)


async def _tokens(client: "Client") -> list[BootstrapToken]:
    from ..model.names import SECRETS

    found = await client.list(SECRETS, namespace=bootstrap_tokens.NAMESPACE, view=dict)
    parsed = map(bootstrap_tokens.from_secret, found.items)
    return [token for token in parsed if token is not None]


@app.command()
def delete(
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the token, or the whole token.")
    ],
    data_dir: DataDirOption = None,
) -> None:
    """Delete a token: machines that have joined with it stay."""
    from ..model.names import SECRETS

    async def work(client: "Client") -> None:
        name = f"{bootstrap_tokens.NAME_PREFIX}{identity[:6]}"
        await client.delete(SECRETS, name, namespace=bootstrap_tokens.NAMESPACE)
        typer.echo(f"deleted {identity[:6]}")

    with_client(data_dir, work)
