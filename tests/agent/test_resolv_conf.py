"""How pods resolve names, by their DNS policy."""

from typing import Any

import pytest
from support.agent import decode_pod, manifest

from batholith.local.agent.state.resolv_conf import resolv_conf
from batholith.local.network.resolvers import ResolverConfig

Json = dict[str, Any]
MACHINE = ResolverConfig(("10.9.9.9",), ("example.com",), ("edns0", "ndots:1"))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (
            {},
            "search ns.svc.cluster.local svc.cluster.local cluster.local example.com\n"
            "nameserver 127.129.0.9\noptions ndots:5\n",
        ),
        (
            {"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True,
             "dnsConfig": {"nameservers": ["10.1.1.1"], "searches": ["a.b", "example.com"],
                           "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]}},
            "search ns.svc.cluster.local svc.cluster.local cluster.local example.com a.b\n"
            "nameserver 127.129.0.9\nnameserver 10.1.1.1\noptions ndots:2 rotate\n",
        ),
        ({"hostNetwork": True}, None),
        ({"dnsPolicy": "Default"}, None),
        (
            {"dnsPolicy": "Default", "dnsConfig": {"searches": ["a.b"]}},
            "search example.com a.b\nnameserver 10.9.9.9\noptions edns0 ndots:1\n",
        ),
        (
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.1.1.1"]}},
            "nameserver 10.1.1.1\n",
        ),
    ],
)  # fmt: skip
def test_a_pod_resolves_names_by_its_dns_policy(fields: Json, wanted: str | None) -> None:
    body = manifest(**fields)
    body["metadata"]["namespace"] = "ns"
    found = resolv_conf(decode_pod(body), MACHINE, "127.129.0.9")
    assert (None if found is None else found.text) == wanted


def test_without_a_name_server_only_additions_change_how_names_are_resolved() -> None:
    assert resolv_conf(decode_pod(manifest()), MACHINE, "") is None
    config = {"options": [{"name": "ndots", "value": "2"}]}
    found = resolv_conf(decode_pod(manifest(dnsConfig=config)), MACHINE, "")
    assert found is not None
    assert found.text == "search example.com\nnameserver 10.9.9.9\noptions edns0 ndots:2\n"


def test_what_the_resolver_would_ignore_is_left_out_with_a_warning() -> None:
    servers = [f"10.1.1.{number}" for number in range(3)]
    searches = [f"{'x' * 60}{number:03}.example.com" for number in range(31)]
    config = {"nameservers": servers, "searches": searches}
    found = resolv_conf(decode_pod(manifest(dnsConfig=config)), MACHINE, "127.129.0.9")
    assert found is not None
    assert found.text.count("nameserver") == 3
    line = found.text.splitlines()[0]
    assert len(line) <= 2048 + len("search ")
    assert line.endswith(".com")
    kinds = [text.split(" limits")[0] for text in found.warnings]
    assert kinds == ["Nameserver", "Search Line"]
