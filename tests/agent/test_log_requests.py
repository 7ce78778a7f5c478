"""Options of requests for logs, on both API servers."""

import base64
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster
from support.kubectl import Kubectl, needs_kubectl

from batholith.local.agent.state.status import BackOff

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]


@pytest.fixture(scope="module")
def agent_options() -> dict[str, Any]:
    """Containers that have failed twice wait."""
    return {"back_off": BackOff(initial_delay=1000.0, max_delay=1000.0)}


LATER, EARLIER = "2100-01-01T00:00:00Z", "2020-01-01T00:00:00Z"
REQUESTS = (
    ("tailLines=0", 200, ""),
    ("tailLines=1", 200, "two\n"),
    ("limitBytes=5", 200, "one\nt"),
    ("sinceSeconds=1000", 200, "one\ntwo\n"),
    (f"sinceTime={EARLIER}", 200, "one\ntwo\n"),
    (f"sinceTime={LATER}", 200, ""),
    ("follow=true", 200, "one\ntwo\n"),
    ("insecureSkipTLSVerifyBackend=true", 200, "one\ntwo\n"),
    ("tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
    ("limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
    ("sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
    (f"sinceSeconds=5&sinceTime={EARLIER}", 422, "at most one of `sinceTime` or `sinceSeconds`"),
    ("tailLines=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
    ("tailLines=", 400, 'strconv.ParseInt: parsing "": invalid syntax'),
    ("limitBytes=99999999999999999999", 400, "value out of range"),
    ("sinceTime=x", 400, 'parsing time "x"'),
    ("previous=true", 400, 'previous terminated container "c" in pod "p" not found'),
    ("previous=x", 400, 'previous terminated container "c" in pod "p" not found'),
    ("container=x", 400, "container x is not valid for pod p"),
)


async def test_options_select_lines_or_are_rejected(cluster: AgentCluster) -> None:
    await cluster.run(
        manifest("p", container("sh", "-c", "echo one; echo two"), restartPolicy="Never")
    )
    await cluster.phase("p", "Succeeded")
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/p/log"
    for query, status, text in REQUESTS:
        response = await cluster.server.request("GET", f"{path}?{query}")
        assert response.status == status, (query, response.body)
        if status == 200:
            assert response.body == text, query
        else:
            assert text in response.body["message"], query


async def test_logs_are_sent_over_websockets(cluster: AgentCluster) -> None:
    await cluster.run(
        manifest("p", container("sh", "-c", "echo one; echo two"), restartPolicy="Never")
    )
    await cluster.phase("p", "Succeeded")
    server = cluster.server
    url = f"{server.url}/api/v1/namespaces/{cluster.namespace}/pods/p/log?follow=true"
    sent = {"Authorization": f"Bearer {server.tokens['admin']}"}
    for offered, chosen in (
        ((), None),
        (("binary.k8s.io",), "binary.k8s.io"),
        (("other", "base64.binary.k8s.io"), "base64.binary.k8s.io"),
    ):
        async with server.session.ws_connect(url, headers=sent, protocols=offered) as socket:
            assert socket.protocol == chosen
            messages = [message async for message in socket]
            is_text = chosen == "base64.binary.k8s.io"
            kind = aiohttp.WSMsgType.TEXT if is_text else aiohttp.WSMsgType.BINARY
            assert {each.type for each in messages} == {kind}
            assert not messages[0].data
            chunks = (base64.b64decode(each.data) if is_text else each.data for each in messages)
            assert b"".join(chunks) == b"one\ntwo\n"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await server.session.ws_connect(url, headers=sent, protocols=("other",))
    assert refused.value.status == 403


async def test_previous_run_of_a_container_that_waits_to_restart_is_its_last(
    cluster: AgentCluster,
) -> None:
    script = "echo run >> /v/runs; wc -l < /v/runs; exit 1"
    mounts = [{"name": "v", "mountPath": "/v"}]
    volumes = [{"name": "v", "emptyDir": {}}]
    await cluster.run(
        manifest("p", container("sh", "-c", script, volumeMounts=mounts), volumes=volumes)
    )
    await cluster.wait_pod("p", lambda pod: "CrashLoopBackOff" in str(pod["status"]))
    last = await cluster.logs("p")
    assert await cluster.logs("p", "?previous=true") == last


async def test_kubectl_follows_all_containers_with_their_names(
    cluster: AgentCluster, tmp_path: Path
) -> None:
    needs_kubectl()
    kubectl = Kubectl(cluster.server, tmp_path)
    both = (container("echo", "one", name="a"), container("echo", "two", name="b"))
    await cluster.run(manifest("p", *both, restartPolicy="Never"))
    await cluster.phase("p", "Succeeded")
    flags = ("--all-containers", "--prefix", "-f", "--tail=5", "--since=1h", "--limit-bytes=99")
    out = await kubectl("logs", "-n", cluster.namespace, "p", *flags)
    assert sorted(out.splitlines()) == ["[pod/p/a] one", "[pod/p/b] two"]
    stamped = await kubectl("logs", "-n", cluster.namespace, "p", "-c", "a", "--timestamps")
    assert stamped.split()[1] == "one"
