"""Pods with a network namespace each: their addresses and ports, and what remains of them."""

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import dns.message
import pytest
from support.agent import container, manifest
from support.agent_cluster import FAST, NODE, AgentCluster
from support.datagrams import ECHO, response_of
from support.embedded_apiserver import embedded_server
from support.kubectl import Kubectl, needs_kubectl
from support.pod_network import FORBIDDEN, SERVER, free_host_port, is_ready
from support.polling import wait_until_true
from support.running_controller import running

from batholith.local.agent.network import namespaces
from batholith.local.agent.network.namespaces import NamespaceNetwork, unsupported_reason
from batholith.local.agent.settings import AgentSettings, ServingFiles
from batholith.local.agent.state.status import BackOff
from batholith.local.network.node_namespace import bind_datagrams
from batholith.local.network.packet_rules import NetworkNames
from batholith.local.network.resolvers import choose_dns_address, dns_sockets
from batholith.local.proxy.dns.records import Zone
from batholith.local.proxy.dns.server import NameServer
from batholith.local.proxy.dns.upstream import Upstream
from batholith.local.proxy.service_proxy import ServiceProxy
from batholith.local.proxy.service_rules import ServiceRules
from batholith.model.names import CONFIGMAPS, ENDPOINTSLICES, NETWORKPOLICIES, SERVICES
from batholith.model.service_network import NAMESPACE_RANGES, PodNetwork

pytestmark = pytest.mark.process

FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode(), flush=True)
    except OSError as error:
        print("refused" if "refused" in str(error) else error, flush=True)
"""


def server(text: str, *, address: str = "0.0.0.0", port: int = 80, **more: Any) -> dict:  # type: ignore[type-arg]
    return container(sys.executable, "-c", SERVER, address, str(port), text, **more)


@pytest.fixture
def supported() -> Iterator[None]:
    """Skip where pods cannot have namespaces; fail instead where they are required.

    One such test at a time runs on a machine, also of other runs: all clusters that root starts
    have the same address for the API server, and node ports of the same range.
    """
    if reason := unsupported_reason():
        if "nft" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    name = f"batholith-tests-pod-network-{os.getuid()}.lock"
    with (Path(tempfile.gettempdir()) / name).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def network(tmp_path: Path, supported: None) -> Iterator[NamespaceNetwork]:
    created = NamespaceNetwork(tmp_path)
    created.start()
    yield created
    created.remove_all()


@pytest.fixture
async def cluster(tmp_path: Path, supported: None) -> AsyncIterator[AgentCluster]:
    network = PodNetwork.NAMESPACES
    async with (
        embedded_server(tmp_path / "server", node=NODE, pod_network=network) as started,
        started.client() as client,
    ):
        pki = started.pki
        serving = ServingFiles(
            certificate=pki.agent.certificate, key=pki.agent.key, client_ca=pki.ca
        )
        settings = AgentSettings(
            data_dir=tmp_path / "agent", node_name=NODE, back_off=FAST, serving=serving,
            network=network,
        )  # fmt: skip
        created = AgentCluster(started, client, settings)
        try:
            yield created
        finally:
            created.kill_orphaned_pods()
            NamespaceNetwork(settings.data_dir).remove_all()


def state_of_machine(tmp_path: Path) -> str:
    """What the cluster of a test has on the machine."""
    names = NetworkNames(tmp_path / "agent").namespaces
    commands = (("ip", "netns", "list"), ("ip", "route"), ("nft", "list", "tables"))
    text = "".join(subprocess.run(each, capture_output=True, text=True).stdout for each in commands)
    tag = names.removeprefix("batholith-").rstrip("-")
    return "\n".join(line for line in text.splitlines() if tag in line)


async def fetched(cluster: AgentCluster, *urls: str) -> list[str]:
    """What a new pod gets from *urls*."""
    body = manifest("client", container(sys.executable, "-c", FETCH, *urls), restartPolicy="Never")
    await cluster.run(body)
    await cluster.phase("client", "Succeeded")
    return (await cluster.logs("client")).splitlines()


async def test_pods_have_ports_of_their_own_and_reach_each_other(
    cluster: AgentCluster, tmp_path: Path
) -> None:
    accepted = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as local, cluster.agent():
        ready = {"httpGet": {"path": "/", "port": 80}}
        for name in ("a", "b"):
            await cluster.run(manifest(name, server(name, readinessProbe=ready)))
        addresses = [
            (await cluster.wait_pod(name, is_ready))["status"]["podIP"] for name in ("a", "b")
        ]
        number = local.sockets[0].getsockname()[1]
        hosts = (*addresses, f"127.0.0.1:{number}", f"{NAMESPACE_RANGES.node_ip}:{number}")
        got = await fetched(cluster, *(f"http://{each}/" for each in hosts))
        assert got == ["a", "b", "refused", "refused"]
    assert accepted == 0


async def test_clients_of_the_machine_reach_host_ports_and_loopback_of_a_pod(
    cluster: AgentCluster, tmp_path: Path
) -> None:
    needs_kubectl()
    kubectl = Kubectl(cluster.server, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with cluster.agent(), aiohttp.ClientSession() as session:
        ports = [{"containerPort": 80, "hostPort": port}]
        public = server("public", ports=ports)
        await cluster.run(manifest("p", public, server("private", address="127.0.0.1", port=81,
                                                       name="d")))  # fmt: skip
        await cluster.phase("p", "Running")

        async def is_relayed() -> bool:
            try:
                async with session.get(f"http://127.0.0.1:{port}/") as response:
                    return await response.text() == "public"
            except aiohttp.ClientError:
                return False

        await wait_until_true(is_relayed)
        shown = await kubectl("exec", "p", "-c", "d", "--", sys.executable, "-c", FETCH,
                                  "http://127.0.0.1:80/", "http://127.0.0.1:81/")  # fmt: skip
        assert shown.split() == ["public", "private"]
        process = await kubectl.start("port-forward", "pod/p", ":81")
        try:
            assert process.stdout is not None
            local = (await process.stdout.readline()).decode().split()[2]
            async with session.get(f"http://{local}/") as response:
                assert await response.text() == "private"
        finally:
            process.kill()
            await process.communicate()


async def test_the_namespace_lives_as_long_as_its_pod(
    cluster: AgentCluster, tmp_path: Path
) -> None:
    until = "import os, time; print(os.readlink('/proc/self/ns/net'), flush=True); time.sleep(999)"
    program = container(sys.executable, "-c", until)
    async with cluster.agent():
        await cluster.run(manifest("p", program))
        await cluster.phase("p", "Running")
        first = await cluster.wait_log("p", "]")
    async with cluster.agent() as agent:  # the pod runs on
        uid = (await cluster.pod("p"))["metadata"]["uid"]
        cluster.kill_orphaned_pods()  # its container starts again
        await cluster.wait_pod("p", lambda pod: restarts(pod) == 1 and is_ready(pod))
        assert await cluster.wait_log("p", "]") == first
        assert uid in state_of_machine(tmp_path)
        await cluster.delete("p", grace=0)
        await cluster.wait_pod_deleted("p")
        path = NamespaceNetwork(cluster.settings.data_dir).path(uid)
        await wait_until_true(lambda: removed(path))
        await cluster.run(manifest("q", program))
        await cluster.phase("q", "Running")
        agent.stop(stop_pods=True)
        await wait_until_true(lambda: removed(str(cluster.settings.data_dir / "pod-network")))
    assert state_of_machine(tmp_path) == ""


def restarts(pod: dict) -> int:  # type: ignore[type-arg]
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))


async def removed(path: str) -> bool:
    return not await asyncio.to_thread(os.path.exists, path)


async def test_a_pod_of_the_host_network_has_the_address_of_the_node(
    cluster: AgentCluster,
) -> None:
    async with cluster.agent():
        here = os.readlink("/proc/self/ns/net")
        shown = "import os; print(os.readlink('/proc/self/ns/net'))"
        body = manifest("p", container(sys.executable, "-c", shown), hostNetwork=True,
                        restartPolicy="Never")  # fmt: skip
        await cluster.run(body)
        pod = await cluster.phase("p", "Succeeded")
        assert pod["status"]["podIP"] == pod["status"]["hostIP"] == NAMESPACE_RANGES.node_ip
        assert (await cluster.logs("p")).strip() == here


async def test_pods_of_the_other_network_get_a_new_address_when_they_start_again(
    cluster: AgentCluster,
) -> None:
    on_host = replace(cluster, settings=replace(cluster.settings, network=PodNetwork.HOST))
    async with on_host.agent():
        await cluster.run(manifest("p", container("sleep", "999")))
        pod = await cluster.phase("p", "Running")
        assert pod["status"]["podIP"].startswith("127.")
    async with cluster.agent():
        moved = await cluster.wait_pod("p", lambda pod: restarts(pod) == 1 and is_ready(pod))
        assert moved["status"]["podIP"].startswith("198.18.")


async def test_a_container_in_back_off_starts_in_the_namespace_that_its_pod_has_got(
    cluster: AgentCluster,
) -> None:
    # Long enough for the new agent to set up the volumes first, which change while pods run.
    back_off = BackOff(initial_delay=5.0, max_delay=5.0)
    cluster = replace(cluster, settings=replace(cluster.settings, back_off=back_off))
    on_host = replace(cluster, settings=replace(cluster.settings, network=PodNetwork.HOST))
    await cluster.create({"metadata": {"name": "m"}, "data": {"code": "1"}}, CONFIGMAPS)
    volume = {"name": "v", "configMap": {"name": "m"}}
    mount = {"name": "v", "mountPath": "/v"}
    program = container("sh", "-c", "exit $(cat /v/code)", volumeMounts=[mount])
    async with on_host.agent():
        await cluster.run(manifest("p", program, volumes=[volume], restartPolicy="OnFailure"))
        await cluster.wait_pod("p", lambda pod: restarts(pod) == 1 and is_backing_off(pod))
    succeed = {"data": {"code": "0"}}
    await cluster.client.patch(CONFIGMAPS, "m", succeed, namespace=cluster.namespace)
    async with cluster.agent():
        await cluster.phase("p", "Succeeded")


def is_backing_off(pod: dict) -> bool:  # type: ignore[type-arg]
    (status,) = pod["status"]["containerStatuses"]
    return bool(status["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")


CLIENT = """
import http.client, sys, time
kept = http.client.HTTPConnection(sys.argv[1], 80)
while True:
    for name, connection in (("kept", kept), ("new", http.client.HTTPConnection(sys.argv[1], 80))):
        try:
            connection.request("GET", "/")
            print(name, connection.getresponse().read().decode(), flush=True)
        except OSError as error:
            print(name, error.strerror, flush=True)
    time.sleep(0.05)
"""
KEEPING = SERVER.replace("class Handler", "http.server.BaseHTTPRequestHandler.protocol_version = "
                         "'HTTP/1.1'\nclass Handler").replace("HTTPServer(", "ThreadingHTTPServer("
                         ).replace("self.end_headers", "self.send_header('Content-Length', "
                         "str(len(sys.argv[3]))); self.end_headers")  # fmt: skip


async def forbid(cluster: AgentCluster, name: str, labels: dict[str, str], **spec: Any) -> None:
    body = {"podSelector": {"matchLabels": labels}, **spec}
    await cluster.create({"metadata": {"name": name}, "spec": body}, NETWORKPOLICIES)


async def test_policies_see_the_pod_that_connects_however_it_does(
    cluster: AgentCluster, tmp_path: Path
) -> None:
    """Directly, by a Service, by its node port and by a host port, from the first packet on."""
    host_port = free_host_port()
    allowed = [{"from": [{"podSelector": {"matchLabels": {"may": "connect"}}}]}]
    await forbid(cluster, "some", {"app": "web"}, ingress=allowed)
    proxy = ServiceProxy(
        cluster.client, ranges=NAMESPACE_RANGES, rules=ServiceRules(cluster.settings.data_dir)
    )
    async with cluster.agent(), running(proxy):
        ports = [{"containerPort": 80, "hostPort": host_port}]
        web = {**manifest("web", server("web", ports=ports)), "metadata": LABELLED}
        await cluster.run(web)
        ip = (await cluster.wait_pod("web", is_ready))["status"]["podIP"]
        service = await cluster.create(
            {"metadata": {"name": "web"}, "spec": {"type": "NodePort", "ports": [{"port": 8000}]}},
            SERVICES,
        )
        await cluster.create(slice_of("web", ip, 80), ENDPOINTSLICES)
        node_port = service["spec"]["ports"][0]["nodePort"]
        hosts = (
            f"{ip}:80", f"{service['spec']['clusterIP']}:8000",
            f"{NAMESPACE_RANGES.node_ip}:{node_port}", f"{NAMESPACE_RANGES.node_ip}:{host_port}",
        )  # fmt: skip
        async with aiohttp.ClientSession() as session:

            async def are_relayed() -> bool:
                """To the machine itself, no policy applies."""
                try:
                    return [
                        await (await session.get(f"http://{each}/")).text() for each in hosts
                    ] == ["web"] * len(hosts)
                except aiohttp.ClientError:
                    return False

            await wait_until_true(are_relayed)
        urls = [f"http://{each}/" for each in hosts]
        for labels, expected in (({}, FORBIDDEN), ({"may": "connect"}, "web")):
            client = container(sys.executable, "-c", FETCH, *urls)
            body = manifest("client", client, restartPolicy="Never")
            await cluster.run({**body, "metadata": {"name": "client", "labels": labels}})
            await cluster.phase("client", "Succeeded")
            lines = (await cluster.logs("client")).splitlines()
            assert len(lines) == len(hosts)
            assert all(expected in line for line in lines), lines
            await cluster.delete("client", grace=0)
            await cluster.wait_pod_deleted("client")


ASK = """
import socket, sys
query = bytes.fromhex(sys.argv[2])
for kind, data in (("DGRAM", query), ("STREAM", len(query).to_bytes(2, "big") + query)):
    with socket.socket(socket.AF_INET, getattr(socket, f"SOCK_{kind}")) as connection:
        connection.settimeout(60)
        try:
            connection.connect((sys.argv[1], 53))
            connection.sendall(data)
            print("response" if connection.recv(4096) else "closed", flush=True)
        except OSError as error:
            print(error, flush=True)
"""


class AskedNames(Upstream):
    """Has what the machine's name servers are asked for."""

    def __init__(self, address: str) -> None:
        super().__init__(os.devnull, own_address=address)
        self.names: list[str] = []

    async def ask(self, query: dns.message.Message, *, client: str) -> dns.message.Message:
        self.names.append(query.question[0].name.to_text())
        return dns.message.make_response(query)


async def test_names_are_asked_for_only_if_a_policy_allows_it(cluster: AgentCluster) -> None:
    """By a pod that may send nothing, by one that may ask for names, and by one without policy."""
    address = choose_dns_address(NAMESPACE_RANGES, cluster.settings.data_dir)
    with_dns = replace(cluster, settings=replace(cluster.settings, cluster_dns=address))
    proxy, asked = ServiceProxy(cluster.client, ranges=NAMESPACE_RANGES), AskedNames(address)
    names = NameServer(
        Zone(proxy.services, proxy.slices),
        asked,
        ranges=NAMESPACE_RANGES,
        listen=lambda: dns_sockets(address),
        synced=lambda: True,
    )
    kube_dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    await forbid(cluster, "nothing", {"send": "nothing"}, policyTypes=["Egress"])
    await forbid(cluster, "names", {"send": "names"}, policyTypes=["Egress"],
                 egress=[{"to": [kube_dns], "ports": ports}])  # fmt: skip
    async with with_dns.agent(), running(names):
        for send, expected in (("nothing", FORBIDDEN), ("names", "response"), ("all", "response")):
            query = dns.message.make_query(f"{send}.example.com", "A").to_wire().hex()
            body = manifest("client", container(sys.executable, "-c", ASK, address, query),
                            restartPolicy="Never")  # fmt: skip
            await cluster.run({**body, "metadata": {"name": "client", "labels": {"send": send}}})
            await cluster.phase("client", "Succeeded")
            lines = (await cluster.logs("client")).splitlines()
            assert len(lines) == 2
            assert all(expected in line for line in lines), lines
            await cluster.delete("client", grace=0)
            await cluster.wait_pod_deleted("client")
    assert asked.names == ["names.example.com."] * 2 + ["all.example.com."] * 2


LABELLED = {"name": "web", "labels": {"app": "web"}}


def slice_of(service: str, ip: str, port: int, *, protocol: str = "TCP") -> dict[str, Any]:
    return {
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}}],
        "ports": [{"name": "", "port": port, "protocol": protocol}],
    }


async def test_connections_that_exist_continue_and_a_new_agent_keeps_the_policies(
    cluster: AgentCluster,
) -> None:
    async with cluster.agent():
        program = container(sys.executable, "-c", KEEPING, "0.0.0.0", "80", "web")
        await cluster.run(manifest("web", program))
        ip = (await cluster.wait_pod("web", is_ready))["status"]["podIP"]
        client = manifest("client", container(sys.executable, "-c", CLIENT, ip))
        await cluster.run({**client, "metadata": {"name": "client", "labels": {"app": "client"}}})
        await cluster.phase("client", "Running")
        await cluster.wait_log("client", "new web")
        await forbid(cluster, "none", {"app": "client"}, policyTypes=["Egress"])
        await cluster.wait_log("client", f"new {FORBIDDEN}\nkept web")
    async with cluster.agent():
        later = (await cluster.logs("client")).count(FORBIDDEN) + 3
        await wait_until_true(lambda: has_lines(cluster, later))
        log = await cluster.logs("client")
        assert "new web" not in log[log.index(FORBIDDEN) :]
        assert "kept No" not in log
        await cluster.client.delete(NETWORKPOLICIES, "none", namespace="default")

        async def is_allowed_again() -> bool:
            return "new web" in (await cluster.logs("client"))[len(log) :]

        await wait_until_true(is_allowed_again)


async def has_lines(cluster: AgentCluster, count: int) -> bool:
    return (await cluster.logs("client")).count(FORBIDDEN) >= count


def test_a_set_up_that_was_interrupted_is_completed(network: NamespaceNetwork) -> None:
    network.set_up("u", "198.18.7.7")
    link = network.link("u")
    for damage in (
        ("ip", "route", "del", "198.18.7.7/32", "dev", link),
        ("ip", "link", "del", link),
        ("ip", "netns", "del", Path(network.path("u")).name),
    ):
        subprocess.run(damage, check=True)
        network.set_up("u", "198.18.7.7")
        with network.enter("u", lambda: open("/proc/thread-self/net/dev")) as file:
            assert "eth0" in file.read()
        assert namespaces.has_route("198.18.7.7", link)
    network.remove_others(["u"])
    assert os.path.exists(network.path("u"))
    network.remove_others([])
    network.tear_down("u")
    assert not os.path.exists(network.path("u"))


def test_what_is_missing_for_namespaces_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == "nft" else name)
    assert "nftables" in unsupported_reason()


EXCHANGE = """
import socket, sys
for each in sys.argv[2:]:
    host, port = each.split(":")
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(1)
            client.connect((host, int(port)))
            try:
                client.send(b"x")
                print(client.recv(2048).decode(), flush=True)
            except TimeoutError:
                continue
            except OSError as error:
                if sys.argv[1] == "wait" and "refused" in str(error):
                    continue  # it does not listen yet
                print("refused" if "refused" in str(error) else error, flush=True)
            break
"""
KEEP = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.settimeout(0.5)
    client.connect((sys.argv[1], int(sys.argv[2])))
    while True:
        try:
            client.send(b"x")
            print(client.recv(2048).decode(), flush=True)
        except OSError as error:
            print(error, flush=True)
        time.sleep(0.1)
"""


async def exchanged(
    cluster: AgentCluster, mode: str, *hosts: str, labels: dict[str, str] | None = None
) -> list[str]:
    """What a new pod gets for its datagrams to *hosts*; with *mode* ``wait`` it tries again."""
    program = container(sys.executable, "-c", EXCHANGE, mode, *hosts)
    body = manifest("client", program, restartPolicy="Never")
    await cluster.run({**body, "metadata": {"name": "client", "labels": labels or {}}})
    await cluster.phase("client", "Succeeded")
    lines = (await cluster.logs("client")).splitlines()
    await cluster.delete("client", grace=0)
    await cluster.wait_pod_deleted("client")
    return lines


async def echoes(cluster: AgentCluster, name: str, **more: Any) -> str:
    """Run a pod that responds to datagrams with its name; return its address."""
    body = manifest(name, container(sys.executable, "-c", ECHO, name, **more))
    await cluster.run({**body, "metadata": {"name": name, "labels": {"app": name}}})
    ip: str = (await cluster.phase(name, "Running"))["status"]["podIP"]
    return ip


async def test_datagrams_reach_a_pod_as_connections_do(cluster: AgentCluster) -> None:
    """By a Service, its node port and a host port, and by none of them loopback servers."""
    with bind_datagrams(("127.0.0.1", 0)) as local:
        number = local.getsockname()[1]
        host_port = free_host_port()
        rule = {
            "from": [{"podSelector": {"matchLabels": {"may": "connect"}}}],
            "ports": [{"protocol": "UDP", "port": 53}],
        }
        await forbid(cluster, "some", {"app": "web"}, ingress=[rule])
        rules = ServiceRules(cluster.settings.data_dir)
        proxy = ServiceProxy(cluster.client, ranges=NAMESPACE_RANGES, rules=rules)
        async with cluster.agent(), running(proxy):
            ports = [{"containerPort": 53, "hostPort": host_port, "protocol": "UDP"}]
            ip = await echoes(cluster, "web", ports=ports)
            service = await cluster.create(datagram_service(type="NodePort"), SERVICES)
            await cluster.create(slice_of("names", ip, 53, protocol="UDP"), ENDPOINTSLICES)
            node_port, address = (
                service["spec"]["ports"][0]["nodePort"],
                service["spec"]["clusterIP"],
            )
            ways = ((address, 8053), ("127.0.0.1", node_port), ("127.0.0.1", host_port))
            for way in ways:

                async def is_relayed(way: tuple[str, int] = way) -> bool:
                    return await response_of(way) == b"web"

                await wait_until_true(is_relayed)
            node = NAMESPACE_RANGES.node_ip
            hosts = f"{ip}:53", f"{address}:8053", f"{node}:{node_port}", f"{node}:{host_port}"
            got = await exchanged(cluster, "wait", *hosts, labels={"may": "connect"})
            assert got == ["web"] * len(hosts)
            got = await exchanged(cluster, "wait", *hosts)
            assert [FORBIDDEN in line for line in got] == [True] * len(hosts), got
            inner = (address, NAMESPACE_RANGES.api_server_ip, "127.0.0.1")
            got = await exchanged(cluster, "once", *(f"{each}:{number}" for each in inner))
            assert got == ["refused"] * len(inner)
        local.setblocking(False)
        with pytest.raises(BlockingIOError):
            local.recv(1)


async def test_datagrams_of_a_socket_that_is_kept_go_to_the_endpoints_that_there_are(
    cluster: AgentCluster,
) -> None:
    """The kernel would send them to the first one for as long as there are any."""
    rules = ServiceRules(cluster.settings.data_dir)
    proxy = ServiceProxy(cluster.client, ranges=NAMESPACE_RANGES, rules=rules)
    async with cluster.agent(), running(proxy):
        first, second = [await echoes(cluster, name) for name in ("first", "second")]
        service = await cluster.create(datagram_service(), SERVICES)
        program = container(sys.executable, "-c", KEEP, service["spec"]["clusterIP"], "8053")
        await cluster.run(manifest("client", program))
        await cluster.phase("client", "Running")
        await cluster.wait_log("client", "refused")
        for ip, name in ((first, "first"), (second, "second")):
            await cluster.create(slice_of("names", ip, 53, protocol="UDP"), ENDPOINTSLICES)
            await cluster.wait_log("client", name)
            await cluster.client.delete(ENDPOINTSLICES, "names", namespace="default")


def datagram_service(**spec: Any) -> dict[str, Any]:
    ports = [{"port": 8053, "protocol": "UDP"}]
    return {"metadata": {"name": "names"}, "spec": {"ports": ports, **spec}}
