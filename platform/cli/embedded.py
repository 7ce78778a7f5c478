"""Assemble the embedded cluster: sockets, keys, credentials and component processes."""

import errno
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from ..api.pages.sessions import prepare_sign_in
from ..kube.private_files import read_private, write_private
from ..local.agent.runtime.groups import map_group
from ..local.agent.settings import node_name
from ..local.agent.volumes.host_dirs import HostDir
from ..local.network.machine_lock import lock_machine
from ..local.network.node_namespace import HOLDER, NodeNamespace
from ..local.network.resolvers import choose_dns_address
from ..local.supervisor import kubeconfig, pki, tokens
from ..local.supervisor.child_process import Entry
from ..local.supervisor.datadir import DataDir
from ..local.supervisor.supervisor import ComponentSpec, Supervisor
from ..model import bootstrap_tokens
from ..model.bootstrap_tokens import BootstrapToken, JoinToken
from ..model.job_size import MAX_PODS
from ..model.service_network import PodNetwork
from . import controller_selection
from .featuregate import QUEUE_GATES
from .flag_groups import LOOPBACK
from .isolation_check import isolation_warnings
from .listeners import listen, listen_as_service, listen_locally, listen_preferring

API_PORT = 7443
REST_PORT = 7480
START_SPACE = 2**19
"""Bytes that a start needs for the files of the supervisor and the components."""
AGENT_SHUTDOWN_TIMEOUT = 60.0
"""Seconds for pods to terminate at shutdown, in addition to their grace periods."""
COMMON_FLAGS = ("--leader-elect=false", "--force-beside-volcano")
"""Flags of the controllers and the scheduler: the supervisor runs one replica of each, and knows
that Volcano does not run here."""
CONTROLLERS_FLAGS = {
    controller_selection.BATCH_JOB: ("--manage-all-jobs",),
    controller_selection.TRAINING: (
        "--gang-scheduler-name=volcano",
        "--mpi-kubectl-delivery-image=busybox",
    ),
}
"""Flags by the controller that has them. All Jobs are managed, since this cluster has no other
controller of Jobs. The init container that would bring kubectl exits at once, since pods cannot
reach the API server."""
SCHEDULER_FLAGS = (
    "--default-scheduler",
    f"--feature-gates={QUEUE_GATES}=true",
    "--simulation-address=127.0.0.1:0",
)
"""Enables the scheduling gate of queues, which only pods with its annotation get."""
API_FLAGS = ("--record-history", "--no-leader-elect", "--caller-rate=0")
"""No limit per caller, since all callers are the same user."""

ACCOUNTS = ("controllers", "workloads", "scheduler", "agent", "node-extensions", "proxy", "api")
"""Users with their own credentials: the components, and ``node-extensions`` for what
the agent does beyond a kubelet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of ``up``."""

    simulate: int = 0
    port: int | None = None
    """``None``: the default port, or any free port if it is in use; 0: any free port."""
    api_port: int | None = None
    cpus: int | None = None
    http_limits: str = ""
    podgroups: Literal["all", "gangs"] = "all"
    max_pods_per_job: int = MAX_PODS
    scheduler_conf: Path | None = None
    """Configuration of the scheduler; ``None``: the default one."""
    pages: bool = True
    """Whether the REST API serves its pages."""
    controllers: Collection[str] = controller_selection.CONTROLLERS
    """The controllers that run, as in ``--controllers``."""
    host_dirs: tuple[HostDir, ...] = ()
    """Directories of the machine that pods may mount."""
    notify_allow: tuple[str, ...] = ()
    """Hosts and networks that may be notified although they are not public."""
    pods: Literal["processes", "images", "auto"] = "auto"
    """Whether pods run images."""
    registries: tuple[str, ...] = ()
    """As in ``--registry``."""
    agent_flags: tuple[str, ...] = ()
    """Flags of the agent for the logs and sysctls of pods."""
    pod_network: PodNetwork = PodNetwork.HOST
    """Where pods run, as in ``--pod-network``."""
    network: tuple[str, int] | None = None
    """Address and port at which other machines may join; ``None``: none may."""


class EmbeddedCluster:
    """An embedded cluster; a context manager over its sockets.

    The components inherit the sockets, which listen before any component runs, so that connections
    are not refused while the API server starts or restarts.
    """

    def __init__(self, data: DataDir, options: Options) -> None:
        self._data = data
        self._options = options
        self.notices: list[str] = []
        self._admin_token = self._sign_in_code = self._join_token = self._cluster_dns = ""
        self._node_namespace: NodeNamespace | None = None
        self._service_socket: socket.socket | None = None

    def __enter__(self) -> Self:
        """Bind the sockets and write keys, tokens and kubeconfigs.

        Raises:
            OSError: the requested port is in use, a file cannot be used, or another cluster has the
                network of the machine.
        """
        options = self._options
        if self._data.node_json.exists():
            raise FileExistsError(
                f"{self._data.root} belongs to a node of another machine's cluster: choose "
                "another --data-dir, or start the node with `batholith join`"
            )
        with ExitStack() as opened:
            if options.pod_network is PodNetwork.NAMESPACES and os.geteuid() == 0:
                opened.callback(os.close, lock_machine(self._data.root))
            take_start_space(self._data)
            self._listen(opened)
            self.api_url = f"https://{LOOPBACK}:{self._api_socket.getsockname()[1]}"
            self.rest_url = f"http://{LOOPBACK}:{self._rest_socket.getsockname()[1]}"
            self._write_credentials()
            self._prepare_join()
            if options.pages:
                self._sign_in_code = prepare_sign_in(self._data.sign_in, self._admin_token)
            if not self._data.notify_key.exists():
                write_private(self._data.notify_key, secrets.token_hex(32).encode())
            write_private(self._data.ports, msgspec.json.encode(self._ports()))
            if options.pod_network is PodNetwork.NAMESPACES and os.geteuid() != 0:
                self._node_namespace = NodeNamespace(map_group=map_group)
                opened.callback(self._node_namespace.close)
            self._cluster_dns = choose_dns_address(
                options.pod_network.ranges,
                self._data.root,
                own_network=self._node_namespace is not None,
            )
            self._opened = opened.pop_all()
        if not options.simulate:
            self.notices += isolation_warnings()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the sockets, and remove the network."""
        self._opened.close()

    def _listen(self, opened: ExitStack) -> None:
        """Listen for the components; *opened* closes the sockets."""
        options, last = self._options, _read_ports(self._data)
        self._api_socket = opened.enter_context(
            self._bind("Kubernetes API", options.port, API_PORT, last=last.kubernetes)
        )
        self._rest_socket = opened.enter_context(
            self._bind("REST API", options.api_port, REST_PORT, last=last.rest)
        )
        self._network_socket = self._bind_network()
        self._local_socket = listen_locally(self._data.api_socket)
        if options.pod_network is PodNetwork.HOST and options.network is None:
            self._service_socket = listen_as_service(self._data.root)
        for listener in (self._network_socket, self._local_socket, self._service_socket):
            if listener is not None:
                opened.enter_context(listener)

    def supervisor(self) -> Supervisor:
        """Create the supervisor, with components in start order."""
        return Supervisor(
            self._data,
            [*self._pasta(), *self.components()],
            program=[sys.executable, "-m", "batholith.cli"],
            version=metadata.version("batholith"),
            ports=msgspec.structs.asdict(self._ports()),
            mounts=[str(each) for each in self._options.host_dirs],
        )

    def _ports(self) -> "_Ports":
        return _Ports(
            kubernetes=self._api_socket.getsockname()[1], rest=self._rest_socket.getsockname()[1]
        )

    def start_supervisor(self, entry: Entry) -> Supervisor:
        """Create the supervisor and fork all components, which run their arguments with *entry*.

        To be called before any loop or thread starts. Common imports are loaded once, before
        forking.
        """
        os.environ.update(self._tls_environment())
        from ..kube.client import events
        from ..kube.informer import informer
        from ..machinery import controller, event_recorder, metrics
        from . import health, process

        # Imported only to load them.
        del informer, events, controller, metrics, event_recorder, health, process
        supervisor = self.supervisor()
        supervisor.fork(entry)
        return supervisor

    def usage(self, *, detached: bool) -> str:
        """Return the usage message for the user."""
        config = self._data.kubeconfig
        return "\n".join(
            [
                f"Batholith is up ({self._data.root})",
                "",
                *self._join_usage(),
                f"  export KUBECONFIG={shlex.quote(str(config))}",
                "  kubectl get queues",
                "  kubectl apply -f job.yaml && kubectl get vcjob,podgroup,pod",
                "",
                "  TOKEN=$(kubectl config view --raw -o jsonpath='{.users[0].user.token}')",
                f"  curl {self.rest_url}/v1/namespaces/default/jobs/NAME/commands \\",
                '    -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \\',
                '    -d \'{"action": "suspend"}\'',
                "",
                *self._pages_usage(),
                f"  {self.rest_url}/docs lists the REST API.",
                stop_usage(self._data, detached=detached),
            ]
        )

    def _pages_usage(self) -> list[str]:
        if not self._options.pages:
            return []
        # A separate host name: browsers send cookies of 127.0.0.1 to servers at all its ports.
        port = self._rest_socket.getsockname()[1]
        link = f"http://batholith.localhost:{port}/login?code={self._sign_in_code}"
        return [
            "  Jobs, queues and nodes in the browser (the link can be used once):",
            f"  {link}",
            "",
        ]

    def _join_usage(self) -> list[str]:
        if not self._join_token:
            return []
        return [
            "  On another machine, within 24 hours (later: batholith token create):",
            f"  batholith join {self._join_token}",
            "",
        ]

    def _bind_network(self) -> socket.socket | None:
        """Listen where other machines may join.

        Raises:
            OSError: the address is not of this machine, or the port is in use.
        """
        if self._options.network is None:
            return None
        host, port = self._options.network
        try:
            return listen(port, host=host)
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error

    def _prepare_join(self) -> None:
        """Write a token that the API server creates; the usage message shows it."""
        if self._network_socket is None or self._options.network is None:
            return
        host, port = self._network_socket.getsockname()
        expires_at = datetime.now(UTC) + bootstrap_tokens.DEFAULT_TTL
        token = BootstrapToken.new(expires_at=expires_at, description="batholith up --listen")
        tokens.write_first(self._token_file, token)
        ca_hash = pki.ca_hash(self._data.pki)
        self._join_token = str(JoinToken(token=str(token), ca_hash=ca_hash, host=host, port=port))

    @property
    def _token_file(self) -> Path:
        return self._data.pki / "bootstrap-token"

    def _bind(self, what: str, requested: int | None, default: int, *, last: int) -> socket.socket:
        """Listen on the *requested* port. If any free port will do, prefer the *last* one."""
        if requested == 0:
            return listen_preferring(last)
        try:
            return listen(default if requested is None else requested)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or requested is not None:
                text = (
                    f"{what}: port {default if requested is None else requested}: {error.strerror}"
                )
                raise OSError(text) from error
        bound = listen_preferring(last)
        self.notices.append(
            f"{what}: port {default} is in use, using {bound.getsockname()[1]} instead"
        )
        return bound

    def _write_credentials(self) -> None:
        network = self._options.network
        names = [*((network[0],) if network else ()), *pki.names_in(self._options.pod_network)]
        if self._service_socket is not None:
            names.append(self._service_socket.getsockname()[0])
        ca = pki.ensure(self._data.pki, names=names).ca_data
        user_tokens = tokens.ensure(self._data.tokens)
        self._admin_token = user_tokens["admin"]
        files = {name: self._kubeconfig(name) for name in ACCOUNTS}
        for user, path in {"admin": self._data.kubeconfig, **files}.items():
            access = kubeconfig.ClusterAccess(
                server=self.api_url,
                ca=ca,
                user=user,
                token=user_tokens[user],
                unix_socket=self._data.api_socket if user in files and self._local_socket else None,
            )
            kubeconfig.write(path, access)

    def components(self) -> list[ComponentSpec]:
        """Return the components in start order, without pasta."""
        data, options, rest = str(self._data.root), self._options, self._rest_socket.fileno()
        listeners = [self._api_socket.fileno()]
        pages = ["--pages", "--sign-in-file", str(self._data.sign_in)] if options.pages else []
        allowed = [f"--notify-allow={each}" for each in options.notify_allow]
        limits = ["--http-limits", options.http_limits] if options.http_limits else []
        size = f"--max-pods-per-job={options.max_pods_per_job}"
        server = ["apiserver", "--data-dir", data, "--listen-fd", str(listeners[0]), size]
        server += [*limits, "--notifications", *allowed, *self._network_flags]
        if controller_selection.TRAINING not in options.controllers:
            server.append("--other-training-operator")
        server += [] if options.simulate else ["--node", node_name(), *self._dns_flags]
        server += self._socket_arguments(listeners)
        environment = self._tls_environment()
        in_network = environment | self._network_environment()
        # Stopped in reverse order: no controller may react while the agent stops pods, and the
        # agent still has to write their final status. They may need Services until they stop.
        return [
            ComponentSpec(
                name="apiserver", arguments=server, descriptors=listeners, environment=in_network
            ),
            *self._proxy(in_network),
            ComponentSpec(
                name="agent",
                arguments=self._client_arguments("agent", *self._agent_arguments(), *limits),
                environment=in_network,
                stop_timeout=AGENT_SHUTDOWN_TIMEOUT,
            ),
            ComponentSpec(
                name="controllers",
                arguments=self._client_arguments(
                    "controllers",
                    *COMMON_FLAGS,
                    *self._controllers_arguments(),
                    size,
                ),
                environment=environment,
            ),
            self._client_component("workloads", environment),
            ComponentSpec(
                name="scheduler",
                arguments=self._client_arguments(
                    "scheduler", *COMMON_FLAGS, *SCHEDULER_FLAGS, *self._scheduler_arguments()
                ),
                environment=environment,
            ),
            ComponentSpec(
                name="api",
                arguments=self._client_arguments(
                    *("api", "--store", f"sqlite:///{self._data.api_db}", "--listen-fd", str(rest)),
                    *("--notify-key-file", str(self._data.notify_key), *allowed),
                    *(*API_FLAGS, *pages, *limits),
                ),
                descriptors=[rest],
                environment=environment,
            ),
        ]

    def _socket_arguments(self, descriptors: list[int]) -> list[str]:
        """Return arguments of the API server, and add the sockets that it inherits."""
        arguments = []
        for name, listener in (
            ("local", self._local_socket),
            ("service", self._service_socket),
            ("network", self._network_socket),
        ):
            if listener is not None:
                descriptors.append(listener.fileno())
                arguments += [f"--{name}-listen-fd", str(listener.fileno())]
        if self._network_socket is not None:
            arguments += ["--bootstrap-token-file", str(self._token_file)]
        return arguments

    def _pasta(self) -> list[ComponentSpec]:
        """Return what connects the network namespace of the node, if there is one."""
        found = self._node_namespace
        if found is None:
            return []
        port = self._api_socket.getsockname()[1]
        arguments = ["pasta", "--holder", str(found.holder), "--api-port", str(port)]
        return [ComponentSpec(name="pasta", arguments=arguments)]

    def _proxy(self, environment: Mapping[str, str]) -> list[ComponentSpec]:
        """Return the service proxy; simulated pods have nothing to connect to."""
        if self._options.simulate:
            return []
        flags = [*self._network_flags, *self._dns_flags, "--data-dir", str(self._data.root)]
        return [self._client_component("proxy", environment, *flags)]

    @property
    def _dns_flags(self) -> list[str]:
        return [f"--cluster-dns={self._cluster_dns}"] if self._cluster_dns else []

    @property
    def _network_flags(self) -> list[str]:
        network = self._options.pod_network
        return [] if network is PodNetwork.HOST else [f"--pod-network={network}"]

    def _client_component(
        self, name: str, environment: Mapping[str, str], *options: str
    ) -> ComponentSpec:
        """Return a component with few options."""
        arguments = self._client_arguments(name, *options)
        return ComponentSpec(name=name, arguments=arguments, environment=environment)

    def _agent_arguments(self) -> list[str]:
        data, options = self._data, self._options
        arguments = ["--data-dir", str(data.root), "--pki-dir", str(data.pki), "--end-pods"]
        if options.simulate:
            arguments += ["--simulate", str(options.simulate)]
        else:
            if options.network is not None:
                arguments += ["--node-address", options.network[0]]
            arguments += ["--extensions-kubeconfig", str(self._kubeconfig("node-extensions"))]
        if options.cpus is not None:
            arguments += ["--cpus", str(options.cpus)]
        if not options.simulate:
            arguments += ["--pods", options.pods, *self._network_flags, *self._dns_flags]
            arguments += options.agent_flags
        for registry in options.registries:
            arguments += ["--registry", registry]
        for directory in options.host_dirs:
            arguments += ["--mount", str(directory)]
        return arguments

    def _scheduler_arguments(self) -> list[str]:
        file = self._options.scheduler_conf
        return [f"--scheduler-conf={file}"] if file else []

    def _controllers_arguments(self) -> list[str]:
        enabled = self._options.controllers
        needed = [
            flag for name, flags in CONTROLLERS_FLAGS.items() if name in enabled for flag in flags
        ]
        given = [f"--controllers={','.join(enabled)}", "--groupers=*", "--ttl-waits-for-history"]
        return [*given, f"--podgroups={self._options.podgroups}", *needed]

    def _tls_environment(self) -> dict[str, str]:
        """Return variables that restrict TLS to the cluster's CA.

        Loading the system's CA certificates, as aiohttp does on import, costs each component a
        tenth of a second.
        """
        return {"SSL_CERT_FILE": str(self._data.pki / "ca.crt"), "SSL_CERT_DIR": ""}

    def _network_environment(self) -> dict[str, str]:
        """Return variables with which a component enters the network namespace of the node."""
        found = self._node_namespace
        return {} if found is None else {HOLDER: str(found.holder)}

    def _client_arguments(self, name: str, *arguments: str) -> list[str]:
        """Return the arguments of a component that is a client of the API server."""
        return [name, "--kubeconfig", str(self._kubeconfig(name)), *arguments]

    def _kubeconfig(self, name: str) -> Path:
        return self._data.pki / f"{name}.kubeconfig"


class _Ports(msgspec.Struct):
    """Ports that the last start used; 0 if that is unknown."""

    kubernetes: int = 0
    rest: int = 0


def _read_ports(data: DataDir) -> _Ports:
    try:
        return msgspec.json.decode(read_private(data.ports), type=_Ports)
    except (FileNotFoundError, msgspec.DecodeError):
        return _Ports()


def down_command(data: DataDir) -> str:
    """Return the command that stops the cluster of a data directory."""
    if data.root == DataDir.default().root:
        return "batholith down"
    return f"batholith down --data-dir {shlex.quote(str(data.root))}"


def stop_usage(data: DataDir, *, detached: bool) -> str:
    """Return the lines about how to stop what runs in a data directory."""
    if detached:
        return f"  To stop it: {down_command(data)}"
    return f"  Ctrl-C stops it, as does\n  {down_command(data)}"


def take_start_space(data: DataDir) -> None:
    """On a full disk, take space for the files of a start from the API server's reserve.

    Otherwise objects could not be deleted to free space.
    """
    disk = os.statvfs(data.root)
    if disk.f_bavail * disk.f_frsize >= START_SPACE:
        return
    with suppress(FileNotFoundError):
        os.truncate(data.disk_reserve, max(0, data.disk_reserve.stat().st_size - START_SPACE))
