"""The objects as the agent reads them: pods whole enough to run, their sources, nodes, services."""

import base64
import binascii
from functools import cached_property

import msgspec

from ...model.base import Part
from ...model.meta import Condition, ObjectMeta
from ...model.pod import FINISHED, VolumeMount
from ...model.pod_resources import Resources


class KeyRef(Part, frozen=True):
    """One key of a ConfigMap or Secret."""

    name: str = ""
    key: str = ""
    optional: bool = False


class FieldRef(Part, frozen=True):
    """A field of the pod itself, such as ``metadata.name``."""

    field_path: str = ""


class ResourceFieldRef(Part, frozen=True):
    """A container's own request or limit."""

    container_name: str = ""
    resource: str = ""
    divisor: str | int | float = "1"


class EnvSource(Part, frozen=True):
    """Where the value of a variable comes from."""

    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class EnvVar(Part, frozen=True):
    """One environment variable."""

    name: str = ""
    value: str | None = None
    value_from: EnvSource | None = None


class SourceName(Part, frozen=True):
    """A ConfigMap or Secret as a whole."""

    name: str = ""
    optional: bool = False


class EnvFrom(Part, frozen=True):
    """All keys of a ConfigMap or Secret as variables."""

    prefix: str = ""
    config_map_ref: SourceName | None = None
    secret_ref: SourceName | None = None


class Capabilities(Part, frozen=True):
    """Rights by their names, such as ``CHOWN``."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SecurityContext(Part, frozen=True):
    """As whom a container, or all of a pod, shall run; all but the first three a container's."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    privileged: bool = False
    capabilities: Capabilities = Capabilities()
    read_only_root_filesystem: bool = False
    proc_mount: str = ""


class ExecAction(Part, frozen=True):
    """A command to run in the container."""

    command: tuple[str, ...] = ()


class HttpHeader(Part, frozen=True):
    """A header of a request."""

    name: str = ""
    value: str = ""


class HttpGet(Part, frozen=True):
    """A request to make of the container."""

    host: str = ""
    path: str = "/"
    port: int | str = 0
    scheme: str = "HTTP"
    http_headers: tuple[HttpHeader, ...] = ()


class TcpSocket(Part, frozen=True):
    """A port that the container should listen at."""

    host: str = ""
    port: int | str = 0


class SleepAction(Part, frozen=True):
    """A pause."""

    seconds: int = 0


class GrpcAction(Part, frozen=True):
    """A call of the health service of gRPC, which this agent cannot make."""


class Handler(Part, frozen=True):
    """What a hook or a probe does; one of these is set."""

    exec: ExecAction | None = None
    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    sleep: SleepAction | None = None
    grpc: GrpcAction | None = None


class Probe(Handler, frozen=True):
    """A question that is asked again and again."""

    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class Lifecycle(Part, frozen=True):
    """Hooks of a container."""

    post_start: Handler | None = None
    pre_stop: Handler | None = None


class ContainerPort(Part, frozen=True):
    """A port that the container says it listens at."""

    name: str = ""
    container_port: int = 0


class Container(Part, frozen=True):
    """One container of a pod's specification."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    resources: Resources = Resources()
    security_context: SecurityContext = SecurityContext()
    ports: tuple[ContainerPort, ...] = ()
    lifecycle: Lifecycle = Lifecycle()
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    restart_policy: str = ""
    termination_message_path: str = ""
    termination_message_policy: str = ""

    @property
    def is_sidecar(self) -> bool:
        """An init container that stays up beside the main ones."""
        return self.restart_policy == "Always"


class KeyToPath(Part, frozen=True):
    """One key of a source under a file name of its own."""

    key: str = ""
    path: str = ""
    mode: int | None = None


class DataSource(Part, frozen=True):
    """A ConfigMap or Secret as files; Secrets in ``spec.volumes`` call their name `secretName`."""

    name: str = ""
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int | None = None
    optional: bool = False


class DownwardFile(Part, frozen=True):
    """A field of the pod as a file."""

    path: str = ""
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    mode: int | None = None


class DownwardSource(Part, frozen=True):
    """Fields of the pod as files."""

    items: tuple[DownwardFile, ...] = ()
    default_mode: int | None = None


class TokenSource(Part, frozen=True):
    """A token of the pod's service account as a file."""

    audience: str = ""
    expiration_seconds: int = 3600
    path: str = ""


class Projection(Part, frozen=True):
    """One source of a projected volume."""

    config_map: DataSource | None = None
    secret: DataSource | None = None
    downward_api: DownwardSource | None = msgspec.field(name="downwardAPI", default=None)
    service_account_token: TokenSource | None = None


class ProjectedSource(Part, frozen=True):
    """Several sources in one folder."""

    sources: tuple[Projection, ...] = ()
    default_mode: int | None = None


class HostPath(Part, frozen=True):
    """A path of the machine."""

    path: str = ""
    type: str = ""


class ClaimSource(Part, frozen=True):
    """A PersistentVolumeClaim."""

    claim_name: str = ""
    read_only: bool = False


class EmptyDir(Part, frozen=True):
    """A folder that lives as long as the pod."""

    medium: str = ""


class Volume(Part, frozen=True):
    """One volume of a pod; exactly one source is set, or none that we know."""

    name: str = ""
    empty_dir: EmptyDir | None = None
    config_map: DataSource | None = None
    secret: DataSource | None = None
    projected: ProjectedSource | None = None
    downward_api: DownwardSource | None = msgspec.field(name="downwardAPI", default=None)
    host_path: HostPath | None = None
    persistent_volume_claim: ClaimSource | None = None


class HostAlias(Part, frozen=True):
    """More names for the hosts file."""

    ip: str = ""
    hostnames: tuple[str, ...] = ()


class PodSpec(Part, frozen=True):
    """What a pod shall be."""

    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    enable_service_links: bool | None = None
    host_network: bool = False
    host_pid: bool = msgspec.field(name="hostPID", default=False)
    host_ipc: bool = msgspec.field(name="hostIPC", default=False)
    share_process_namespace: bool = False
    host_aliases: tuple[HostAlias, ...] = ()
    security_context: SecurityContext = SecurityContext()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()


class Running(Part, frozen=True):
    """A container at work."""

    started_at: str | None = None


class Terminated(Part, frozen=True):
    """A container that ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class StateView(Part, frozen=True):
    """The state of a container as reported."""

    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Part, frozen=True):
    """What was reported last about one container."""

    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: StateView = StateView()
    last_state: StateView = StateView()


class PodStatus(Part, frozen=True):
    """What was reported last about a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Part, frozen=True, dict=True):
    """A pod as the agent sees it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @cached_property
    def containers(self) -> dict[str, Container]:
        """All containers by name, init containers first."""
        return {c.name: c for c in (*self.spec.init_containers, *self.spec.containers)}

    @property
    def host_name(self) -> str:
        """The name that the pod has for itself."""
        return self.spec.hostname or self.metadata.name[:63].rstrip(".-")

    @property
    def grace(self) -> int:
        """Seconds between the request to end and the kill; a deletion's own figure wins."""
        wanted = self.metadata.deletion_grace_period_seconds
        if self.metadata.deletion_timestamp is None or wanted is None:
            wanted = self.spec.termination_grace_period_seconds
        return 30 if wanted is None else max(0, wanted)

    @property
    def is_over(self) -> bool:
        """Its last phase was reported."""
        return self.status.phase in FINISHED


class Marked(Part, frozen=True):
    """An object of which only name and version matter."""

    metadata: ObjectMeta = ObjectMeta()


BOUND = "Bound"


class ClaimStatus(Part, frozen=True):
    """Whether a claim is bound."""

    phase: str = ""


class ClaimSpec(Part, frozen=True):
    """What a claim is bound to."""

    volume_name: str = ""


class Claim(Part, frozen=True):
    """A claim, as its pods need it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class DriverVolume(Part, frozen=True):
    """A volume of a driver."""

    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False


class VolumeSpec(Part, frozen=True):
    """Where a volume's files are; sources that we do not know are left out."""

    csi: DriverVolume | None = None
    host_path: HostPath | None = None
    local: HostPath | None = None
    volume_mode: str = ""
    persistent_volume_reclaim_policy: str = ""


class PersistentVolume(Part, frozen=True):
    """A volume, as the agent mounts it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeSpec = VolumeSpec()


class ConfigMap(Part, frozen=True):
    """A ConfigMap's data."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}

    def content(self) -> dict[str, bytes]:
        """All entries as bytes."""
        plain = {key: text.encode() for key, text in self.data.items()}
        return plain | {key: _decoded(text) for key, text in self.binary_data.items()}


class Secret(Part, frozen=True):
    """A Secret's data, never shown in a log."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}

    def content(self) -> dict[str, bytes]:
        """All entries as bytes."""
        return {key: _decoded(text) for key, text in self.data.items()}


def _decoded(text: str) -> bytes:
    """Base64 as the server checked it; what is none is taken as it stands."""
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return text.encode()


class ServicePort(Part, frozen=True):
    """One port of a service."""

    name: str = ""
    port: int = 0
    protocol: str = "TCP"


class ServiceSpec(Part, frozen=True):
    """What a service selects."""

    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    publish_not_ready_addresses: bool = False


class Service(Part, frozen=True):
    """A service as the hosts file needs it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()

    @property
    def is_headless(self) -> bool:
        """Names the pods themselves, without an address of its own."""
        return self.spec.cluster_ip == "None"


class Taint(Part, frozen=True):
    """One reason why pods stay away from a node."""

    key: str = ""
    value: str | None = None
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Part, frozen=True):
    """What keeps pods away from a node."""

    taints: tuple[Taint, ...] = ()


class Node(Part, frozen=True):
    """What the agent reads of a node; it writes the rest."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()


class TokenSpec(Part, frozen=True):
    """What was granted, which may be less than was asked for."""

    expiration_seconds: int = 0


class TokenStatus(Part, frozen=True):
    """The token that was made."""

    token: str = ""


class TokenRequest(Part, frozen=True):
    """The answer to a request for a service account's token."""

    spec: TokenSpec = TokenSpec()
    status: TokenStatus = TokenStatus()
