"""Pods that the node rejects as a kubelet does: host ports in use, and sysctls."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.agent import container, manifest
from support.agent_cluster import agent_cluster
from support.api_servers import EmbeddedServerFactory
from support.sandbox import detected_isolation

from batholith.local.agent import real_node
from batholith.local.agent.network import namespaces
from batholith.local.agent.network.namespaces import NamespaceNetwork, unsupported_reason
from batholith.local.agent.pods.admission import PodAdmission, Rejection
from batholith.local.agent.runtime.ids import IdMode
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.local.agent.settings import AgentSettings
from batholith.local.agent.state.core_types import Pod, PodSpec
from batholith.local.agent.state.sysctls import parse_allowed

Json = dict[str, Any]
SLEEP = ("sleep", "1000")


def with_ports(*ports: tuple[str, int, str], init: str | None = None) -> Pod:
    """A pod with host ports: protocol, number, address."""
    given = [
        {"protocol": protocol, "hostPort": number, "containerPort": 1, "hostIP": ip}
        for protocol, number, ip in ports
    ]
    one = {"name": "c", "ports": given}
    spec: Json = {"containers": [one]}
    if init is not None:
        policy = {"restartPolicy": init} if init else {}
        spec = {"containers": [{"name": "d"}], "initContainers": [{**one, **policy}]}
    uid = f"{ports}{init}"
    return msgspec.convert({"metadata": {"name": "p", "uid": uid}, "spec": spec}, Pod)


class Worker:
    """What the node does with a pod."""

    def __init__(self, rejection: Rejection | None = None, *, is_terminated: bool = False) -> None:
        self.rejection, self.is_terminated = rejection, is_terminated


@pytest.mark.parametrize(
    ("held", "wanted", "conflicts"),
    [
        (("TCP", 80, ""), ("TCP", 80, ""), True),
        (("TCP", 80, ""), ("UDP", 80, ""), False),
        (("TCP", 80, ""), ("TCP", 81, ""), False),
        (("TCP", 80, "127.0.0.1"), ("TCP", 80, "127.0.0.2"), False),
        (("TCP", 80, "127.0.0.1"), ("TCP", 80, "127.0.0.1"), True),
        (("TCP", 80, "127.0.0.1"), ("TCP", 80, "0.0.0.0"), True),
        (("UDP", 80, ""), ("UDP", 80, "127.0.0.1"), True),
    ],
)
def test_host_ports_conflict_as_in_the_scheduler(
    tmp_path: Path, held: Any, wanted: Any, conflicts: bool
) -> None:
    first = with_ports(held)
    found = msgspec.structs.replace(
        with_ports(wanted), metadata=msgspec.structs.replace(first.metadata, uid="new")
    )
    settings = AgentSettings(data_dir=tmp_path)
    for worker, holds in (
        (Worker(), True),
        (Worker(is_terminated=True), False),
        (Worker(Rejection("NodePorts", "")), False),
        (None, False),  # a pod that no agent has accepted
    ):
        workers = {} if worker is None else {first.metadata.uid: worker}
        rejection = PodAdmission(settings, [first, found], workers.get).review(found)
        assert (rejection is not None) == (conflicts and holds)


def test_only_containers_that_run_all_the_time_hold_ports(tmp_path: Path) -> None:
    settings = AgentSettings(data_dir=tmp_path)
    wanted = with_ports(("TCP", 80, ""))
    for init, conflicts in (("", False), ("Always", True)):
        held = with_ports(("TCP", 80, ""), init=init)
        rejection = PodAdmission(settings, [held], lambda _: Worker()).review(wanted)
        assert (rejection is not None) == conflicts


@pytest.mark.parametrize(
    ("name", "allowed", "forbidden"),
    [
        ("kernel.shm_rmid_forced", "", ""),
        ("net/ipv4/tcp_syncookies", "", ""),
        ("net.core.somaxconn", "", "net.core.somaxconn"),
        ("net/core/somaxconn", "", "net.core.somaxconn"),
        ("net.core.somaxconn", "net.core.*", ""),
        ("net.core.somaxconn", "kernel.msgmax,net.core.somaxconn", ""),
        ("net.core.somaxconn2", "net.core.somaxconn", "net.core.somaxconn2"),
        ("net.ipv4.conf.lo/1.forwarding", "net.ipv4.conf.*", ""),
    ],
)
def test_sysctls_are_safe_or_allowed(
    tmp_path: Path, name: str, allowed: str, forbidden: str
) -> None:
    settings = AgentSettings(data_dir=tmp_path, allowed_unsafe_sysctls=parse_allowed(allowed))
    context = {"sysctls": [{"name": name, "value": "1"}]}
    body = {"metadata": {"uid": "u"}, "spec": {"securityContext": context}}
    pod = msgspec.convert(body, Pod)
    rejection = PodAdmission(settings, [pod], lambda _: None).review(pod)
    message = f'forbidden sysctl: "{forbidden}" not allowlisted'
    assert rejection == (Rejection("SysctlForbidden", message) if forbidden else None)


@pytest.mark.parametrize("name", ["vm.swappiness", "kernel.*", "*", "kernel.pid_max"])
def test_sysctls_of_the_machine_cannot_be_allowed(name: str) -> None:
    with pytest.raises(ValueError, match="not known to be a sysctl of a namespace"):
        parse_allowed(name)


# With an agent.


def holding(name: str, port: int, **more: Any) -> Json:
    ports = [{"containerPort": port, "hostPort": port}]
    return manifest(name, container(*SLEEP, ports=ports), **more)


@pytest.mark.process
async def test_a_pod_whose_host_port_is_in_use_fails(tmp_path: Path) -> None:
    """Also when a new agent has started; and the port is free once its pod has ended."""
    async with agent_cluster(EmbeddedServerFactory(), tmp_path) as cluster:
        async with cluster.agent():
            await cluster.run(holding("first", 8090))
            await cluster.phase("first", "Running")
        await cluster.run(holding("second", 8090))
        async with cluster.agent():
            failed = (await cluster.phase("second", "Failed"))["status"]
            assert failed["reason"] == "NodePorts"
            assert failed["message"].startswith("Pod was rejected: Predicate NodePorts failed: ")
            await cluster.wait_event("second", "NodePorts")
            await cluster.run(holding("other", 8091))
            await cluster.phase("other", "Running")
            assert (await cluster.pod("first"))["status"]["phase"] == "Running"
            await cluster.delete("first", grace=0)
            await cluster.wait_pod_deleted("first")
            await cluster.run(holding("third", 8090))
            await cluster.phase("third", "Running")


class NumberedSpec(PodSpec, frozen=True):
    """A spec that an agent of another version reads: the hostname is a number."""

    hostname: int = 0  # type: ignore[assignment]


class NumberedPod(Pod, frozen=True, dict=True):
    spec: NumberedSpec = NumberedSpec()


@pytest.mark.process
async def test_a_pod_that_the_agent_cannot_decode_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is found by a list; if it is to be deleted, its deletion is confirmed."""
    monkeypatch.setattr(real_node, "Pod", NumberedPod)
    async with agent_cluster(EmbeddedServerFactory(), tmp_path) as cluster:
        for name in ("listed", "deleted"):
            await cluster.run(manifest(name, container(*SLEEP), hostname="h"))
        await cluster.delete("deleted")
        async with cluster.agent():
            await cluster.run(manifest("watched", container(*SLEEP), hostname="h"))
            for name in ("listed", "watched"):
                failed = (await cluster.phase(name, "Failed"))["status"]
                problem = "the node cannot decode the pod: Expected `int`, got `str` - at `$.spec."
                assert failed["reason"] == "InvalidPod"
                assert failed["message"].startswith(f"Pod was rejected: {problem}")
                event = await cluster.wait_event(name, "InvalidPod", problem)
                assert (event["type"], event["count"]) == ("Warning", 1)
            await cluster.wait_pod_deleted("deleted")
            await cluster.delete("listed")
            await cluster.wait_pod_deleted("listed")


def with_sysctls(name: str, sysctls: dict[str, str]) -> Json:
    program = "import sys\nfor each in sys.argv[1:]: print(each, open('/proc/sys/' + each).read())"
    paths = [each.replace(".", "/") for each in sysctls]
    given = [{"name": each, "value": value} for each, value in sysctls.items()]
    return manifest(
        name,
        container(sys.executable, "-c", program, *paths),
        restartPolicy="Never",
        securityContext={"sysctls": given},
    )


@pytest.mark.process
async def test_an_unsafe_sysctl_is_rejected_and_what_has_no_namespace_is_named(
    tmp_path: Path,
) -> None:
    async with (
        agent_cluster(EmbeddedServerFactory(), tmp_path) as cluster,
        cluster.agent(),
    ):
        await cluster.run(with_sysctls("unsafe", {"kernel.msgmax": "10000"}))
        failed = (await cluster.phase("unsafe", "Failed"))["status"]
        assert failed["reason"] == "SysctlForbidden"
        (status,) = failed["containerStatuses"]
        assert status["state"]["terminated"]["startedAt"] is None, "it was never started"
        await cluster.run(with_sysctls("safe", {"net.ipv4.tcp_syncookies": "0"}))
        await cluster.phase("safe", "Succeeded")
        await cluster.wait_event("safe", "SysctlsIgnored", "net/ipv4/tcp_syncookies")
        assert "tcp_syncookies 0" not in await cluster.logs("safe")


@pytest.mark.process
async def test_sysctls_are_set_in_the_namespaces_of_a_pod(tmp_path: Path) -> None:
    found = detected_isolation()
    if found.isolation is not IsolationLevel.UNSHARE or found.id_mode is IdMode.OWN:
        pytest.skip("the IPC namespaces of pods do not belong to root on this machine")
    before = limit_of_machine()
    allowed = parse_allowed("kernel.msg*")
    async with (
        agent_cluster(EmbeddedServerFactory(), tmp_path, allowed_unsafe_sysctls=allowed) as cluster,
        cluster.agent(),
    ):
        sysctls = {"kernel.shm_rmid_forced": "1", "kernel.msgmax": "12345"}
        await cluster.run(with_sysctls("set", sysctls))
        await cluster.phase("set", "Succeeded")
        log = await cluster.logs("set")
        assert "shm_rmid_forced 1" in log
        assert "msgmax 12345" in log
        await cluster.run(with_sysctls("invalid", {"kernel.msgmax": "x"}))
        await cluster.phase("invalid", "Failed")
        await cluster.wait_event("invalid", "Failed", "sysctl kernel/msgmax: Invalid argument")
    assert limit_of_machine() == before


def limit_of_machine() -> str:
    return Path("/proc/sys/kernel/msgmax").read_text()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[NamespaceNetwork]:
    if reason := unsupported_reason():
        if "nft" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    created = NamespaceNetwork(tmp_path)
    created.start()
    yield created
    created.remove_all()


@pytest.mark.process
def test_sysctls_of_the_network_are_set_in_that_of_the_pod(network: NamespaceNetwork) -> None:
    file = Path("/proc/sys/net/ipv4/tcp_fin_timeout")
    before = file.read_text()
    network.set_up("u", "198.18.9.9", [("net/ipv4/tcp_fin_timeout", "17")])
    assert network.enter("u", file.read_text) == "17\n"
    assert file.read_text() == before
    with pytest.raises(OSError, match="sysctl net/ipv4/tcp_fin_timeout cannot be 'x'"):
        network.set_up("v", "198.18.9.10", [("net/ipv4/tcp_fin_timeout", "x")])
    assert not namespaces.has_route("198.18.9.10", network.link("v"))
