"""Which connections NetworkPolicies allow: compared with a naive evaluation of each pair."""

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.local.agent.network.host_ports import HostPort
from batholith.local.agent.network.namespaces import unsupported_reason
from batholith.local.agent.network.pod_rules import PodRules, pods_table
from batholith.local.agent.network.policies import (
    Allowed,
    FilteredPod,
    Isolation,
    isolate,
    name_server,
)
from batholith.local.agent.network.policy_types import NetworkPolicy
from batholith.local.network.packet_rules import NetworkNames, run_program
from batholith.local.proxy.backends import ListenAddress
from batholith.local.proxy.service_rules import Translation, services_table
from batholith.model.service_network import NAMESPACE_RANGES

Json = dict[str, Any]

NAMESPACES: Mapping[str, Mapping[str, str]] = {
    "a": {"team": "x"}, "b": {"team": "y"},
}  # fmt: skip
LABELS = st.dictionaries(st.sampled_from(("app", "tier")), st.sampled_from(("x", "y")))
PORT_NAMES = ("web", "db")
PROTOCOLS = ("TCP", "UDP", "SCTP")
NUMBERS = st.integers(78, 84)
DNS_IP = "169.254.53.7"
METADATA_NAME = "kubernetes.io/metadata.name"
OUTSIDE = ("10.0.0.1", "10.1.0.1")

PODS = st.builds(
    FilteredPod,
    namespace=st.sampled_from(sorted(NAMESPACES)),
    ip=st.just(""),
    labels=LABELS,
    ports=st.dictionaries(
        st.tuples(st.sampled_from(PROTOCOLS), st.sampled_from(PORT_NAMES)), NUMBERS, min_size=3
    ),
)


@st.composite
def clusters(draw: st.DrawFn) -> list[FilteredPod]:
    pods = draw(st.lists(PODS, min_size=2, max_size=5))
    return [
        FilteredPod(pod.namespace, f"198.18.0.{number + 2}", pod.labels, pod.ports)
        for number, pod in enumerate(pods)
    ]


SERVER = FilteredPod("b", "198.18.1.1", {"app": "x"}, {("TCP", "web"): 80, ("UDP", "db"): 81})
"""A server of the node, which rules select like a pod."""


def selectors(labels: st.SearchStrategy[dict[str, str]] = LABELS) -> st.SearchStrategy[Json]:
    return st.one_of(
        st.just({}),
        labels.map(lambda found: {"matchLabels": found}),
        st.just({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
        st.just({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}),
    )


NETWORKS = st.sampled_from(("0.0.0.0/0", "198.18.0.0/29", "10.0.0.0/8", "fd00::/8"))
EXCEPTED = st.sampled_from(([], ["198.18.0.2/32"], ["198.18.0.4/30", "10.1.0.0/16"]))
BLOCKS = st.fixed_dictionaries({"cidr": NETWORKS, "except": EXCEPTED})
TEAMS = st.dictionaries(st.just("team"), st.sampled_from(("x", "y")))
PEERS = st.one_of(
    st.fixed_dictionaries({"podSelector": selectors()}),
    st.fixed_dictionaries({"namespaceSelector": selectors(TEAMS)}),
    st.fixed_dictionaries({"namespaceSelector": selectors(TEAMS), "podSelector": selectors()}),
    st.fixed_dictionaries({"ipBlock": BLOCKS}),
)
PORTS = st.one_of(
    st.sampled_from([{"port": name} for name in PORT_NAMES]),
    st.fixed_dictionaries(
        {"protocol": st.sampled_from(PROTOCOLS)},
        optional={"port": st.one_of(NUMBERS, st.sampled_from(PORT_NAMES))},
    ),
    st.builds(
        lambda first, more: {"port": first, "endPort": first + more}, NUMBERS, st.integers(0, 3)
    ),
)
RULE_LISTS = {
    side: st.lists(
        st.fixed_dictionaries(
            {"ports": st.lists(PORTS, max_size=2), key: st.lists(PEERS, max_size=2)}
        ),
        min_size=1,
        max_size=2,
    )
    for side, key in (("ingress", "from"), ("egress", "to"))
}
POLICIES = st.lists(
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"namespace": st.sampled_from(sorted(NAMESPACES))}),
            "spec": st.fixed_dictionaries(
                {"podSelector": selectors()},
                optional={
                    **RULE_LISTS,
                    "policyTypes": st.sampled_from(
                        (["Ingress"], ["Egress"], ["Ingress", "Egress"])
                    ),
                },
            ),
        }
    ),
    min_size=1,
    max_size=3,
)


# The naive evaluation: one connection at a time, on the objects as they are written.


def selected(selector: Json, labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {})
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for each in selector.get("matchExpressions", ()):
        value = labels.get(each["key"])
        if value is None if each["operator"] == "Exists" else value in each["values"]:
            return False
    return True


def is_peer(peer: Json, policy_namespace: str, ip: str, pod: FilteredPod | None) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        excepted = map(ipaddress.ip_network, block.get("except", ()))
        address = ipaddress.ip_address(ip)
        inside = address in ipaddress.ip_network(block["cidr"])
        return inside and not any(address in each for each in excepted)
    if pod is None:
        return False
    if "namespaceSelector" in peer:
        if not selected(peer["namespaceSelector"], NAMESPACES[pod.namespace]):
            return False
    elif pod.namespace != policy_namespace:
        return False
    return selected(peer.get("podSelector", {}), pod.labels)


def is_port(port: Json, protocol: str, number: int, target: FilteredPod | None) -> bool:
    if port.get("protocol", "TCP") != protocol:
        return False
    wanted = port.get("port")
    if isinstance(wanted, str):
        return target is not None and target.ports.get((protocol, wanted)) == number
    return wanted is None or wanted <= number <= (port.get("endPort") or wanted)


def may_pass(
    policies: Sequence[Json], side: str, pod: FilteredPod, other: tuple[str, FilteredPod | None],
    protocol: str, number: int,
) -> bool:  # fmt: skip
    """Whether the policies of one side, that of *pod*, allow a connection."""
    key, target = ("from", pod) if side == "ingress" else ("to", other[1])
    applied = False
    for policy in policies:
        spec, namespace = policy["spec"], policy["metadata"]["namespace"]
        types = spec.get("policyTypes") or (
            ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
        )
        if side.capitalize() not in types or namespace != pod.namespace:
            continue
        if not selected(spec["podSelector"], pod.labels):
            continue
        applied = True
        for rule in spec.get(side, ()):
            peers, ports = rule.get(key) or (), rule.get("ports") or ()
            from_peer = not peers or any(is_peer(each, namespace, *other) for each in peers)
            to_port = not ports or any(is_port(each, protocol, number, target) for each in ports)
            if from_peer and to_port:
                return True
    return not applied


def passes(allowed: frozenset[Allowed] | None, ip: str, protocol: str, number: int) -> bool:
    return allowed is None or any(
        each.peers.contain(ip)
        and (
            not each.ports
            or any(r.protocol == protocol and r.first <= number <= r.last for r in each.ports)
        )
        for each in allowed
    )


@settings(max_examples=examples(300))
@given(clusters(), POLICIES)
def test_a_connection_passes_if_the_policies_of_both_sides_allow_it(
    pods: list[FilteredPod], policies: list[Json]
) -> None:
    found = isolate(pods, NAMESPACES, msgspec.convert(policies, list[NetworkPolicy]), [SERVER])
    assert found.keys() <= {pod.ip for pod in pods}
    others = [*((pod.ip, pod) for pod in (*pods, SERVER)), *((ip, None) for ip in OUTSIDE)]
    for pod in pods:
        isolation = found.get(pod.ip, Isolation())
        for other in others:
            for protocol in PROTOCOLS:
                for number in range(77, 88):
                    packet = (other[0], protocol, number)
                    for side in ("ingress", "egress"):
                        expected = may_pass(policies, side, pod, other, protocol, number)
                        assert passes(getattr(isolation, side), *packet) == expected


@pytest.mark.parametrize(
    ("rule", "udp", "tcp"),
    [
        (
            {
                "to": [
                    {
                        "namespaceSelector": {"matchLabels": {METADATA_NAME: "kube-system"}},
                        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
                    }
                ],
                "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
            },
            True,
            True,
        ),
        ({"to": [{"namespaceSelector": {}}], "ports": [{"protocol": "UDP", "port": "dns"}]},
         True, False),
        ({"ports": [{"port": 53}]}, False, True),
        ({"to": [{"ipBlock": {"cidr": "169.254.53.0/24"}}]}, True, True),
        ({"to": [{"podSelector": {}}]}, False, False),
        ({"to": [{"ipBlock": {"cidr": "198.18.0.0/15"}}]}, False, False),
    ],
)  # fmt: skip
def test_the_name_server_is_allowed_as_on_kubernetes(rule: Json, udp: bool, tcp: bool) -> None:
    pod = FilteredPod("a", "198.18.0.2", {}, {})
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}
    policy = msgspec.convert({"metadata": {"namespace": "a"}, "spec": spec}, NetworkPolicy)
    namespaces = {"a": {}, "kube-system": {METADATA_NAME: "kube-system"}}
    found = isolate([pod], namespaces, [policy], [name_server(DNS_IP)])[pod.ip].egress
    assert passes(found, DNS_IP, "UDP", 53) == udp
    assert passes(found, DNS_IP, "TCP", 53) == tcp


def test_what_is_malformed_allows_nothing() -> None:
    pod = FilteredPod("a", "198.18.0.2", {}, {})
    for peer in (
        {"ipBlock": {"cidr": "10.0.0.0/8 accept; #"}},
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["x"]}},
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "X"}]}},
    ):
        spec = {"podSelector": {}, "ingress": [{"from": [peer]}]}
        policy = msgspec.convert({"metadata": {"namespace": "a"}, "spec": spec}, NetworkPolicy)
        assert isolate([pod], NAMESPACES, [policy]) == {pod.ip: Isolation(frozenset(), None)}


def test_text_of_users_is_not_in_the_rules(tmp_path: Path) -> None:
    """A host port of a malformed address is left out, for its text would be a rule of nft."""
    ports = tuple(
        HostPort((host, 8080), ("198.18.0.2", 80), "TCP")
        for host in ("0.0.0.0", "10.0.0.1", "x tcp dport 1 accept")
    )
    text = pods_table(NetworkNames(tmp_path), NAMESPACE_RANGES, PodRules({}, ports))
    assert re.findall(r"ip daddr (10.0.0.1|x) tcp", text) == ["10.0.0.1"]
    assert text.count("dnat to 198.18.0.2:80") == 2


@pytest.mark.process
def test_nft_accepts_the_rules_of_all_policies(tmp_path: Path) -> None:
    if reason := unsupported_reason():
        if "nft" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)

    @settings(max_examples=examples(20))
    @given(clusters(), POLICIES)
    def check(pods: list[FilteredPod], policies: list[Json]) -> None:
        found = isolate(pods, NAMESPACES, msgspec.convert(policies, list[NetworkPolicy]))
        ports = tuple(
            HostPort(("0.0.0.0", 8080), (pods[0].ip, 80), protocol) for protocol in PROTOCOLS
        )
        names = NetworkNames(tmp_path)
        content = pods_table(names, NAMESPACE_RANGES, PodRules(found, ports))
        run_program("nft", "-c", "-f", "-", text=f"table ip t {{\n{content}}}\n")
        translation = Translation(tuple((pod.ip, 80) for pod in pods), len(pods) > 3)
        node_port = ListenAddress(NAMESPACE_RANGES.node_ip, 30001)
        wanted = {node_port: Translation(((pods[0].ip, 80),), True)}
        for protocol in ("TCP", "UDP"):
            cluster_ip = str(NAMESPACE_RANGES.cluster_ips[9])
            wanted[ListenAddress(cluster_ip, 80, protocol)] = translation
        content = services_table(names, wanted, {("TCP", 30001), ("UDP", 30002)})
        run_program("nft", "-c", "-f", "-", text=f"table ip t {{\n{content}}}\n")

    check()
