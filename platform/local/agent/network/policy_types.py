"""Fields of NetworkPolicies."""

import msgspec

from ....model.base import ApiStruct
from ....model.meta import LabelSelector, ObjectMeta


class PolicyPort(ApiStruct, frozen=True):
    """Ports of a rule: one by number or name, a range, or all of a protocol."""

    protocol: str = "TCP"
    port: int | str | None = None
    end_port: int | None = None


class IpBlock(ApiStruct, frozen=True):
    """Addresses in CIDR notation."""

    cidr: str = ""
    excepted: tuple[str, ...] = msgspec.field(name="except", default=())


class Peer(ApiStruct, frozen=True):
    """Other ends of connections: pods, or addresses."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IpBlock | None = None


class IngressRule(ApiStruct, frozen=True):
    """Connections to the selected pods that are allowed."""

    ports: tuple[PolicyPort, ...] = ()
    peers: tuple[Peer, ...] = msgspec.field(name="from", default=())


class EgressRule(ApiStruct, frozen=True):
    """Connections of the selected pods that are allowed."""

    ports: tuple[PolicyPort, ...] = ()
    peers: tuple[Peer, ...] = msgspec.field(name="to", default=())


class PolicySpec(ApiStruct, frozen=True):
    """``spec`` of a NetworkPolicy."""

    pod_selector: LabelSelector = LabelSelector()
    policy_types: tuple[str, ...] = ()
    ingress: tuple[IngressRule, ...] = ()
    egress: tuple[EgressRule, ...] = ()


class NetworkPolicy(ApiStruct, frozen=True):
    """A NetworkPolicy."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PolicySpec = PolicySpec()
