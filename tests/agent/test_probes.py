"""Hooks and probes of containers on a real node."""

from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster, make_world_writable
from support.api_servers import ServerFactory
from support.sandbox import detected_isolation

from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.local.agent.volumes.host_dirs import HostDir
from batholith.model.names import CONFIGMAPS

Json = dict[str, Any]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]


@pytest.fixture(scope="module")
def host_dir(servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the machine that pods may write, one per kind of server."""
    return make_world_writable(tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def agent_options(host_dir: Path) -> dict[str, Any]:
    return {"host_dirs": (HostDir(str(host_dir)),)}


def run_in(script: str) -> Json:
    return {"exec": {"command": ["sh", "-c", f"R=$BATHOLITH_ROOT; {script}"]}}


def frequent_probe(action: Json, **more: Any) -> Json:
    """Return a probe with a failure threshold of 1."""
    return {**action, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10, **more}


def pod(name: str, script: str, directory: Path | None = None, **more: Any) -> Json:
    """Return a pod of one container, which may write to *directory* at /out."""
    mounts = [{"name": "out", "mountPath": "/out"}] if directory else []
    volumes = [{"name": "out", "hostPath": {"path": str(directory)}}] if directory else []
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


async def test_readiness_follows_the_readiness_probe(cluster: AgentCluster) -> None:
    await cluster.create({"metadata": {"name": "m"}, "data": {}}, CONFIGMAPS)
    created = pod(
        "p",
        "sleep 60",
        readinessProbe=frequent_probe(run_in("test -f $R/m/ok")),
        volumeMounts=[{"name": "m", "mountPath": "/m"}],
        volumes=[{"name": "m", "configMap": {"name": "m"}}],
    )
    await cluster.run(created)
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


async def test_failed_liveness_probe_follows_the_restart_policy(
    cluster: AgentCluster,
) -> None:
    unwell = frequent_probe(run_in("echo so bad; exit 1"))
    await cluster.run(pod("again", "sleep 60", livenessProbe=unwell))
    await cluster.run(pod("never", "sleep 60", livenessProbe=unwell, restartPolicy="Never"))
    again = await cluster.wait_pod("again", lambda seen: container_status(seen).get("restartCount"))
    message = "Liveness probe failed: so bad"
    assert (await cluster.wait_event("again", "Unhealthy", message))["message"] == message
    ended = [
        one.get("terminated")
        for one in (container_status(again)["lastState"], container_status(again)["state"])
    ]
    assert 143 in [one["exitCode"] for one in ended if one]
    assert (await cluster.phase("never", "Succeeded", "Failed"))["status"]["phase"] == "Failed"


async def test_other_probes_wait_for_the_startup_probe(
    cluster: AgentCluster, host_dir: Path
) -> None:
    created = pod(
        "p",
        "sleep 60",
        host_dir,
        startupProbe=frequent_probe(run_in("test -f $R/out/up"), failureThreshold=1000),
        livenessProbe=frequent_probe(run_in("test -f $R/out/up")),
    )
    await cluster.run(created)
    await cluster.wait_event("p", "Unhealthy")
    seen = await cluster.phase("p", "Running")
    assert (container_status(seen)["started"], container_status(seen)["ready"]) == (False, False)
    (host_dir / "up").touch()
    await cluster.wait_pod("p", is_ready)
    failing = pod(
        "failing", "sleep 60", startupProbe=frequent_probe(run_in("exit 1")), restartPolicy="Never"
    )
    await cluster.run(failing)
    assert (await cluster.phase("failing", "Succeeded", "Failed"))["status"]["phase"] == "Failed"


async def test_probes_connect_to_the_pod_s_address(cluster: AgentCluster) -> None:
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


async def test_hooks_run_after_the_start_and_before_sigterm(
    cluster: AgentCluster, tmp_path: Path, host_dir: Path
) -> None:
    directory = make_world_writable(host_dir / "hooks")
    hooks = {
        "postStart": run_in("hostname >> $R/out/log; echo post >> $R/out/log"),
        "preStop": run_in("echo pre >> $R/out/log"),
    }
    script = "trap 'echo term >> $R/out/log; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    await cluster.run(pod("p", script, directory, lifecycle=hooks))
    await cluster.wait_pod("p", is_ready)
    await cluster.wait_log("p", "up")
    host, post = (directory / "log").read_text().split()
    assert post == "post"
    if detected_isolation().isolation is not IsolationLevel.PLAIN:
        assert host == "p"
    await cluster.delete("p", grace=60)
    await cluster.wait_pod_deleted("p")
    assert (directory / "log").read_text().split()[1:] == ["post", "pre", "term"]


async def test_failed_or_hanging_hook_does_not_block_the_pod(
    cluster: AgentCluster, host_dir: Path
) -> None:
    directory = make_world_writable(host_dir / "failing")
    fails = {"postStart": run_in("echo oh; exit 1")}
    await cluster.run(pod("bad", "sleep 60", lifecycle=fails, restartPolicy="Never"))
    assert (await cluster.phase("bad", "Succeeded", "Failed"))["status"]["phase"] == "Failed"
    assert "oh" in (await cluster.wait_event("bad", "FailedPostStartHook"))["message"]
    hangs = {"preStop": run_in("sleep 600")}
    # It exits promptly: after such a hook only two seconds remain.
    script = "trap 'echo term >> $R/out/log; exit 0' TERM; echo up; sleep 600 & wait"
    await cluster.run(pod("slow", script, directory, lifecycle=hangs))
    await cluster.phase("slow", "Running")
    await cluster.wait_log("slow", "up")
    # API times are whole seconds, so that up to one second of the grace period may be lost.
    await cluster.delete("slow", grace=3)
    await cluster.wait_pod_deleted("slow")
    assert "timed out" in (await cluster.wait_event("slow", "FailedPreStopHook"))["message"]
    assert (directory / "log").read_text() == "term\n"


async def test_hook_has_the_privileges_of_its_container(
    cluster: AgentCluster,
) -> None:
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox privileges are not dropped")
    rights = "grep -E 'CapEff|CapBnd|NoNewPrivs|Uid' /proc/self/status"
    hook = f"{rights} > /v/new; ls / >> /v/new; mv /v/new /v/theirs"
    hooks = {"postStart": run_in(hook)}
    script = f"{rights} > /v/own; ls / >> /v/own; until test -f /v/theirs; do sleep 0.02; done;"
    created = pod(
        "p",
        f"{script} diff /v/own /v/theirs",
        lifecycle=hooks,
        restartPolicy="Never",
        securityContext={"runAsUser": 77},
        volumeMounts=[{"name": "v", "mountPath": "/v"}],
        volumes=[{"name": "v", "emptyDir": {}}],
    )
    await cluster.run(created)
    seen = await cluster.phase("p", "Succeeded", "Failed")
    assert seen["status"]["phase"] == "Succeeded", await cluster.logs("p")


async def test_placeholder_is_not_probed(cluster: AgentCluster) -> None:
    asked = frequent_probe({"httpGet": {"port": 18099}})
    one = container(image="nginx", livenessProbe=asked, readinessProbe=asked)
    one["lifecycle"] = {"postStart": run_in("exit 1")}
    await cluster.run(manifest("p", one, restartPolicy="Never"))
    await cluster.wait_pod("p", is_ready)
    await cluster.delete("p", grace=0)
