"""Workloads and Services of ``batholith up``: found by name, and kept through kills."""

import os
from pathlib import Path
from typing import Any

import dns.message
import pytest
from support import embedded_cluster
from support.polling import wait_until_true

from batholith.kube.errors import NotFoundError
from batholith.model.names import DEPLOYMENTS, PODS, SERVICES, STATEFULSETS, Resource

Json = dict[str, Any]
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

_SERVER = "cd /tmp; hostname > index.html; exec python3 -m http.server --bind $(POD_IP) 8000"
_ADDRESS = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def server_pods(app: str) -> Json:
    """A template of web servers whose page is their name."""
    container = {
        "name": "c",
        "image": "python",
        "command": ["sh", "-c", _SERVER],
        "env": [_ADDRESS],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 1},
    }
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"metadata": {"labels": {"app": app}}, "spec": spec}


async def create(
    cluster: embedded_cluster.EmbeddedCluster, resource: Resource, name: str, spec: Json
) -> None:
    body = {"metadata": {"name": name}, "spec": spec}
    await cluster.client.create(resource, body, namespace="default")


async def wait_status(
    cluster: embedded_cluster.EmbeddedCluster, resource: Resource, name: str, **wanted: Any
) -> None:
    async def holds() -> bool:
        try:
            found = await cluster.client.get(resource, name, namespace="default", view=dict)
        except NotFoundError:
            return False
        status = found.get("status") or {}
        return all(status.get(key) == value for key, value in wanted.items())

    await wait_until_true(holds)


async def test_pods_find_services_and_named_pods_of_other_workloads(tmp_path: Path) -> None:
    async with embedded_cluster.embedded_cluster(tmp_path / "data") as cluster:
        selector = {"matchLabels": {"app": "web"}}
        template = server_pods("web")
        deployment = {"replicas": 2, "selector": selector, "template": template}
        await create(cluster, DEPLOYMENTS, "web", deployment)
        cluster.kill("workloads")
        ports = [{"port": 8080, "targetPort": "http"}]
        await create(cluster, SERVICES, "web", {"selector": {"app": "web"}, "ports": ports})
        database = {
            "replicas": 1,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": server_pods("db"),
        }
        await create(cluster, STATEFULSETS, "db", database)
        headless = {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 8000}]}
        await create(cluster, SERVICES, "db", headless)
        await wait_status(cluster, DEPLOYMENTS, "web", availableReplicas=2)
        await wait_status(cluster, STATEFULSETS, "db", availableReplicas=1)
        cluster.kill("proxy")
        program = (
            "import time, urllib.request\n"
            "for url in ('web:8080', 'web.default.svc.cluster.local:8080', 'db-0.db:8000'):\n"
            "    for _ in range(100):\n"
            "        try:\n"
            "            name = urllib.request.urlopen(f'http://{url}', timeout=5).read()\n"
            "            break\n"
            "        except OSError: time.sleep(0.2)\n"
            "    print(url, name.decode().rpartition('-')[0], flush=True)\n"
        )
        container = {"name": "c", "image": "python", "command": ["python3", "-c", program]}
        spec = {"restartPolicy": "Never", "containers": [container]}
        await create(cluster, PODS, "client", spec)
        await wait_status(cluster, PODS, "client", phase="Succeeded")
        lines = (await cluster.log("client")).splitlines()
        names = [line.split()[1] for line in lines]
        assert names[0] == names[1]
        assert (names[0][:4], names[2]) == ("web-", "db")
        if os.geteuid() == 0:  # else ports 53 and 443 are privileged
            await check_names(cluster)
            await check_api_server(cluster)


async def check_api_server(cluster: embedded_cluster.EmbeddedCluster) -> None:
    """A pod of the account `default` calls the API, and reads the keys of tokens, as programs do
    on any cluster."""
    program = (
        "import json, os, ssl, urllib.request\n"
        "here = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "trust = ssl.create_default_context(cafile=here + 'ca.crt')\n"
        "token = {'Authorization': 'Bearer ' + open(here + 'token').read()}\n"
        "for host in ('kubernetes.default.svc', os.environ['KUBERNETES_SERVICE_HOST']):\n"
        "    url = f'https://{host}/.well-known/openid-configuration'\n"
        "    asked = urllib.request.Request(url, headers=token)\n"
        "    found = json.load(urllib.request.urlopen(asked, context=trust))\n"
        "    asked = urllib.request.Request(found['jwks_uri'], headers=token)\n"
        "    print(urllib.request.urlopen(asked, context=trust).status)\n"
        "print(os.environ['KUBERNETES_SERVICE_PORT'])\n"
    )
    container = {"name": "c", "image": "python", "command": ["python3", "-c", program]}
    await create(cluster, PODS, "caller", {"restartPolicy": "Never", "containers": [container]})
    await wait_status(cluster, PODS, "caller", phase="Succeeded")
    assert (await cluster.log("caller")).split() == ["200", "200", "443"]


_ASK = """
import socket, sys, time
lines = [line.split() for line in open("/etc/resolv.conf")]
server = next(fields[1] for fields in lines if fields[0] == "nameserver")
print(server, *next(fields[1:3] for fields in lines if fields[0] == "search"))
while True:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(20)
        asking.sendto(bytes.fromhex(sys.argv[1]), (server, 53))
        try:
            response = asking.recv(4096)
        except OSError:
            continue
    if response[3] & 15 == 0:
        break
    time.sleep(0.2)
print(response.hex())
"""
"""Prints the name server, the first two search domains, and the response to a query."""


async def check_names(cluster: embedded_cluster.EmbeddedCluster) -> None:
    query = dns.message.make_query("_http._tcp.sts.default.svc.cluster.local", "SRV")
    ports = [{"name": "http", "port": 8000}]
    named = {"clusterIP": "None", "selector": {"app": "db"}, "ports": ports}
    await create(cluster, SERVICES, "sts", named)
    command = ["python3", "-c", _ASK, query.to_wire().hex()]
    container = {"name": "c", "image": "python", "command": command}
    config = {"options": [{"name": "ndots", "value": "2"}]}
    spec = {"restartPolicy": "Never", "containers": [container], "dnsConfig": config}
    await create(cluster, PODS, "asking", spec)
    await wait_status(cluster, PODS, "asking", phase="Succeeded")
    resolver, response = (await cluster.log("asking")).splitlines()
    service = await cluster.client.get(SERVICES, "kube-dns", namespace="kube-system", view=dict)
    address = service["spec"]["clusterIP"]
    assert resolver == f"{address} default.svc.cluster.local svc.cluster.local"
    records = dns.message.from_wire(bytes.fromhex(response)).sections[1][0]
    target = "sts.default.svc.cluster.local."
    assert [(each.port, each.target.to_text().partition(".")[2]) for each in records] == [
        (8000, target)
    ]
