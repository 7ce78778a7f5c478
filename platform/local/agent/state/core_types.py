"""API objects with the fields that the agent reads."""

import base64
import binascii
from functools import cached_property

import msgspec

from ....model.base import ApiStruct
from ....model.meta import Condition, ObjectMeta
from ....model.names import SIMULATE_PREFIX
from ....model.pod import FINISHED, VolumeMount
from ....model.pod_resources import Resources

SIMULATED_STOP = SIMULATE_PREFIX + "stop"
"""Annotation of a simulated Node: with ``true`` its kubelet reports nothing."""


class KeySelector(ApiStruct, frozen=True):
    """One key of a ConfigMap or Secret."""

    name: str = ""
    key: str = ""
    optional: bool = False


class ObjectFieldSelector(ApiStruct, frozen=True):
    """A field of the pod itself, such as ``metadata.name``."""

    field_path: str = ""


class ResourceFieldSelector(ApiStruct, frozen=True):
    """A container's own request or limit."""

    container_name: str = ""
    resource: str = ""
    divisor: str | int | float = "1"


class FileKeySelector(ApiStruct, frozen=True):
    """A variable in a file of a volume."""

    volume_name: str = ""
    path: str = ""
    key: str = ""
    optional: bool = False


class EnvVarSource(ApiStruct, frozen=True):
    """Source of a variable's value."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    file_key_ref: FileKeySelector | None = None


class EnvVar(ApiStruct, frozen=True):
    """One environment variable."""

    name: str = ""
    value: str | None = None
    value_from: EnvVarSource | None = None


class EnvFromRef(ApiStruct, frozen=True):
    """A whole ConfigMap or Secret."""

    name: str = ""
    optional: bool = False


class EnvFromSource(ApiStruct, frozen=True):
    """All keys of a ConfigMap or Secret as variables."""

    prefix: str = ""
    config_map_ref: EnvFromRef | None = None
    secret_ref: EnvFromRef | None = None


class Capabilities(ApiStruct, frozen=True):
    """Capabilities by name, such as ``CHOWN``."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class Sysctl(ApiStruct, frozen=True):
    """A setting of the kernel, for the namespaces of a pod."""

    name: str = ""
    value: str = ""


class SecurityContext(ApiStruct, frozen=True):
    """Security context of a container; for a pod only the first three fields, and sysctls."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    privileged: bool = False
    capabilities: Capabilities = Capabilities()
    read_only_root_filesystem: bool = False
    proc_mount: str = ""
    sysctls: tuple[Sysctl, ...] = ()


class ExecAction(ApiStruct, frozen=True):
    """A command to run in the container."""

    command: tuple[str, ...] = ()


class HttpHeader(ApiStruct, frozen=True):
    """A header of a request."""

    name: str = ""
    value: str = ""


class HttpGetAction(ApiStruct, frozen=True):
    """An HTTP request to the container."""

    host: str = ""
    path: str = "/"
    port: int | str = 0
    scheme: str = "HTTP"
    http_headers: tuple[HttpHeader, ...] = ()


class TcpSocketAction(ApiStruct, frozen=True):
    """A TCP connection to the container."""

    host: str = ""
    port: int | str = 0


class SleepAction(ApiStruct, frozen=True):
    """A sleep."""

    seconds: int = 0


class GrpcAction(ApiStruct, frozen=True):
    """A call of the gRPC health service."""

    port: int = 0
    service: str = ""


class LifecycleHandler(ApiStruct, frozen=True):
    """Handler of a hook or a probe; one of the fields is set."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    sleep: SleepAction | None = None
    grpc: GrpcAction | None = None


class Probe(LifecycleHandler, frozen=True):
    """A startup, liveness or readiness probe."""

    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class Lifecycle(ApiStruct, frozen=True):
    """Hooks of a container, and the signal that stops it."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str = ""


class ExitCodes(ApiStruct, frozen=True):
    """Exit codes that a rule applies to: those in *values*, or all others."""

    operator: str = ""
    values: tuple[int, ...] = ()


RESTART, RESTART_ALL = "Restart", "RestartAllContainers"
"""The actions of a rule: it restarts the container, or all of the pod, init containers first."""


class RestartRule(ApiStruct, frozen=True):
    """A rule that precedes the restart policy of a container."""

    action: str = ""
    exit_codes: ExitCodes = ExitCodes()

    def applies_to(self, code: int) -> bool:
        """Return whether the rule applies to an exit with *code*."""
        is_listed = code in self.exit_codes.values
        return is_listed if self.exit_codes.operator == "In" else not is_listed


class ContainerPort(ApiStruct, frozen=True):
    """A declared port of the container."""

    name: str = ""
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


RESTART_CONTAINER = "RestartContainer"
"""The policy of a container that must restart to be resized."""


class ResizePolicy(ApiStruct, frozen=True):
    """Whether a container must restart to get another amount of a resource."""

    resource_name: str = ""
    restart_policy: str = ""


class Container(ApiStruct, frozen=True):
    """One container of a pod's spec."""

    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    resources: Resources = Resources()
    resize_policy: tuple[ResizePolicy, ...] = ()
    security_context: SecurityContext = SecurityContext()
    ports: tuple[ContainerPort, ...] = ()
    lifecycle: Lifecycle = Lifecycle()
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    restart_policy: str = ""
    restart_policy_rules: tuple[RestartRule, ...] = ()
    termination_message_path: str = ""
    termination_message_policy: str = ""
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    target_container_name: str = ""
    """Of an ephemeral container: the container whose processes it sees, if any."""

    @property
    def can_restart_all(self) -> bool:
        """Whether its exit may restart all containers of the pod."""
        return any(each.action == RESTART_ALL for each in self.restart_policy_rules)

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container keeps running during the main containers."""
        return self.restart_policy == "Always"


class KeyToPath(ApiStruct, frozen=True):
    """File path of one key of a source."""

    key: str = ""
    path: str = ""
    mode: int | None = None


class KeyedVolumeSource(ApiStruct, frozen=True):
    """A ConfigMap or Secret as files; in ``spec.volumes`` a Secret has `secretName`."""

    name: str = ""
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int | None = None
    optional: bool = False


class DownwardApiFile(ApiStruct, frozen=True):
    """A field of the pod as a file."""

    path: str = ""
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: int | None = None


class DownwardApiSource(ApiStruct, frozen=True):
    """Fields of the pod as files."""

    items: tuple[DownwardApiFile, ...] = ()
    default_mode: int | None = None


class ServiceAccountTokenSource(ApiStruct, frozen=True):
    """A token of the pod's service account as a file."""

    audience: str = ""
    expiration_seconds: int = 3600
    path: str = ""


class VolumeProjection(ApiStruct, frozen=True):
    """One source of a projected volume."""

    config_map: KeyedVolumeSource | None = None
    secret: KeyedVolumeSource | None = None
    downward_api: DownwardApiSource | None = msgspec.field(name="downwardAPI", default=None)
    service_account_token: ServiceAccountTokenSource | None = None


class ProjectedVolumeSource(ApiStruct, frozen=True):
    """Several sources in one directory."""

    sources: tuple[VolumeProjection, ...] = ()
    default_mode: int | None = None


class HostPathSource(ApiStruct, frozen=True):
    """A path of the host."""

    path: str = ""
    type: str = ""


class PvcSource(ApiStruct, frozen=True):
    """A PersistentVolumeClaim."""

    claim_name: str = ""
    read_only: bool = False


class EmptyDirSource(ApiStruct, frozen=True):
    """A directory that exists as long as the pod."""

    medium: str = ""
    size_limit: str | int | float | None = None


class ImageVolumeSource(ApiStruct, frozen=True):
    """Volume with the files of an image, read-only."""

    reference: str = ""
    pull_policy: str = ""


class Volume(ApiStruct, frozen=True):
    """One volume of a pod; one source is set, or none if its type is unsupported."""

    name: str = ""
    empty_dir: EmptyDirSource | None = None
    config_map: KeyedVolumeSource | None = None
    secret: KeyedVolumeSource | None = None
    projected: ProjectedVolumeSource | None = None
    downward_api: DownwardApiSource | None = msgspec.field(name="downwardAPI", default=None)
    host_path: HostPathSource | None = None
    persistent_volume_claim: PvcSource | None = None
    ephemeral: dict[str, object] | None = None
    image: ImageVolumeSource | None = None


class HostAlias(ApiStruct, frozen=True):
    """Additional entry of the hosts file."""

    ip: str = ""
    hostnames: tuple[str, ...] = ()


class ReadinessGate(ApiStruct, frozen=True):
    """A condition that others set, and that a ready pod has."""

    condition_type: str = ""


class ObjectName(ApiStruct, frozen=True):
    """Reference to an object of the pod's namespace."""

    name: str = ""


class DnsOption(ApiStruct, frozen=True):
    """An option of the resolver."""

    name: str = ""
    value: str | None = None


class DnsConfig(ApiStruct, frozen=True):
    """What the configuration of a pod's resolver has in addition."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[DnsOption, ...] = ()


class PodSpec(ApiStruct, frozen=True):
    """Spec of a pod."""

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
    dns_policy: str = "ClusterFirst"
    dns_config: DnsConfig | None = None
    security_context: SecurityContext = SecurityContext()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    image_pull_secrets: tuple[ObjectName, ...] = ()
    readiness_gates: tuple[ReadinessGate, ...] = ()
    priority: int = 0
    overhead: dict[str, str | int | float] = {}
    resources: Resources = Resources()
    resource_claims: tuple[ObjectName, ...] = ()


class ContainerStateRunning(ApiStruct, frozen=True):
    """A running container."""

    started_at: str | None = None


class ContainerStateTerminated(ApiStruct, frozen=True):
    """A terminated container."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerStateView(ApiStruct, frozen=True):
    """The state of a container as reported."""

    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ImageVolumeStatus(ApiStruct, frozen=True):
    """The image of a volume, as reported."""

    image_ref: str = ""


class VolumeStatus(ApiStruct, frozen=True):
    """A volume as reported: only of images more than its name is known."""

    image: ImageVolumeStatus | None = None


class VolumeMountStatus(ApiStruct, frozen=True):
    """Mount of a volume in a container, as reported."""

    name: str = ""
    volume_status: VolumeStatus | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """Last reported status of one container."""

    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    image: str = ""
    image_id: str = msgspec.field(name="imageID", default="")
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ContainerStateView = ContainerStateView()
    last_state: ContainerStateView = ContainerStateView()
    allocated_resources: dict[str, str | int | float] = {}
    resources: Resources | None = None
    volume_mounts: tuple[VolumeMountStatus, ...] = ()


class PodStatus(ApiStruct, frozen=True):
    """Last reported status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    qos_class: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    extended_resource_claim_status: ObjectName | None = None
    """Set if devices provide extended resources of the pod."""

    @property
    def all_container_statuses(self) -> tuple[ContainerStatus, ...]:
        """The statuses of all containers, init containers first."""
        own = (*self.init_container_statuses, *self.container_statuses)
        return (*own, *self.ephemeral_container_statuses)


class Pod(ApiStruct, frozen=True, dict=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def waits_to_restart(self, container: str) -> bool:
        """Return whether a container is reported as waiting after an exit."""
        return any(
            each.name == container
            and each.state.running is None
            and each.state.terminated is None
            and each.last_state.terminated is not None
            for each in self.status.all_container_statuses
        )

    def claim_of(self, volume: Volume) -> PvcSource | None:
        """Return the claim of a volume: the one that it names, or its own if it is ephemeral."""
        if volume.ephemeral is not None:
            return PvcSource(f"{self.metadata.name}-{volume.name}")
        return volume.persistent_volume_claim

    @cached_property
    def containers(self) -> dict[str, Container]:
        """All containers by name, init containers first."""
        spec = self.spec
        every = (*spec.init_containers, *spec.containers, *spec.ephemeral_containers)
        return {c.name: c for c in every}

    @property
    def unready_gates(self) -> tuple[str, ...]:
        """Why readiness gates keep the pod from being ready, as kubelets report it."""
        known = {each.type: each.status for each in self.status.conditions}
        kinds = [gate.condition_type for gate in self.spec.readiness_gates]
        return tuple(
            f'the status of pod readiness gate "{kind}" is not "True", but {known[kind]}'
            if kind in known
            else f'corresponding condition of pod readiness gate "{kind}" does not exist.'
            for kind in kinds
            if known.get(kind) != "True"
        )

    @property
    def stop_order(self) -> tuple[tuple[str, ...], ...]:
        """The containers in the stages in which they stop: all but sidecars, then sidecars.

        Sidecars (with the other init containers) stop one by one, the last one first.
        """
        first = (*self.spec.containers, *self.spec.ephemeral_containers)
        mains = tuple(c.name for c in first)
        return (mains, *((c.name,) for c in reversed(self.spec.init_containers)))

    @property
    def hostname(self) -> str:
        """The pod's own host name."""
        return self.spec.hostname or self.metadata.name[:63].rstrip(".-")

    @property
    def grace_period(self) -> int:
        """Seconds between SIGTERM and SIGKILL; that of the deletion overrides that of the spec."""
        seconds = self.metadata.deletion_grace_period_seconds
        if self.metadata.deletion_timestamp is None or seconds is None:
            seconds = self.spec.termination_grace_period_seconds
        return 30 if seconds is None else max(0, seconds)

    @property
    def is_terminal(self) -> bool:
        """Whether its final phase was reported."""
        return self.status.phase in FINISHED

    @property
    def needs_work(self) -> bool:
        """Whether it must run, or its deletion must be confirmed."""
        return not self.is_terminal or self.metadata.deletion_timestamp is not None


class MetadataOnly(ApiStruct, frozen=True):
    """Metadata of any object."""

    metadata: ObjectMeta = ObjectMeta()


BOUND = "Bound"


class PvcStatus(ApiStruct, frozen=True):
    """Status of a claim."""

    phase: str = ""


class PvcSpec(ApiStruct, frozen=True):
    """Spec of a claim."""

    volume_name: str = ""


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """A claim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PvcSpec = PvcSpec()
    status: PvcStatus = PvcStatus()


class CsiVolumeSource(ApiStruct, frozen=True):
    """A CSI volume."""

    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False


class PersistentVolumeSpec(ApiStruct, frozen=True):
    """Spec of a volume, with the supported sources."""

    csi: CsiVolumeSource | None = None
    host_path: HostPathSource | None = None
    local: HostPathSource | None = None
    volume_mode: str = ""
    persistent_volume_reclaim_policy: str = ""


class PersistentVolume(ApiStruct, frozen=True):
    """A persistent volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class ConfigMap(ApiStruct, frozen=True):
    """A ConfigMap's data."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}

    def content(self) -> dict[str, bytes]:
        """Return all entries as bytes."""
        plain = {key: text.encode() for key, text in self.data.items()}
        return plain | {key: _decoded(text) for key, text in self.binary_data.items()}


class Secret(ApiStruct, frozen=True):
    """A Secret's data."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}

    def content(self) -> dict[str, bytes]:
        """Return all entries as bytes."""
        return {key: _decoded(text) for key, text in self.data.items()}


def _decoded(text: str) -> bytes:
    """Decode base64, which the API server validates; return malformed text unchanged."""
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return text.encode()


class ServicePort(ApiStruct, frozen=True):
    """One port of a service."""

    name: str = ""
    port: int = 0
    protocol: str = "TCP"


class ServiceSpec(ApiStruct, frozen=True):
    """Spec of a service."""

    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    publish_not_ready_addresses: bool = False


class Service(ApiStruct, frozen=True):
    """A service."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()

    @property
    def is_headless(self) -> bool:
        """Whether its name resolves to the pods instead of a cluster IP."""
        return self.spec.cluster_ip == "None"


class Taint(ApiStruct, frozen=True):
    """One taint of a node."""

    key: str = ""
    value: str | None = None
    effect: str = ""
    time_added: str | None = None


class NodeSpec(ApiStruct, frozen=True):
    """Spec of a node."""

    taints: tuple[Taint, ...] = ()


class NodeStatus(ApiStruct, frozen=True):
    """The conditions of a node."""

    conditions: tuple[Condition, ...] = ()


class Node(ApiStruct, frozen=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_reported_ready(self) -> bool:
        """Whether its Ready condition is what a healthy kubelet reports."""
        conditions = self.status.conditions
        return any(each.type == "Ready" and each.status == "True" for each in conditions)

    @property
    def is_stopped(self) -> bool:
        """Whether its simulated kubelet is to stop."""
        return self.metadata.annotations.get(SIMULATED_STOP) == "true"


class TokenRequestSpec(ApiStruct, frozen=True):
    """Granted lifetime of a token, which may be shorter than requested."""

    expiration_seconds: int = 0


class TokenRequestStatus(ApiStruct, frozen=True):
    """The issued token."""

    token: str = ""


class TokenRequest(ApiStruct, frozen=True):
    """Response to a token request for a service account."""

    spec: TokenRequestSpec = TokenRequestSpec()
    status: TokenRequestStatus = TokenRequestStatus()
