"""Hooks and probes of containers on a real node."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.agent import container, manifest
from support.agent_cluster import AgentCluster, agent_cluster, make_world_writable
from support.api_servers import ServerFactory, add_namespace

from batholith.agent.runtime.runs import IsolationLevel, detect_isolation
from batholith.model.names import CONFIGMAPS

Json = dict[str, Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def host_dir(servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the machine that pods may write to, one for each kind of server."""
    return make_world_writable(tmp_path_factory.mktemp("outside"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory, host_dir: Path
) -> AsyncIterator[AgentCluster]:
    """One server and one agent for all tests of this module."""
    base = tmp_path_factory.mktemp("world")
    async with agent_cluster(servers, base, host_paths=(str(host_dir),)) as made, made.agent():
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: AgentCluster) -> AgentCluster:
    """The shared cluster, in a namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await add_namespace(shared.server, name)
    return replace(shared, namespace=name)


def run_in(script: str) -> Json:
    return {"exec": {"command": ["sh", "-c", f"R=$BATHOLITH_ROOT; {script}"]}}


def frequent_probe(action: Json, **more: Any) -> Json:
    """A probe that fails at once."""
    return {**action, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10, **more}


def pod(name: str, script: str, folder: Path | None = None, **more: Any) -> Json:
    """A pod of one container, which may write into *folder* at /out."""
    mounts = [{"name": "out", "mountPath": "/out"}] if folder else []
    volumes = [{"name": "out", "hostPath": {"path": str(folder)}}] if folder else []
    policy = more.pop("restartPolicy", "Always")
    mounts += more.pop("volumeMounts", [])
    volumes += more.pop("volumes", [])
    text = f"R=$BATHOLITH_ROOT; {script}"
    one = container("sh", "-c", text, volumeMounts=mounts, **more)
    return manifest(name, one, volumes=volumes, restartPolicy=policy)


def container_status(seen: Json) -> Json:
    statuses: list[Json] = seen["status"].get("containerStatuses", [{}])
    return statuses[0]


def is_ready(seen: Json) -> bool:
    conditions = {c["type"]: c["status"] for c in seen["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and container_status(seen)["ready"]


async def test_a_container_is_ready_while_its_probe_says_so(cluster: AgentCluster) -> None:
    await cluster.create({"metadata": {"name": "m"}, "data": {}}, CONFIGMAPS)
    made = pod(
        "p",
        "sleep 60",
        readinessProbe=frequent_probe(run_in("test -f $R/m/ok")),
        volumeMounts=[{"name": "m", "mountPath": "/m"}],
        volumes=[{"name": "m", "configMap": {"name": "m"}}],
    )
    await cluster.run(made)
    assert (await cluster.wait_event("p", "Unhealthy"))["message"].startswith(
        "Readiness probe failed: "
    )
    seen = await cluster.phase("p", "Running")
    assert not is_ready(seen)
    assert container_status(seen)["started"]
    await cluster.client.patch(CONFIGMAPS, "m", {"data": {"ok": ""}}, namespace=cluster.namespace)
    await cluster.wait_pod("p", is_ready)
    await cluster.client.patch(CONFIGMAPS, "m", {"data": {"ok": None}}, namespace=cluster.namespace)
    await cluster.wait_pod("p", lambda seen: not is_ready(seen))
    assert container_status(await cluster.pod("p"))["restartCount"] == 0


async def test_a_container_that_is_not_well_is_restarted_as_its_policy_says(
    cluster: AgentCluster,
) -> None:
    unwell = frequent_probe(run_in("echo so bad; exit 1"))
    await cluster.run(pod("again", "sleep 60", livenessProbe=unwell))
    await cluster.run(pod("never", "sleep 60", livenessProbe=unwell, restartPolicy="Never"))
    again = await cluster.wait_pod("again", lambda seen: container_status(seen).get("restartCount"))
    said = "Liveness probe failed: so bad"
    assert (await cluster.wait_event("again", "Unhealthy", said))["message"] == said
    ended = [
        one.get("terminated")
        for one in (container_status(again)["lastState"], container_status(again)["state"])
    ]
    assert 143 in [one["exitCode"] for one in ended if one]
    assert (await cluster.phase("never", "Succeeded", "Failed"))["status"]["phase"] == "Failed"


async def test_nothing_else_is_asked_before_the_start_went_well(
    cluster: AgentCluster, host_dir: Path
) -> None:
    made = pod(
        "p",
        "sleep 60",
        host_dir,
        startupProbe=frequent_probe(run_in("test -f $R/out/up"), failureThreshold=1000),
        livenessProbe=frequent_probe(run_in("test -f $R/out/up")),
    )
    await cluster.run(made)
    await cluster.wait_event("p", "Unhealthy")
    seen = await cluster.phase("p", "Running")
    assert (container_status(seen)["started"], container_status(seen)["ready"]) == (False, False)
    (host_dir / "up").touch()
    await cluster.wait_pod("p", is_ready)
    late = pod(
        "late", "sleep 60", startupProbe=frequent_probe(run_in("exit 1")), restartPolicy="Never"
    )
    await cluster.run(late)
    assert (await cluster.phase("late", "Succeeded", "Failed"))["status"]["phase"] == "Failed"


async def test_ports_are_asked_at_the_pod_s_address(cluster: AgentCluster) -> None:
    serve = (
        "import http.server, os, sys; s = http.server.HTTPServer((os.environ['IP'], 18080),"
        "type('H', (http.server.BaseHTTPRequestHandler,), {'do_GET': lambda h: (h.send_response("
        "200 if h.path == '/well' and h.headers['X-A'] == 'b' else 500), h.end_headers())}));"
        "s.serve_forever()"
    )
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    ports = [{"name": "web", "containerPort": 18080}]
    headers = [{"name": "X-A", "value": "b"}]
    probes: dict[str, Json] = {
        "well": {"httpGet": {"port": "web", "path": "/well", "httpHeaders": headers}},
        "ill": {"httpGet": {"port": 18080, "path": "/ill"}},
        "open": {"tcpSocket": {"port": "web"}},
        "shut": {"tcpSocket": {"port": 18081}},
    }
    for name, asked in probes.items():
        one = container(
            "python3", "-c", serve, env=env, ports=ports, readinessProbe=frequent_probe(asked)
        )
        await cluster.run(manifest(name, one))
    await cluster.wait_pod("well", is_ready)
    await cluster.wait_pod("open", is_ready)
    await cluster.wait_event("ill", "Unhealthy", "500")
    await cluster.wait_event("shut", "Unhealthy")
    assert not is_ready(await cluster.pod("shut"))


async def test_hooks_run_in_the_container_after_its_start_and_before_its_end(
    cluster: AgentCluster, tmp_path: Path, host_dir: Path
) -> None:
    folder = make_world_writable(host_dir / "hooks")
    hooks = {
        "postStart": run_in("hostname >> $R/out/log; echo post >> $R/out/log"),
        "preStop": run_in("echo pre >> $R/out/log"),
    }
    script = "trap 'echo term >> $R/out/log; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    await cluster.run(pod("p", script, folder, lifecycle=hooks))
    await cluster.wait_pod("p", is_ready)
    await cluster.wait_log("p", "up")
    host, post = (folder / "log").read_text().split()
    assert post == "post"
    if detect_isolation().isolation is not IsolationLevel.PLAIN:
        assert host == "p"
    await cluster.delete("p", grace=60)
    await cluster.wait_pod_deleted("p")
    assert (folder / "log").read_text().split()[1:] == ["post", "pre", "term"]


async def test_a_hook_that_fails_or_never_ends_does_not_keep_a_pod(
    cluster: AgentCluster, host_dir: Path
) -> None:
    folder = make_world_writable(host_dir / "failing")
    fails = {"postStart": run_in("echo oh; exit 1")}
    await cluster.run(pod("bad", "sleep 60", lifecycle=fails, restartPolicy="Never"))
    assert (await cluster.phase("bad", "Succeeded", "Failed"))["status"]["phase"] == "Failed"
    assert "oh" in (await cluster.wait_event("bad", "FailedPostStartHook"))["message"]
    hangs = {"preStop": run_in("sleep 600")}
    # It hears of its end at once: after such a hook it has but two seconds.
    script = "trap 'echo term >> $R/out/log; exit 0' TERM; echo up; sleep 600 & wait"
    await cluster.run(pod("slow", script, folder, lifecycle=hangs))
    await cluster.phase("slow", "Running")
    await cluster.wait_log("slow", "up")
    # Times in the API are whole seconds, so that of a grace one may be over when it begins.
    await cluster.delete("slow", grace=3)
    await cluster.wait_pod_deleted("slow")
    assert "timed out" in (await cluster.wait_event("slow", "FailedPreStopHook"))["message"]
    assert (folder / "log").read_text() == "term\n"


async def test_what_runs_for_a_hook_has_no_more_rights_than_its_container(
    cluster: AgentCluster,
) -> None:
    if detect_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox there is nothing to be kept from")
    rights = "grep -E 'CapEff|CapBnd|NoNewPrivs|Uid' /proc/self/status"
    told = f"{rights} > /v/part; ls / >> /v/part; mv /v/part /v/theirs"
    hooks = {"postStart": run_in(told)}
    script = f"{rights} > /v/own; ls / >> /v/own; until test -f /v/theirs; do sleep 0.02; done;"
    made = pod(
        "p",
        f"{script} diff /v/own /v/theirs",
        lifecycle=hooks,
        restartPolicy="Never",
        securityContext={"runAsUser": 77},
        volumeMounts=[{"name": "v", "mountPath": "/v"}],
        volumes=[{"name": "v", "emptyDir": {}}],
    )
    await cluster.run(made)
    seen = await cluster.phase("p", "Succeeded", "Failed")
    assert seen["status"]["phase"] == "Succeeded", await cluster.logs("p")


async def test_what_stands_in_for_a_server_is_not_asked(cluster: AgentCluster) -> None:
    asked = frequent_probe({"httpGet": {"port": 18099}})
    one = container(image="nginx", livenessProbe=asked, readinessProbe=asked)
    one["lifecycle"] = {"postStart": run_in("exit 1")}
    await cluster.run(manifest("p", one, restartPolicy="Never"))
    await cluster.wait_pod("p", is_ready)
    await cluster.delete("p", grace=0)
