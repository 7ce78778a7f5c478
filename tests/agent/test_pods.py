"""Pods on a real node, as users see them through the API."""

import asyncio
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, decode_pod, manifest
from support.agent_cluster import NODE, AgentCluster, bind_pvc
from support.polling import DEFAULT_TIMEOUT, wait_for
from support.sandbox import detected_isolation

from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.model.names import (
    CONFIGMAPS,
    EVENTS,
    PERSISTENTVOLUMECLAIMS,
    SECRETS,
    SERVICES,
)

Json = dict[str, Any]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]


def shell(script: str, *, name: str = "c", **more: Any) -> Json:
    return container("sh", "-c", script, name=name, **more)


def ended(pod: Json, at: int = 0) -> Json:
    """Return the exit of a container; a server may omit the exit code 0."""
    return {"exitCode": 0, **pod["status"]["containerStatuses"][at]["state"]["terminated"]}


def pod_dirs(cluster: AgentCluster) -> list[Path]:
    """Return the directories of the test's pods."""
    held = PodDir.all(cluster.settings.data_dir)
    return [directory.path for directory, record in held if record.namespace == cluster.namespace]


async def test_pod_phase_follows_from_exit_codes(cluster: AgentCluster) -> None:
    await cluster.run(manifest("good", shell("exit 0"), restartPolicy="Never"))
    await cluster.run(
        manifest("bad", shell("exit 3"), shell("exit 0", name="d"), restartPolicy="Never")
    )
    await cluster.run(manifest("none", container("no-such-program"), restartPolicy="Never"))
    good = await cluster.phase("good", "Succeeded", "Failed")
    assert (good["status"]["phase"], ended(good)["reason"]) == ("Succeeded", "Completed")
    bad = await cluster.phase("bad", "Succeeded", "Failed")
    assert (bad["status"]["phase"], ended(bad)["exitCode"]) == ("Failed", 3)
    assert ended(bad, 1)["exitCode"] == 0
    none = await cluster.phase("none", "Succeeded", "Failed")
    assert (ended(none)["exitCode"], ended(none)["reason"]) == (128, "StartError")
    event = await cluster.wait_event("none", "Failed")
    assert "no-such-program" in event["message"]


async def test_a_container_that_cannot_be_started_says_so_and_is_not_started(
    cluster: AgentCluster,
) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    pod = manifest(
        "p",
        container("/data/pyhton3", volumeMounts=mounts),
        shell("sleep 1", name="d"),
        restartPolicy="Never",
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    await cluster.run(pod)
    failed = await cluster.phase("p", "Succeeded", "Failed")
    assert ended(failed)["reason"] == "StartError"
    event = await cluster.wait_event("p", "Failed")
    assert event["message"].startswith("Error: failed to start container c: ")
    assert "pyhton3" in event["message"]
    await cluster.wait_event("p", "Started", "d")
    found = await cluster.client.list(EVENTS, namespace=cluster.namespace, view=dict)
    started = [each["message"] for each in found.items if each["reason"] == "Started"]
    assert [text.partition(" as a process")[0] for text in started] == ["Started container d"]
    assert "pyhton3" in await cluster.logs("p", "?container=c")


async def test_a_failing_container_is_restarted_until_it_succeeds(cluster: AgentCluster) -> None:
    script = "n=$(cat /data/n 2>/dev/null || echo 0); echo $((n+1)) > /data/n; test $n = 2"
    mounts = [{"name": "data", "mountPath": "/data"}]
    pod = manifest(
        "p",
        shell(script, volumeMounts=mounts),
        restartPolicy="OnFailure",
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pod["spec"]["containers"][0]["command"][2] = script.replace("/data", "$BATHOLITH_ROOT/data")
    await cluster.run(pod)
    done = await cluster.phase("p", "Succeeded", "Failed")
    assert done["status"]["phase"] == "Succeeded"
    assert done["status"]["containerStatuses"][0]["restartCount"] == 2


async def test_images_without_a_command_run_placeholders(cluster: AgentCluster) -> None:
    await cluster.run(manifest("web", container(image="nginx")))
    await cluster.run(manifest("box", container(image="busybox:latest"), restartPolicy="Never"))
    assert (await cluster.phase("box", "Succeeded", "Failed"))["status"]["phase"] == "Succeeded"
    web = await cluster.phase("web", "Running")
    conditions = {c["type"]: c["status"] for c in web["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert conditions["PodScheduled"] == "True"  # also of a pod that was created with its node
    assert web["status"]["podIP"].startswith("127.")


async def test_arguments_of_an_unknown_image_run_if_they_begin_with_a_program(
    cluster: AgentCluster,
) -> None:
    """The entry points of images for Dask, Jupyter and others execute their arguments."""
    spec = {"restartPolicy": "Never"}
    for name, args in (("program", ["sh", "-c", "exit 3"]), ("option", ["--fast"])):
        await cluster.run(manifest(name, container(image="example.com/a:1", args=args), **spec))
    assert ended(await cluster.phase("program", "Succeeded", "Failed"))["exitCode"] == 3
    await cluster.wait_event("option", "Placeholder")


async def test_container_above_its_memory_limit_is_killed(cluster: AgentCluster) -> None:
    take = "import sys, time; x = b'1' * (int(sys.argv[1]) << 20); print('up'); time.sleep(60)"
    limits = {"limits": {"memory": "128Mi"}}
    for name, amount in (("greedy", "256"), ("modest", "8")):
        one = container("python3", "-u", "-c", take, amount, resources=limits)
        await cluster.run(manifest(name, one, restartPolicy="Never"))
    greedy = await cluster.phase("greedy", "Succeeded", "Failed")
    assert (ended(greedy)["exitCode"], ended(greedy)["reason"]) == (137, "OOMKilled")
    assert "memory" in (await cluster.wait_event("greedy", "OOMKilling"))["message"]
    await cluster.phase("modest", "Running")
    await cluster.wait_log("modest", "up")
    await cluster.delete("modest", grace=0)


async def test_deep_directories_are_removed_with_their_pod(cluster: AgentCluster) -> None:
    script = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    mounts = [{"name": "v", "mountPath": "/v"}]
    one = container("python3", "-c", script, workingDir="/v", volumeMounts=mounts)
    volumes = [{"name": "v", "emptyDir": {}}]
    created = await cluster.run(manifest("p", one, volumes=volumes, restartPolicy="Never"))
    done = await cluster.phase("p", "Succeeded", "Failed")
    assert ended(done)["exitCode"] == 0
    await cluster.delete("p", grace=0)
    directory = cluster.settings.data_dir / "pods" / created["metadata"]["uid"]
    await wait_for(lambda: not directory.exists())


async def test_restart_backoff_is_reported_by_an_event(cluster: AgentCluster) -> None:
    await cluster.run(manifest("p", shell("exit 1")))
    created = await cluster.pod("p")
    event = await cluster.wait_event("p", "BackOff")
    where = f"p_{cluster.namespace}({created['metadata']['uid']})"
    assert event["message"] == f"Back-off restarting failed container c in pod {where}"
    assert event["type"] == "Warning"
    await cluster.delete("p", grace=0)


async def test_pod_waits_for_a_missing_config_map(
    cluster: AgentCluster,
) -> None:
    volumes = [{"name": "m", "configMap": {"name": "config"}}]
    await cluster.run(manifest("p", shell("exit 0"), restartPolicy="Never", volumes=volumes))
    event = await cluster.wait_event("p", "FailedMount")
    assert event["type"] == "Warning"
    assert 'configmap "config" not found' in event["message"]
    waiting = await cluster.wait_pod("p", lambda pod: pod["status"].get("containerStatuses"))
    state = waiting["status"]["containerStatuses"][0]["state"]
    assert state["waiting"]["reason"] == "ContainerCreating"
    assert waiting["status"]["phase"] == "Pending"
    await cluster.create({"metadata": {"name": "config"}, "data": {}}, CONFIGMAPS)
    await cluster.phase("p", "Succeeded")


async def test_a_missing_key_in_the_environment_is_a_configuration_error(
    cluster: AgentCluster,
) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]
    await cluster.run(manifest("p", shell("exit 0", env=env)))
    pod = await cluster.wait_pod(
        "p",
        lambda pod: "CreateContainerConfigError" in str(pod["status"].get("containerStatuses")),
    )
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting["message"] == 'secret "no" not found'


async def test_pod_runs_as_the_user_of_its_security_context(cluster: AgentCluster) -> None:
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox pods run as the agent's user")
    script = "id -un; id -u; id -g; pwd -P; cd; pwd; touch mine && ls; id -un 0"
    default = shell(script)
    other = shell("id -u; id -g", name="d", securityContext={"runAsUser": 0, "runAsGroup": 7})
    shared = {"runAsUser": 4321, "runAsGroup": 1234}
    pod = manifest("p", default, other, restartPolicy="Never", securityContext=shared)
    await cluster.run(pod)
    await cluster.phase("p", "Succeeded")
    shown = ["pod", "4321", "1234", "/", "/home/pod", "mine", "root"]
    assert (await cluster.logs("p", "?container=c")).split() == shown
    assert (await cluster.logs("p", "?container=d")).split() == ["0", "7"]


async def test_run_as_non_root_is_enforced(cluster: AgentCluster) -> None:
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox pods run as the agent's user")
    never = {"runAsNonRoot": True}
    await cluster.run(
        manifest("some", shell("id -u"), restartPolicy="Never", securityContext=never)
    )
    root = shell("id -u", securityContext={"runAsUser": 0})
    await cluster.run(manifest("root", root, restartPolicy="Never", securityContext=never))
    await cluster.phase("some", "Succeeded")
    assert await cluster.logs("some") == "1000\n"
    pod = await cluster.wait_pod(
        "root",
        lambda pod: "CreateContainerConfigError" in str(pod["status"].get("containerStatuses")),
    )
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    assert "breaks non-root policy" in waiting["message"]


async def test_failed_init_container_fails_the_pod(
    cluster: AgentCluster,
) -> None:
    inits = [shell("echo one", name="i1"), shell("exit 4", name="i2")]
    await cluster.run(manifest("p", shell("exit 0"), restartPolicy="Never", initContainers=inits))
    pod = await cluster.phase("p", "Succeeded", "Failed")
    assert pod["status"]["phase"] == "Failed"
    first, second = pod["status"]["initContainerStatuses"]
    assert first["state"]["terminated"]["reason"] == "Completed"
    assert second["state"]["terminated"]["exitCode"] == 4
    assert await cluster.logs("p", "?container=i1") == "one\n"


async def test_logs_can_be_filtered_and_followed(cluster: AgentCluster) -> None:
    script = "for i in 1 2 3; do echo line $i; done; echo bad >&2; sleep 0.3; echo last"
    await cluster.run(manifest("p", shell(script), restartPolicy="Never"))
    await cluster.phase("p", "Running", "Succeeded")
    whole = (await cluster.logs("p", "?follow=true")).splitlines(keepends=True)
    # The two streams are logged in the order in which the shim reads them.
    assert [line for line in whole if line != "bad\n"] == [
        "line 1\n", "line 2\n", "line 3\n", "last\n",
    ]  # fmt: skip
    assert len(whole) == 5
    assert await cluster.logs("p", "?tailLines=2") == "".join(whole[-2:])
    assert await cluster.logs("p", "?tailLines=0") == ""
    assert await cluster.logs("p", "?limitBytes=8") == "".join(whole)[:8]
    assert await cluster.logs("p", "?sinceTime=2100-01-01T00:00:00Z") == ""
    stamped = (await cluster.logs("p", "?timestamps=true&tailLines=1")).split(" ", 1)
    assert stamped[1] == whole[-1]
    assert stamped[0].endswith("Z")
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/p/log?previous=true"
    refused = await cluster.server.request("GET", path)
    assert refused.status == 400
    assert "previous terminated container" in refused.body["message"]


async def test_only_the_logs_of_the_current_and_the_previous_run_are_kept(
    cluster: AgentCluster,
) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    script = (
        "R=$BATHOLITH_ROOT/data; echo run; test -f $R/y && sleep 60; test -f $R/x && touch $R/y; "
        "touch $R/x; echo before"
    )
    volumes = [{"name": "data", "emptyDir": {}}]
    await cluster.run(manifest("p", shell(script, volumeMounts=mounts), volumes=volumes))
    pod = await cluster.wait_pod(
        "p",
        lambda pod: (
            pod["status"].get("phase") == "Running"
            and pod["status"]["containerStatuses"][0]["restartCount"] == 2
        ),
    )
    assert await cluster.logs("p", "?previous=true") == "run\nbefore\n"
    logs = PodDir.of(cluster.settings.data_dir, decode_pod(pod)).logs / "c"
    assert sorted(each.name for each in logs.iterdir()) == ["1.log", "2.log"]


async def test_deleted_pod_gets_sigterm_then_sigkill_after_its_grace_period(
    cluster: AgentCluster,
) -> None:
    kind = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    deaf = "trap '' TERM; echo up; while :; do sleep 0.02; done"
    for name, script in (("kind", kind), ("deaf", deaf)):
        await cluster.run(manifest(name, shell(script), restartPolicy="Never"))
    ends: dict[str, Json] = {}

    for name, grace in (("kind", 60), ("deaf", 1)):
        runs = await cluster.phase(name, "Running")
        await cluster.wait_log(name, "up")
        await cluster.delete(name, grace=grace)
        await cluster.wait_pod_deleted(name)
        since = runs["metadata"]["resourceVersion"]
        ends[name] = await cluster.phase(name, "Succeeded", "Failed", since=since)
    assert (ends["kind"]["status"]["phase"], ended(ends["kind"])["exitCode"]) == (
        "Succeeded",
        0,
    )
    assert (ends["deaf"]["status"]["phase"], ended(ends["deaf"])["exitCode"]) == ("Failed", 137)
    await wait_for(lambda: not pod_dirs(cluster))


async def test_force_deleted_pod_is_killed_in_the_background(
    cluster: AgentCluster,
) -> None:
    await cluster.run(manifest("p", shell("echo up; sleep 60")))
    await cluster.phase("p", "Running")
    await cluster.delete("p", grace=0)
    await cluster.wait_pod_deleted("p")
    await wait_for(lambda: not pod_dirs(cluster))


async def test_active_deadline_terminates_a_pod(cluster: AgentCluster) -> None:
    await cluster.run(manifest("p", shell("sleep 60"), activeDeadlineSeconds=1))
    pod = await cluster.phase("p", "Succeeded", "Failed")
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "DeadlineExceeded")


async def test_peers_resolve_each_other_as_they_start(cluster: AgentCluster) -> None:
    """Three pods behind a headless service like that of the svc plugin."""
    names = [f"job-w-{number}" for number in range(3)]
    script = (
        "H=${BATHOLITH_HOSTS:-/etc/hosts};"
        + "".join(f"until grep -qw {name}.job $H; do sleep 0.02; done;" for name in names)
        + f"grep -w {names[2]}.job.{cluster.namespace}.svc.cluster.local $H | cut -f1; sleep 60"
    )
    service = {
        "metadata": {"name": "job"},
        "spec": {
            "clusterIP": "None",
            "selector": {"volcano.sh/job-name": "job"},
            "ports": [{"port": 1}],
        },
    }
    await cluster.create(service, SERVICES)
    for name in names:
        pod = manifest(name, shell(script), restartPolicy="Never", hostname=name, subdomain="job")
        pod["metadata"]["labels"] = {"volcano.sh/job-name": "job"}
        await cluster.run(pod)
        await cluster.phase(name, "Running")
    addresses = [(await cluster.pod(name))["status"]["podIP"] for name in names]
    assert len(set(addresses)) == 3
    for name in names:
        assert set((await cluster.wait_log(name, "127.")).split()) == {addresses[2]}


async def test_pod_bound_after_its_creation_runs(cluster: AgentCluster) -> None:
    await cluster.create(manifest("p", shell("exit 0"), restartPolicy="Never"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }
    await cluster.client.post(f"/api/v1/namespaces/{cluster.namespace}/pods/p/binding", binding)
    await cluster.phase("p", "Succeeded")


async def test_event_suggests_the_pod_ip_if_a_port_is_in_use(
    cluster: AgentCluster,
) -> None:
    """Pods use the host's network, each with its own loopback address."""
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    listen = (
        "import os, socket, sys; s = socket.socket();"
        "s.bind((os.environ['IP'] if sys.argv[1] == 'own' else '', int(sys.argv[2]))); s.listen()"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for name in ("all", "own"):
            one = container("python3", "-c", listen, name, port, env=env)
            await cluster.run(manifest(name, one, restartPolicy="Never"))
        pod = await cluster.phase("all", "Succeeded", "Failed")
        assert pod["status"]["phase"] == "Failed"
        event = await cluster.wait_event("all", "PortTaken")
        assert event["message"].endswith(pod["status"]["podIP"])
        assert (await cluster.phase("own", "Succeeded", "Failed"))["status"]["phase"] == "Succeeded"


async def test_claim_keeps_its_files_until_it_is_deleted(
    cluster: AgentCluster,
) -> None:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {"metadata": {"name": "data"}, "spec": spec}
    mounts = [{"name": "d", "mountPath": "/d"}]
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]

    async def run(name: str) -> None:
        script = f"ls $BATHOLITH_ROOT/d; touch $BATHOLITH_ROOT/d/{name}"
        one = shell(script, volumeMounts=mounts)
        await cluster.run(manifest(name, one, restartPolicy="Never", volumes=volumes))

    await run("first")
    event = await cluster.wait_event("first", "FailedMount")
    assert 'persistentvolumeclaim "data" not found' in event["message"]
    await cluster.create(claim, PERSISTENTVOLUMECLAIMS)
    await bind_pvc(cluster, "data")
    await cluster.phase("first", "Succeeded")
    await run("second")
    await cluster.phase("second", "Succeeded")
    assert await cluster.logs("second") == "first\n"
    base = cluster.settings.data_dir / "volumes"
    assert len(list(base.glob(f"{cluster.namespace}_*"))) == 1
    for name in ("first", "second"):  # pods that have ended use the claim, too
        await cluster.delete(name)
        await cluster.wait_pod_deleted(name)
    await cluster.client.delete(PERSISTENTVOLUMECLAIMS, "data", namespace=cluster.namespace)
    await wait_for(lambda: not list(base.glob(f"{cluster.namespace}_*")))
    await cluster.create(claim, PERSISTENTVOLUMECLAIMS)
    await bind_pvc(cluster, "data")
    await run("third")
    await cluster.phase("third", "Succeeded")
    assert await cluster.logs("third") == ""


async def test_secrets_are_neither_logged_nor_readable_by_others(
    cluster: AgentCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    env = [{"name": "TEXT", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}]
    await cluster.create({"metadata": {"name": "s"}, "data": {"key": "aHVzaC1odXNo"}}, SECRETS)
    await cluster.run(
        manifest("p", shell("test $TEXT = hush-hush", env=env), restartPolicy="Never")
    )
    await cluster.phase("p", "Succeeded")
    (directory,) = pod_dirs(cluster)
    assert os.stat(directory).st_mode & 0o077 == 0
    assert "hush-hush" not in caplog.text


async def test_termination_message_is_reported(cluster: AgentCluster) -> None:
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox the message file cannot be mounted")
    own = shell("echo gave up > /dev/termination-log; exit 2")
    log = shell(
        "echo from the log; exit 2",
        name="log",
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    await cluster.run(manifest("p", own, log, restartPolicy="Never"))
    pod = await cluster.phase("p", "Succeeded", "Failed")
    assert [ended(pod, 0)["message"], ended(pod, 1)["message"]] == ["gave up\n", "from the log"]


async def test_true_condition_has_no_reason_of_its_earlier_status(
    cluster: AgentCluster,
) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/ok"]}, "periodSeconds": 1}
    await cluster.run(
        manifest("p", shell("sleep 0.5; touch /tmp/ok; sleep 60", readinessProbe=probe))
    )

    def conditions(pod: Json) -> dict[str, Json]:
        return {each["type"]: each for each in pod["status"].get("conditions") or ()}

    def is_ready(value: str) -> Callable[[Json], bool]:
        return lambda pod: conditions(pod).get("Ready", {}).get("status") == value

    waiting = conditions(await cluster.wait_pod("p", is_ready("False")))
    assert waiting["Ready"]["reason"] == "ContainersNotReady"
    ready = conditions(await cluster.wait_pod("p", is_ready("True")))
    for kind in ("Ready", "ContainersReady", "Initialized"):
        assert "reason" not in ready[kind], ready[kind]
        assert "message" not in ready[kind], ready[kind]
    await cluster.delete("p", grace=0)


async def test_a_followed_log_ends_with_its_pod(cluster: AgentCluster) -> None:
    await cluster.run(manifest("p", shell("echo on; exec sleep 60")))
    await cluster.phase("p", "Running")
    url = f"{cluster.server.url}/api/v1/namespaces/{cluster.namespace}/pods/p/log?follow=true"
    who = {"Authorization": f"Bearer {cluster.server.tokens['admin']}"}
    async with (
        asyncio.timeout(DEFAULT_TIMEOUT),
        cluster.server.session.get(url, headers=who) as log,
    ):
        assert await log.content.readline() == b"on\n"
        await cluster.delete("p", grace=0)
        assert await log.content.read() == b""


@pytest.mark.parametrize(
    ("image", "command"), [("nginx", []), ("nginx", ["nginx"]), ("busybox", [])]
)
async def test_condition_and_event_report_a_placeholder(
    cluster: AgentCluster, image: str, command: list[str]
) -> None:
    if command and shutil.which(command[0]):
        pytest.skip("nginx is installed and runs without a placeholder")
    await cluster.run(manifest("p", shell("true", name="own"), container(*command, image=image)))

    def sign(pod: Json) -> Json:
        found = pod["status"].get("conditions") or ()
        return next((each for each in found if each["type"] == "batholith.io/Placeholder"), {})

    shown = sign(await cluster.wait_pod("p", sign))
    assert (shown["status"], shown["reason"]) == ("True", "ProgramNotRun")
    assert f"c ({image})" in shown["message"]
    assert "own" not in shown["message"]
    event = await cluster.wait_event("p", "Placeholder")
    assert event["type"] == "Warning"
    assert f"image {image}" in event["message"]
    await cluster.delete("p", grace=0)


async def test_pod_with_a_program_has_no_placeholder_condition(cluster: AgentCluster) -> None:
    await cluster.run(manifest("p", shell("exit 0"), restartPolicy="Never"))
    pod = await cluster.phase("p", "Succeeded")
    assert "batholith.io/Placeholder" not in {c["type"] for c in pod["status"]["conditions"]}
