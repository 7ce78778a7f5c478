"""HyperNodes that a Unified Fabric Manager describes."""

import base64
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import TestServer
from hypernode_ctrl.test_controller import add_node, running
from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, Server
from support.polling import wait_until_true

from batholith.hypernode_ctrl.configuration import CONFIGMAP, KEY, Discovery, Ufm, parse
from batholith.hypernode_ctrl.decide import Create, Delete, Update, View, decide
from batholith.hypernode_ctrl.discovery import SOURCE, Discovered
from batholith.hypernode_ctrl.port_reader import PortReader
from batholith.hypernode_ctrl.ufm import Port, discover_by_ufm
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.machinery.testing import FakeClock
from batholith.model import crds
from batholith.model.hypernode import HyperNode
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS, HYPERNODES, SECRETS

Json = dict[str, Any]
LABELS = {SOURCE: "ufm"}


def port(node: str, leaf: str, description: str = "Computer IB Port") -> Json:
    """A port of a computer, with some of the other fields that it has."""
    return {
        "description": description, "system_name": node, "peer_node_name": leaf, "tier": 1,
        "node_description": f"{node} HCA-1", "physical_state": "Link Up", "speed": 400,
    }  # fmt: skip


def ports(*pairs: tuple[str, str]) -> list[Port]:
    return [Port("Computer IB Port", *pair) for pair in pairs]


def members(found: list[Discovered]) -> dict[str, list[str]]:
    return {
        each.name: [
            m.selector.exact_match.name for m in each.spec.members if m.selector.exact_match
        ]
        for each in found
    }


def stored(found: list[Discovered]) -> list[HyperNode]:
    return [
        HyperNode(metadata=ObjectMeta(name=each.name, labels=dict(each.labels)), spec=each.spec)
        for each in found
    ]


# -- the configuration -----------------------------------------------------------------------------


def source(**changes: Any) -> str:
    entry = {
        "source": "ufm",
        "enabled": True,
        "interval": "10m",
        "credentials": {"secretRef": {"name": "ufm", "namespace": "ns"}},
        "config": {"endpoint": "https://ufm.example:8080/", "insecureSkipVerify": True},
    }
    return yaml.safe_dump({"networkTopologyDiscovery": [entry | changes]})


def test_the_source_has_an_endpoint_a_secret_and_an_interval() -> None:
    found = parse(source(), "ns").ufm
    assert found is not None
    assert (found.endpoint, found.secret_name, found.namespace, found.verify_tls) == (
        "https://ufm.example:8080", "ufm", "ns", False,
    )  # fmt: skip
    assert found.interval.total_seconds() == 600
    short = parse(source(config={"endpoint": "ufm.example"}, interval=None), "ns").ufm
    assert short is not None
    assert (short.endpoint, short.verify_tls) == ("https://ufm.example", True)
    assert short.interval.total_seconds() == 3600


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"config": {}}, "config.endpoint: must be a URL"),
        ({"config": {"endpoint": "ftp://ufm"}}, "config.endpoint: must be a URL"),
        ({"config": {"endpoint": "https://a:b@ufm"}}, "config.endpoint: must be a URL"),
        ({"credentials": None}, "credentials.secretRef.name: is required"),
        (
            {"credentials": {"secretRef": {"name": "ufm", "namespace": "kube-system"}}},
            "credentials.secretRef.namespace: must be 'ns', that of the ConfigMap",
        ),
        ({"interval": "1s"}, "interval: must be at least 10s"),
        ({"interval": "soon"}, "interval: time: invalid duration"),
    ],
)
def test_a_source_that_cannot_be_used_is_reported_and_its_hypernodes_stay(
    changes: Json, problem: str
) -> None:
    found = parse(source(**changes), "ns")
    assert found.ufm is None
    (text,) = found.problems
    assert text.startswith("networkTopologyDiscovery[0].")
    assert problem in text
    objects = stored(discover_by_ufm(ports(("n0", "a")), ["n0"], ()))
    assert not [each for each in decide(View(objects, {}, found)) if isinstance(each, Delete)]


# -- what is described -----------------------------------------------------------------------------


def test_leaf_switches_that_share_computers_are_one_hypernode() -> None:
    nodes = [f"n{index}" for index in range(5)]
    given = ports(("n0", "a"), ("n1", "b"), ("n1", "a"), ("n2", "c"), ("n9", "c"), ("n3", "d"))
    given += [
        Port("Switch IB Port", "n4", "a"),
        Port(None, "n4", None),
        Port("Computer", None, "a"),
    ]
    found = discover_by_ufm(given, nodes, ())
    assert members(found) == {
        "leaf-hn-0": ["n0", "n1"],
        "leaf-hn-1": ["n2"],
        "leaf-hn-2": ["n3"],
        "spine-hn": ["leaf-hn-0", "leaf-hn-1", "leaf-hn-2"],
    }
    assert [each.spec.tier for each in found] == [1, 1, 1, 2]
    assert all(each.labels == LABELS for each in found)
    assert discover_by_ufm(given, [], ()) == []


def test_hypernodes_keep_their_names_when_others_come_and_go() -> None:
    nodes = [f"n{index}" for index in range(6)]
    first = discover_by_ufm(ports(("n1", "b"), ("n2", "b"), ("n3", "c")), nodes, ())
    user = HyperNode(metadata=ObjectMeta(name="leaf-hn-2"))
    now = ports(("n0", "a"), ("n2", "b"), ("n3", "c"), ("n4", "c"))
    found = members(discover_by_ufm(now, nodes, [*stored(first), user]))
    assert found == {
        "leaf-hn-3": ["n0"],
        "leaf-hn-0": ["n2"],
        "leaf-hn-1": ["n3", "n4"],
        "spine-hn": ["leaf-hn-0", "leaf-hn-1", "leaf-hn-3"],
    }


def test_hypernodes_follow_the_ports_as_far_as_these_are_known() -> None:
    nodes: Mapping[str, Mapping[str, str]] = {"n0": {}, "n1": {}}
    enabled = Discovery(is_ufm_enabled=True)
    known = ports(("n0", "a"), ("n1", "b"))
    first = [e for e in decide(View([], nodes, enabled, known)) if isinstance(e, Create)]
    assert [each.hypernode.name for each in first] == ["leaf-hn-0", "leaf-hn-1", "spine-hn"]
    objects = stored([each.hypernode for each in first])
    assert not [e for e in decide(View(objects, nodes, enabled)) if isinstance(e, Delete)]
    moved = list(decide(View(objects, nodes, enabled, ports(("n0", "a"), ("n1", "a")))))
    assert [type(each) for each in moved] == [Update, Update, Delete]
    off = list(decide(View(objects, nodes, Discovery())))
    assert [type(each) for each in off] == [Delete, Delete, Delete]


# -- the manager -----------------------------------------------------------------------------------


class Manager:
    """A fabric manager, which also serves the Secret with its password."""

    def __init__(self) -> None:
        self.ports: list[Json] = []
        self.status = 200
        self.reads = 0
        self.password = "secret"
        self.url = ""

    async def respond(self, request: web.Request) -> web.Response:
        if request.path == SECRETS.path("ns", "ufm"):
            return web.json_response({"data": self.secret()})
        self.reads += 1
        authorization = encode_basic_auth("admin", "secret")
        is_known = request.headers.get("Authorization") == authorization
        if request.path != "/ufmRest/resources/ports" or not is_known:
            return web.Response(status=401)
        return web.json_response(self.ports, status=self.status)

    def secret(self) -> dict[str, str]:
        given = {"username": "admin", "password": self.password}
        return {name: base64.b64encode(value.encode()).decode() for name, value in given.items()}


@pytest.fixture
async def manager() -> AsyncIterator[Manager]:
    found = Manager()
    app = web.Application()
    app.router.add_get("/{path:.*}", found.respond)
    async with TestServer(app) as server:
        found.url = str(server.make_url("")).rstrip("/")
        yield found


async def test_ports_are_read_once_in_each_interval_and_kept_while_they_cannot_be(
    manager: Manager,
) -> None:
    clock = FakeClock()
    async with Client(Credentials(server=manager.url), user_agent="test") as client:
        reader, ufm = PortReader(client, clock), Ufm(manager.url, "ufm", "ns")
        assert await reader.current(ufm) is None
        assert "it knows no ports" in reader.problems[0]
        manager.ports = [port("n0", "a")]
        assert await reader.current(ufm) is None
        await clock.advance(reader.seconds_left)
        first = await reader.current(ufm)
        assert first == tuple(ports(("n0", "a")))
        assert (reader.problems, manager.reads, reader.seconds_left) == ((), 2, 3600.0)
        manager.status = 503
        await clock.advance(3600)
        assert await reader.current(ufm) == first
        assert manager.url in reader.problems[0]
        manager.status, manager.password = 200, "wrong"
        await clock.advance(60)
        assert await reader.current(ufm) == first
        manager.password = ""
        await clock.advance(60)
        assert await reader.current(ufm) == first
        assert "no usable password" in reader.problems[0]
        assert await reader.current(None) is None
        assert reader.problems == ()


async def configure(server: Server, manager: Manager, **changes: Any) -> None:
    text = source(
        credentials={"secretRef": {"name": "ufm"}}, config={"endpoint": manager.url}, **changes
    )
    path = CONFIGMAPS.path("default", CONFIGMAP)
    body = {"data": {KEY: text}}
    if (await server.request("PATCH", path, body, content_type=MERGE)).status == 404:
        await server.create(CONFIGMAPS.path("default"), {"metadata": {"name": CONFIGMAP}, **body})


async def wait_members(server: Server, **wanted: set[str]) -> None:
    async def holds() -> bool:
        items = (await server.get(HYPERNODES.path()))["items"]
        return wanted == {
            each["metadata"]["name"].replace("-", "_"): {
                one["selector"]["exactMatch"]["name"] for one in each["spec"]["members"]
            }
            for each in items
            if each["metadata"].get("labels") == LABELS
        }

    await wait_until_true(holds)


async def test_the_controller_discovers_hypernodes_by_the_manager(
    servers: ServerFactory, tmp_path: Path, manager: Manager
) -> None:
    manager.ports = [port("n0", "a"), port("n1", "a"), port("n2", "b")]
    async with servers.start(tmp_path, crds=crds.load()) as server:
        secret = {"metadata": {"name": "ufm"}, "data": manager.secret()}
        await server.create(SECRETS.path("default"), secret)
        for name in ("n0", "n1"):
            await add_node(server, name)
        await configure(server, manager)
        async with running(server):
            await wait_members(server, leaf_hn_0={"n0", "n1"}, spine_hn={"leaf-hn-0"})
            await add_node(server, "n2")
            spine = {"leaf-hn-0", "leaf-hn-1"}
            await wait_members(server, leaf_hn_0={"n0", "n1"}, leaf_hn_1={"n2"}, spine_hn=spine)
            await configure(server, manager, enabled=False)
            await wait_members(server)
