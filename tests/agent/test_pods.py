"""Pods on a real node, as users see them through the API."""

import asyncio
import os
import shutil
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.agent import container, manifest
from support.agent_cluster import NODE, World, bind_claim, world
from support.api_servers import Servers, add_namespace
from support.polling import PATIENCE, until

from batholith.agent.pods.records import PodDir
from batholith.agent.runtime.runs import IsolationLevel, detect_isolation
from batholith.model.names import (
    CONFIGMAPS,
    PERSISTENTVOLUMECLAIMS,
    SECRETS,
    SERVICES,
)

Json = dict[str, Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """One server and one agent for all tests of this module."""
    async with world(servers, tmp_path_factory.mktemp("world")) as made, made.agent():
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def w(shared: World) -> World:
    """The shared cluster, in a namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await add_namespace(shared.server, name)
    return replace(shared, namespace=name)


def shell(script: str, *, name: str = "c", **more: Any) -> Json:
    return container("sh", "-c", script, name=name, **more)


def ended(pod: Json, at: int = 0) -> Json:
    """How a container ended; a server may leave out a code of 0."""
    return {"exitCode": 0, **pod["status"]["containerStatuses"][at]["state"]["terminated"]}


def folders(w: World) -> list[Path]:
    """What is on disk for the pods of the test."""
    held = PodDir.all(w.settings.data_dir)
    return [folder.path for folder, record in held if record.namespace == w.namespace]


async def test_pods_end_as_their_containers_do(w: World) -> None:
    await w.run(manifest("good", shell("exit 0"), restartPolicy="Never"))
    await w.run(manifest("bad", shell("exit 3"), shell("exit 0", name="d"), restartPolicy="Never"))
    await w.run(manifest("none", container("no-such-program"), restartPolicy="Never"))
    good = await w.phase("good", "Succeeded", "Failed")
    assert (good["status"]["phase"], ended(good)["reason"]) == ("Succeeded", "Completed")
    bad = await w.phase("bad", "Succeeded", "Failed")
    assert (bad["status"]["phase"], ended(bad)["exitCode"]) == ("Failed", 3)
    assert ended(bad, 1)["exitCode"] == 0
    none = await w.phase("none", "Succeeded", "Failed")
    assert (ended(none)["exitCode"], ended(none)["reason"]) == (128, "StartError")
    event = await w.event("none", "Failed")
    assert "no-such-program" in event["message"]


async def test_a_failing_container_is_restarted_until_it_succeeds(w: World) -> None:
    script = "n=$(cat /data/n 2>/dev/null || echo 0); echo $((n+1)) > /data/n; test $n = 2"
    mounts = [{"name": "data", "mountPath": "/data"}]
    pod = manifest(
        "p",
        shell(script, volumeMounts=mounts),
        restartPolicy="OnFailure",
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    if detect_isolation().isolation is IsolationLevel.PLAIN:
        pod["spec"]["containers"][0]["command"][2] = script.replace("/data", "$BATHOLITH_ROOT/data")
    await w.run(pod)
    done = await w.phase("p", "Succeeded", "Failed")
    assert done["status"]["phase"] == "Succeeded"
    assert done["status"]["containerStatuses"][0]["restartCount"] == 2


async def test_images_without_a_command_behave_as_their_kind(w: World) -> None:
    await w.run(manifest("web", container(image="nginx")))
    await w.run(manifest("box", container(image="busybox:latest"), restartPolicy="Never"))
    assert (await w.phase("box", "Succeeded", "Failed"))["status"]["phase"] == "Succeeded"
    web = await w.phase("web", "Running")
    conditions = {c["type"]: c["status"] for c in web["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert web["status"]["podIP"].startswith("127.")


async def test_a_container_that_takes_too_much_memory_is_killed(w: World) -> None:
    take = "import sys, time; x = b'1' * (int(sys.argv[1]) << 20); print('up'); time.sleep(60)"
    limits = {"limits": {"memory": "128Mi"}}
    for name, amount in (("greedy", "256"), ("modest", "8")):
        one = container("python3", "-u", "-c", take, amount, resources=limits)
        await w.run(manifest(name, one, restartPolicy="Never"))
    greedy = await w.phase("greedy", "Succeeded", "Failed")
    assert (ended(greedy)["exitCode"], ended(greedy)["reason"]) == (137, "OOMKilled")
    assert "memory" in (await w.event("greedy", "OOMKilling"))["message"]
    await w.phase("modest", "Running")
    await w.log_with("modest", "up")
    await w.delete("modest", grace=0)


async def test_a_container_that_keeps_failing_is_said_to_wait(w: World) -> None:
    await w.run(manifest("p", shell("exit 1")))
    made = await w.pod("p")
    event = await w.event("p", "BackOff")
    where = f"p_{w.namespace}({made['metadata']['uid']})"
    assert event["message"] == f"Back-off restarting failed container c in pod {where}"
    assert event["type"] == "Warning"
    await w.delete("p", grace=0)


async def test_a_missing_config_map_keeps_a_pod_waiting_until_it_comes(w: World) -> None:
    volumes = [{"name": "m", "configMap": {"name": "late"}}]
    await w.run(manifest("p", shell("exit 0"), restartPolicy="Never", volumes=volumes))
    event = await w.event("p", "FailedMount")
    assert event["type"] == "Warning"
    assert 'configmap "late" not found' in event["message"]
    waiting = await w.when("p", lambda pod: pod["status"].get("containerStatuses"))
    state = waiting["status"]["containerStatuses"][0]["state"]
    assert state["waiting"]["reason"] == "ContainerCreating"
    assert waiting["status"]["phase"] == "Pending"
    await w.create({"metadata": {"name": "late"}, "data": {}}, CONFIGMAPS)
    await w.phase("p", "Succeeded")


async def test_a_missing_key_in_the_environment_is_a_configuration_error(w: World) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]
    await w.run(manifest("p", shell("exit 0", env=env)))
    pod = await w.when(
        "p",
        lambda pod: "CreateContainerConfigError" in str(pod["status"].get("containerStatuses")),
    )
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting["message"] == 'secret "no" not found'


async def test_a_pod_runs_as_the_user_that_it_asks_for(w: World) -> None:
    if detect_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox pods run as the agent's user")
    script = "id -un; id -u; id -g; pwd -P; cd; pwd; touch mine && ls; id -un 0"
    somebody = shell(script)
    other = shell("id -u; id -g", name="d", securityContext={"runAsUser": 0, "runAsGroup": 7})
    shared = {"runAsUser": 4321, "runAsGroup": 1234}
    pod = manifest("p", somebody, other, restartPolicy="Never", securityContext=shared)
    await w.run(pod)
    await w.phase("p", "Succeeded")
    shown = ["pod", "4321", "1234", "/", "/home/pod", "mine", "root"]
    assert (await w.logs("p", "?container=c")).split() == shown
    assert (await w.logs("p", "?container=d")).split() == ["0", "7"]


async def test_a_pod_that_must_not_be_root_is_not(w: World) -> None:
    if detect_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox pods run as the agent's user")
    never = {"runAsNonRoot": True}
    await w.run(manifest("some", shell("id -u"), restartPolicy="Never", securityContext=never))
    root = shell("id -u", securityContext={"runAsUser": 0})
    await w.run(manifest("root", root, restartPolicy="Never", securityContext=never))
    await w.phase("some", "Succeeded")
    assert await w.logs("some") == "1000\n"
    pod = await w.when(
        "root",
        lambda pod: "CreateContainerConfigError" in str(pod["status"].get("containerStatuses")),
    )
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    assert "breaks non-root policy" in waiting["message"]


async def test_init_containers_go_first_and_their_failure_is_the_pod_s(w: World) -> None:
    inits = [shell("echo one", name="i1"), shell("exit 4", name="i2")]
    await w.run(manifest("p", shell("exit 0"), restartPolicy="Never", initContainers=inits))
    pod = await w.phase("p", "Succeeded", "Failed")
    assert pod["status"]["phase"] == "Failed"
    first, second = pod["status"]["initContainerStatuses"]
    assert first["state"]["terminated"]["reason"] == "Completed"
    assert second["state"]["terminated"]["exitCode"] == 4
    assert await w.logs("p", "?container=i1") == "one\n"


async def test_logs_can_be_narrowed_and_followed(w: World) -> None:
    script = "for i in 1 2 3; do echo line $i; done; echo bad >&2; sleep 0.3; echo last"
    await w.run(manifest("p", shell(script), restartPolicy="Never"))
    await w.phase("p", "Running", "Succeeded")
    whole = (await w.logs("p", "?follow=true")).splitlines(keepends=True)
    # Two streams have no order but that in which they were read.
    assert [line for line in whole if line != "bad\n"] == [
        "line 1\n", "line 2\n", "line 3\n", "last\n",
    ]  # fmt: skip
    assert len(whole) == 5
    assert await w.logs("p", "?tailLines=2") == "".join(whole[-2:])
    assert await w.logs("p", "?tailLines=0") == ""
    assert await w.logs("p", "?limitBytes=8") == "".join(whole)[:8]
    assert await w.logs("p", "?sinceTime=2100-01-01T00:00:00Z") == ""
    stamped = (await w.logs("p", "?timestamps=true&tailLines=1")).split(" ", 1)
    assert stamped[1] == whole[-1]
    assert stamped[0].endswith("Z")
    path = f"/api/v1/namespaces/{w.namespace}/pods/p/log?previous=true"
    refused = await w.server.request("GET", path)
    assert refused.status == 400
    assert "previous terminated container" in refused.body["message"]


async def test_the_run_before_keeps_its_log(w: World) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    script = (
        "R=$BATHOLITH_ROOT; echo run; test -f $R/data/x && sleep 60; touch $R/data/x; echo first"
    )
    volumes = [{"name": "data", "emptyDir": {}}]
    await w.run(manifest("p", shell(script, volumeMounts=mounts), volumes=volumes))
    await w.when(
        "p",
        lambda pod: (
            pod["status"].get("phase") == "Running"
            and pod["status"]["containerStatuses"][0]["restartCount"] == 1
        ),
    )
    assert await w.logs("p", "?previous=true") == "run\nfirst\n"


async def test_a_deleted_pod_is_asked_first_and_killed_when_its_grace_is_over(
    w: World,
) -> None:
    kind = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    deaf = "trap '' TERM; echo up; while :; do sleep 0.02; done"
    for name, script in (("kind", kind), ("deaf", deaf)):
        await w.run(manifest(name, shell(script), restartPolicy="Never"))
    ends: dict[str, Json] = {}

    for name, grace in (("kind", 60), ("deaf", 1)):
        runs = await w.phase(name, "Running")
        await w.log_with(name, "up")
        await w.delete(name, grace=grace)
        await w.gone(name)
        since = runs["metadata"]["resourceVersion"]
        ends[name] = await w.phase(name, "Succeeded", "Failed", since=since)
    assert (ends["kind"]["status"]["phase"], ended(ends["kind"])["exitCode"]) == (
        "Succeeded",
        0,
    )
    assert (ends["deaf"]["status"]["phase"], ended(ends["deaf"])["exitCode"]) == ("Failed", 137)
    await until(lambda: not folders(w))


async def test_a_pod_that_is_removed_by_force_is_killed_in_the_background(
    w: World,
) -> None:
    await w.run(manifest("p", shell("echo up; sleep 60")))
    await w.phase("p", "Running")
    await w.delete("p", grace=0)
    await w.gone("p")
    await until(lambda: not folders(w))


async def test_a_deadline_ends_a_pod(w: World) -> None:
    await w.run(manifest("p", shell("sleep 60"), activeDeadlineSeconds=1))
    pod = await w.phase("p", "Succeeded", "Failed")
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "DeadlineExceeded")


async def test_peers_find_one_another_by_name_as_they_come(w: World) -> None:
    """Three pods behind a headless service, as the svc plugin makes it."""
    names = [f"job-w-{number}" for number in range(3)]
    script = (
        "H=${BATHOLITH_HOSTS:-/etc/hosts};"
        + "".join(f"until grep -qw {name}.job $H; do sleep 0.02; done;" for name in names)
        + f"grep -w {names[2]}.job.{w.namespace}.svc.cluster.local $H | cut -f1; sleep 60"
    )
    service = {
        "metadata": {"name": "job"},
        "spec": {
            "clusterIP": "None",
            "selector": {"volcano.sh/job-name": "job"},
            "ports": [{"port": 1}],
        },
    }
    await w.create(service, SERVICES)
    for name in names:
        pod = manifest(name, shell(script), restartPolicy="Never", hostname=name, subdomain="job")
        pod["metadata"]["labels"] = {"volcano.sh/job-name": "job"}
        await w.run(pod)
        await w.phase(name, "Running")
    addresses = [(await w.pod(name))["status"]["podIP"] for name in names]
    assert len(set(addresses)) == 3
    for name in names:
        assert set((await w.log_with(name, "127.")).split()) == {addresses[2]}


async def test_a_name_bound_later_runs_too(w: World) -> None:
    await w.create(manifest("p", shell("exit 0"), restartPolicy="Never"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }
    await w.client.post(f"/api/v1/namespaces/{w.namespace}/pods/p/binding", binding)
    await w.phase("p", "Succeeded")


async def test_a_pod_that_finds_its_port_taken_is_told_of_another_address(w: World) -> None:
    """Pods share the machine's network; each has an address of its own there."""
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
            await w.run(manifest(name, one, restartPolicy="Never"))
        pod = await w.phase("all", "Succeeded", "Failed")
        assert pod["status"]["phase"] == "Failed"
        event = await w.event("all", "PortTaken")
        assert event["message"].endswith(pod["status"]["podIP"])
        assert (await w.phase("own", "Succeeded", "Failed"))["status"]["phase"] == "Succeeded"


async def test_a_claim_keeps_its_files_from_pod_to_pod_until_it_is_deleted(w: World) -> None:
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
        await w.run(manifest(name, one, restartPolicy="Never", volumes=volumes))

    await run("first")
    event = await w.event("first", "FailedMount")
    assert 'persistentvolumeclaim "data" not found' in event["message"]
    await w.create(claim, PERSISTENTVOLUMECLAIMS)
    await bind_claim(w, "data")
    await w.phase("first", "Succeeded")
    await run("second")
    await w.phase("second", "Succeeded")
    assert await w.logs("second") == "first\n"
    base = w.settings.data_dir / "volumes"
    assert len(list(base.glob(f"{w.namespace}_*"))) == 1
    # On the real server nobody takes its protection off.
    free = {"metadata": {"finalizers": None}}
    await w.client.patch(PERSISTENTVOLUMECLAIMS, "data", free, namespace=w.namespace)
    await w.client.delete(PERSISTENTVOLUMECLAIMS, "data", namespace=w.namespace)
    await until(lambda: not list(base.glob(f"{w.namespace}_*")))
    await w.create(claim, PERSISTENTVOLUMECLAIMS)
    await bind_claim(w, "data")
    await run("third")
    await w.phase("third", "Succeeded")
    assert await w.logs("third") == ""


async def test_secrets_stay_out_of_logs_and_reach(
    w: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    env = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}]
    await w.create({"metadata": {"name": "s"}, "data": {"key": "aHVzaC1odXNo"}}, SECRETS)
    await w.run(manifest("p", shell("test $WORD = hush-hush", env=env), restartPolicy="Never"))
    await w.phase("p", "Succeeded")
    (folder,) = folders(w)
    assert os.stat(folder).st_mode & 0o077 == 0
    assert "hush-hush" not in caplog.text


async def test_last_words_become_the_termination_message(w: World) -> None:
    if detect_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox the message file is out of reach")
    own = shell("echo gave up > /dev/termination-log; exit 2")
    log = shell(
        "echo from the log; exit 2",
        name="log",
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    await w.run(manifest("p", own, log, restartPolicy="Never"))
    pod = await w.phase("p", "Succeeded", "Failed")
    assert [ended(pod, 0)["message"], ended(pod, 1)["message"]] == ["gave up\n", "from the log"]


async def test_a_condition_that_holds_loses_the_reason_why_it_did_not(w: World) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/ok"]}, "periodSeconds": 1}
    await w.run(manifest("p", shell("sleep 0.5; touch /tmp/ok; sleep 60", readinessProbe=probe)))

    def told(pod: Json) -> dict[str, Json]:
        return {each["type"]: each for each in pod["status"].get("conditions") or ()}

    def is_ready(value: str) -> Callable[[Json], bool]:
        return lambda pod: told(pod).get("Ready", {}).get("status") == value

    waiting = told(await w.when("p", is_ready("False")))
    assert waiting["Ready"]["reason"] == "ContainersNotReady"
    ready = told(await w.when("p", is_ready("True")))
    for kind in ("Ready", "ContainersReady", "Initialized"):
        assert "reason" not in ready[kind], ready[kind]
        assert "message" not in ready[kind], ready[kind]
    await w.delete("p", grace=0)


async def test_a_followed_log_ends_with_its_pod(w: World) -> None:
    await w.run(manifest("p", shell("echo on; exec sleep 60")))
    await w.phase("p", "Running")
    url = f"{w.server.url}/api/v1/namespaces/{w.namespace}/pods/p/log?follow=true"
    who = {"Authorization": f"Bearer {w.server.tokens['admin']}"}
    async with asyncio.timeout(PATIENCE), w.server.session.get(url, headers=who) as log:
        assert await log.content.readline() == b"on\n"
        await w.delete("p", grace=0)
        assert await log.content.read() == b""


@pytest.mark.parametrize(
    ("image", "command"), [("nginx", []), ("nginx", ["nginx"]), ("busybox", [])]
)
async def test_a_pod_says_that_it_runs_no_program_of_its_image(
    w: World, image: str, command: list[str]
) -> None:
    if command and shutil.which(command[0]):
        pytest.skip("nginx is installed: it is run, not stood in for")
    await w.run(manifest("p", shell("true", name="own"), container(*command, image=image)))

    def sign(pod: Json) -> Json:
        found = pod["status"].get("conditions") or ()
        return next((each for each in found if each["type"] == "batholith.io/Placeholder"), {})

    shown = sign(await w.when("p", sign))
    assert (shown["status"], shown["reason"]) == ("True", "ProgramNotRun")
    assert f"c ({image})" in shown["message"]
    assert "own" not in shown["message"]
    event = await w.event("p", "Placeholder")
    assert event["type"] == "Warning"
    assert f"image {image}" in event["message"]
    await w.delete("p", grace=0)


async def test_a_pod_with_a_program_has_no_such_sign(w: World) -> None:
    await w.run(manifest("p", shell("exit 0"), restartPolicy="Never"))
    pod = await w.phase("p", "Succeeded")
    assert "batholith.io/Placeholder" not in {c["type"] for c in pod["status"]["conditions"]}
