"""Typed fields of a pod template that admission validates."""

from typing import Any

from ..model.base import ApiStruct
from ..model.pod import VolumeMount
from ..model.pod_resources import Resources

Text = dict[str, str]
Amounts = dict[str, str | int | float]
Source = dict[str, Any]


class Port(ApiStruct, frozen=True):
    """``containers[].ports[]``."""

    name: str = ""
    container_port: int = 0
    host_port: int = 0
    protocol: str = ""


class EnvVar(ApiStruct, frozen=True):
    """``containers[].env[]``."""

    name: str = ""
    value: str = ""
    value_from: dict[str, Source] | None = None


class EnvFrom(ApiStruct, frozen=True):
    """``containers[].envFrom[]``."""

    prefix: str = ""
    config_map_ref: Source | None = None
    secret_ref: Source | None = None


class Probe(ApiStruct, frozen=True):
    """A liveness, readiness or startup probe."""

    exec: Source | None = None
    http_get: Source | None = None
    tcp_socket: Source | None = None
    grpc: Source | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 0
    period_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0


class Container(ApiStruct, frozen=True):
    """A container or an init container."""

    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    restart_policy: str = ""
    termination_message_policy: str = ""
    ports: list[Port] = []
    env: list[EnvVar] = []
    env_from: list[EnvFrom] = []
    volume_mounts: list[VolumeMount] = []
    resources: Resources = Resources()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    stdin: bool = False
    tty: bool = False


class Toleration(ApiStruct, frozen=True):
    """``tolerations[]``."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(ApiStruct, frozen=True):
    """``template.spec``."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    volumes: list[dict[str, Any]] = []
    restart_policy: str = ""
    dns_policy: str = ""
    host_network: bool = False
    hostname: str = ""
    subdomain: str = ""
    node_name: str = ""
    scheduler_name: str = ""
    service_account_name: str = ""
    priority_class_name: str = ""
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    node_selector: Text = {}
    tolerations: list[Toleration] = []
    image_pull_secrets: list[dict[str, str]] = []
    scheduling_gates: list[dict[str, str]] = []


class TemplateMeta(ApiStruct, frozen=True):
    """``template.metadata``: the fields copied to pods."""

    labels: Text = {}
    annotations: Text = {}


class PodTemplate(ApiStruct, frozen=True):
    """A task's template."""

    metadata: TemplateMeta = TemplateMeta()
    spec: PodSpec = PodSpec()
