"""Flags of the API server and the agent: sockets, and clusters of several machines."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..model.service_network import PodNetwork

if TYPE_CHECKING:
    from ..kube.client.client import Client
    from ..local.agent.settings import AgentSettings
    from ..local.supervisor.apiserver import Network

NodeNameOption = Annotated[
    str | None, typer.Option(help="Name of the node.", show_default="the host name")
]
NodeAddressOption = Annotated[
    str,
    typer.Option(
        help="IPv4 address of this machine, at which the API server and the pods of other nodes "
        "reach the node; all its pods have it.",
        show_default="loopback, and an own address for each pod",
    ),
]
RotateOption = Annotated[
    bool,
    typer.Option(
        "--rotate-certificates",
        help="Renew the certificates of the node in --pki-dir before they expire, as a machine "
        "that has joined a cluster.",
    ),
]
NamesOnlyOption = Annotated[
    bool,
    typer.Option(
        "--names-only",
        help="Serve names, and not the addresses of Services: another node of this machine does.",
    ),
]
NetworkListenFd = Annotated[
    int | None,
    typer.Option(
        help="File descriptor of an inherited listening socket at which other machines may "
        "join as nodes."
    ),
]
LocalListenFd = Annotated[
    int | None,
    typer.Option(help="File descriptor of an inherited listening Unix socket, without TLS."),
]
ServiceListenFd = Annotated[
    int | None,
    typer.Option(
        help="File descriptor of an inherited listening socket at the address of the Service "
        "`kubernetes`."
    ),
]
BootstrapTokenFile = Annotated[
    Path | None,
    typer.Option(help="File with a bootstrap token to create, which is removed then."),
]

SysctlsOption = Annotated[
    str,
    typer.Option(
        "--allowed-unsafe-sysctls",
        metavar="NAME,…",
        help="Sysctls of the pods' own namespaces that pods may set in addition to the safe ones; "
        "with * at the end, all that begin with it.",
    ),
]
LogSizeOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="When a container's log exceeds this size times --container-log-max-files, its oldest "
        "lines are removed until it is one size smaller.",
    ),
]
LogFilesOption = Annotated[
    int,
    typer.Option(metavar="N", help="See --container-log-max-size; at least 2."),
]


def inherited_socket(descriptor: int | None) -> socket.socket | None:
    """Return the socket that the process has inherited as *descriptor*, if any."""
    return None if descriptor is None else socket.socket(fileno=descriptor)


def log_flags_of(size: str, files: int, *, simulate: int = 0) -> tuple[str, ...]:
    """Return the agent's flags for the logs of containers.

    Raises:
        ValueError: one is invalid, or has no effect on simulated pods.
    """
    from ..local.agent.runtime.logs import LogRotation

    if LogRotation.parse(size, files) == LogRotation():
        return ()
    if simulate:
        raise ValueError("--container-log-max-size and -files have no effect on simulated pods")
    return (f"--container-log-max-size={size}", f"--container-log-max-files={files}")


def with_logs(settings: "AgentSettings", size: str, files: int) -> "AgentSettings":
    """Return *settings* with the limits of the logs of containers.

    Raises:
        ValueError: one is invalid.
    """
    from ..local.agent.runtime.logs import LogRotation

    return replace(settings, log_rotation=LogRotation.parse(size, files))


def sysctl_flags_of(allowed: str, *, simulate: int = 0) -> tuple[str, ...]:
    """Return the agent's flags for the sysctls of pods.

    Raises:
        ValueError: one is invalid, or has no effect on simulated pods.
    """
    from ..local.agent.state.sysctls import parse_allowed

    if not parse_allowed(allowed):
        return ()
    if simulate:
        raise ValueError("--allowed-unsafe-sysctls has no effect on simulated pods")
    return (f"--allowed-unsafe-sysctls={allowed}",)


def with_network(
    settings: "AgentSettings", pod_network: str, cluster_dns: str, sysctls: str
) -> "AgentSettings":
    """Return *settings* with the network of pods, and the unsafe *sysctls* that they may set;
    exit the command on errors."""
    from ..local.agent.state.sysctls import parse_allowed

    try:
        allowed = parse_allowed(sysctls)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--allowed-unsafe-sysctls") from None
    return replace(
        settings,
        network=PodNetwork(pod_network),
        cluster_dns=cluster_dns,
        allowed_unsafe_sysctls=allowed,
    )


def network(fd: int | None, token_file: Path | None) -> "Network | None":
    """Return how other machines reach the API server; ``None`` if they do not."""
    from ..local.supervisor.apiserver import Network

    if fd is None:
        return None
    listener = socket.socket(fileno=fd)
    return Network(host=listener.getsockname()[0], listener=listener, token_file=token_file)


def with_identity(settings: "AgentSettings", name: str | None, address: str) -> "AgentSettings":
    """Return *settings* with the name and the address of the node."""
    return replace(settings, node_name=name or settings.node_name, node_address=address)


def joined(settings: "AgentSettings", pki_dir: Path | None) -> "AgentSettings":
    """Return *settings* of a machine that has joined; exit the command on errors."""
    from ..local.agent.certificates import SERVING_FILE
    from ..local.agent.settings import ServingFiles

    if pki_dir is None or not settings.node_address:
        typer.echo("--rotate-certificates requires --pki-dir and --node-address", err=True)
        raise typer.Exit(2)
    file = pki_dir / SERVING_FILE
    serving = ServingFiles(certificate=file, key=file, client_ca=pki_dir / "ca.crt", renewed=True)
    return replace(settings, serving=serving, joined=True)


async def ensure_serving(client: "Client", settings: "AgentSettings") -> None:
    """Get the serving certificate of a machine that has joined, if it has none.

    Raises:
        CertificateError: the API server denies it.
    """
    from ..local.agent.certificates import NodeCertificates
    from ..machinery.clock import SystemClock

    if settings.joined:
        await NodeCertificates.of(client, settings, clock=SystemClock()).ensure_serving()
