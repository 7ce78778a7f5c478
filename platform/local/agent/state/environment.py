"""Environment of a container: ``$(VAR)``, ConfigMaps and Secrets, fields of the pod."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal

from ....model.meta import ResourceList
from ....model.quantity import parse
from .core_types import (
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    KeySelector,
    ObjectFieldSelector,
    Pod,
    ResourceFieldSelector,
)

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_METADATA_KEY = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_NAME = re.compile(r"[^=\x00-\x1f]+")

MAX_SIZE = 6 * 2**20
"""Maximum characters of all arguments, or of all variables: Linux executes nothing with more bytes.

References let a short pod ask for any amount, e.g. if each variable refers twice to the last one.
"""

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ContainerConfigError(Exception):
    """The container cannot be configured; the text is for its status."""

    reason = "CreateContainerConfigError"
    """Reason of the container's waiting state."""

    retry_after = 10.0
    """Seconds after which its start is tried again."""

    @property
    def summary(self) -> str:
        """Message of the event."""
        return str(self)


class SecurityContextError(ContainerConfigError):
    """The node cannot give the container its security context, which cannot be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSources:
    """The objects that a pod refers to; ``None`` for one that does not exist."""

    config_maps: Mapping[str, Mapping[str, bytes] | None] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, bytes] | None] = field(default_factory=dict)
    tokens: Mapping[str, bytes] = field(default_factory=dict)
    """Service account tokens by audience."""

    claims: Mapping[str, "ClaimVolume | None"] = field(default_factory=dict)
    """Volume by name of its claim; ``None`` for a claim that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimVolume:
    """The volume of a claim: a directory of the agent, a path of the host, or an error."""

    uid: str = ""
    """Uid of the claim."""

    handle: str = ""
    """Uid of the claim that the directory was created for."""

    host_path: str = ""
    host_path_type: str = ""
    read_only: bool = False
    error: str = ""
    """Why it cannot be mounted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRuntimeInfo:
    """Run-time values that containers may refer to."""

    pod_ip: str = ""
    host_ip: str = ""
    allocatable: ResourceList = field(default_factory=dict)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand ``$(NAME)``; ``$$`` escapes, and an unknown name stays unchanged.

    Raises:
        ContainerConfigError: the values are too large.
    """
    size = 0

    def value(match: re.Match[str]) -> str:
        nonlocal size
        name = match.group(1)
        if name is None:
            return "$"
        found = variables.get(name, match.group(0))
        size = _add_size(size, found, what="text with references to variables")
        return found

    return _REFERENCE.sub(value, text)


def expand_all(texts: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Expand the references in all arguments of a command.

    Raises:
        ContainerConfigError: the result is too large.
    """
    size, expanded = 0, []
    for text in texts:
        expanded.append(expand(text, variables))
        size = _add_size(size, expanded[-1], what="command")
    return expanded


def _add_size(size: int, text: str, *, what: str) -> int:
    size += len(text)
    if size > MAX_SIZE:
        raise ContainerConfigError(f"the {what} is larger than {MAX_SIZE} characters")
    return size


def build_environment(
    pod: Pod,
    container: Container,
    *,
    sources: ResolvedSources,
    info: PodRuntimeInfo,
    base: Mapping[str, str],
    read_file: Callable[[FileKeySelector], str | None],
) -> dict[str, str]:
    """Return the container's environment; the pod's entries override those of *base*.

    *read_file* returns a variable in a file of a volume, ``None`` for a missing optional one.

    Raises:
        ContainerConfigError: a required ConfigMap, Secret, key or field is missing, or the
            values are too large.
    """
    env, size = dict(base), 0
    for group in container.env_from:
        for name, value in _env_from(pod, group, sources):
            size = _add_size(size, value, what="environment")
            env[name] = value
    for variable in container.env:
        own = _env_value(pod, container, variable, _Scope(sources, info, env, read_file))
        if own is not None:
            size = _add_size(size, own, what="environment")
            env[variable.name] = own
    return env


@dataclass(frozen=True, slots=True)
class _Scope:
    """Sources of a variable's value."""

    sources: ResolvedSources
    info: PodRuntimeInfo
    env: Mapping[str, str]
    read_file: Callable[[FileKeySelector], str | None]


def _env_from(
    pod: Pod, group: EnvFromSource, sources: ResolvedSources
) -> Iterator[tuple[str, str]]:
    for kind, ref, objects in (
        ("configmap", group.config_map_ref, sources.config_maps),
        ("secret", group.secret_ref, sources.secrets),
    ):
        if ref is None:
            continue
        content = objects.get(ref.name)
        if content is None:
            if ref.optional:
                continue
            raise ContainerConfigError(f'{kind} "{ref.name}" not found')
        for key, data in content.items():
            name = group.prefix + key
            if _NAME.fullmatch(name):
                yield name, data.decode(errors="replace")


def _env_value(pod: Pod, container: Container, variable: EnvVar, scope: _Scope) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value or "", scope.env)
    return _env_value_from(pod, container, source, scope)


def _env_value_from(
    pod: Pod, container: Container, source: EnvVarSource, scope: _Scope
) -> str | None:
    if source.field_ref:
        return field_value(pod, source.field_ref, scope.info)
    if source.resource_field_ref:
        return resource_value(pod, source.resource_field_ref, scope.info, own=container)
    if source.config_map_key_ref:
        return _select_key(pod, "ConfigMap", source.config_map_key_ref, scope.sources.config_maps)
    if source.secret_key_ref:
        return _select_key(pod, "Secret", source.secret_key_ref, scope.sources.secrets)
    if source.file_key_ref:
        return scope.read_file(source.file_key_ref)
    raise ContainerConfigError("unsupported source of an environment variable")


def _select_key(
    pod: Pod, kind: str, ref: KeySelector, objects: Mapping[str, Mapping[str, bytes] | None]
) -> str | None:
    content = objects.get(ref.name)
    if content is not None and ref.key in content:
        return content[ref.key].decode(errors="replace")
    if ref.optional:
        return None
    if content is None:
        raise ContainerConfigError(f'{kind.lower()} "{ref.name}" not found')
    raise ContainerConfigError(
        f"couldn't find key {ref.key} in {kind} {pod.metadata.namespace}/{ref.name}"
    )


_FIELDS: Mapping[str, Callable[[Pod, PodRuntimeInfo], str]] = {
    "metadata.name": lambda pod, _: pod.metadata.name,
    "metadata.namespace": lambda pod, _: pod.metadata.namespace,
    "metadata.uid": lambda pod, _: pod.metadata.uid,
    "metadata.labels": lambda pod, _: _format_map(pod.metadata.labels),
    "metadata.annotations": lambda pod, _: _format_map(pod.metadata.annotations),
    "spec.nodeName": lambda pod, _: pod.spec.node_name,
    "spec.serviceAccountName": lambda pod, _: pod.spec.service_account_name,
    "status.podIP": lambda _, info: info.pod_ip,
    "status.podIPs": lambda _, info: info.pod_ip,
    "status.hostIP": lambda _, info: info.host_ip,
    "status.hostIPs": lambda _, info: info.host_ip,
}


def field_value(pod: Pod, ref: ObjectFieldSelector, info: PodRuntimeInfo) -> str:
    """Return a field of the pod as text.

    Raises:
        ContainerConfigError: the field path is not supported.
    """
    indexed = _METADATA_KEY.fullmatch(ref.field_path)
    if indexed:
        meta = pod.metadata
        entries = meta.labels if indexed.group(1) == "labels" else meta.annotations
        return entries.get(indexed.group(2), "")
    known = _FIELDS.get(ref.field_path)
    if known is None:
        raise ContainerConfigError(f"unsupported fieldPath: {ref.field_path}")
    return known(pod, info)


def _format_map(entries: Mapping[str, str]) -> str:
    lines = []
    for key, value in sorted(entries.items()):
        text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'{key}="{text}"')
    return "\n".join(lines)


def resource_value(
    pod: Pod, ref: ResourceFieldSelector, info: PodRuntimeInfo, *, own: Container | None = None
) -> str:
    """Return a request or limit in units of its divisor, rounded up.

    A missing limit is the node's allocatable.

    Raises:
        ContainerConfigError: the container or the resource is unknown.
    """
    container = pod.containers.get(ref.container_name) if ref.container_name else own
    if container is None:
        raise ContainerConfigError(f"no container {ref.container_name!r} for {ref.resource}")
    side, _, name = ref.resource.partition(".")
    if side not in ("limits", "requests") or not name:
        raise ContainerConfigError(f"unsupported container resource: {ref.resource}")
    amounts = container.resources.limits if side == "limits" else container.resources.requests
    amount = amounts.get(name, info.allocatable.get(name, 0) if side == "limits" else 0)
    return str(_units(amount, ref.divisor))


def _units(amount: str | int | float, divisor: str | int | float) -> int:
    unit = _to_fraction(divisor) or Decimal(1)
    return int((_to_fraction(amount) / unit).to_integral_value(ROUND_CEILING))


def _to_fraction(amount: str | int | float) -> Decimal:
    return Decimal(parse(amount).nanos) / 1_000_000_000
