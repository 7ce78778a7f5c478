"""Defaults of replica types, which all kinds share."""

import msgspec

from .kinds import TrainingKind
from .templates import Port, with_port
from .types import ReplicaSpec


def canonical_replica_specs(
    kind: TrainingKind, specs: dict[str, ReplicaSpec]
) -> dict[str, ReplicaSpec]:
    """Return *specs* by the canonical names of their types, in canonical order.

    Unknown types are last. Of two spellings of one type, the canonical one counts.
    """
    by_type = {}
    for spelling in sorted(specs, key=lambda text: (text in kind.replica_types, text)):
        by_type[kind.canonical_type(spelling) or spelling] = specs[spelling]
    known = {name: by_type.pop(name) for name in kind.replica_types if name in by_type}
    return known | by_type


def default_replica_spec(kind: TrainingKind, spec: ReplicaSpec, *, replicas: int) -> ReplicaSpec:
    """Return *spec* with defaults; the same object if nothing was missing.

    Raises:
        msgspec.ValidationError: a field of the template has another type.
    """
    template = spec.template
    if kind.adds_port:
        port = Port(name=kind.port_name, container_port=kind.port)
        template = with_port(template, kind.main_container, port)
    if template is spec.template and spec.replicas is not None and spec.restart_policy:
        return spec
    return msgspec.structs.replace(
        spec,
        replicas=replicas if spec.replicas is None else spec.replicas,
        restart_policy=spec.restart_policy or kind.restart_policy,
        template=template,
    )
