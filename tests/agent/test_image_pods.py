"""Pods that run images: root file system, process, status; and when they run programs instead."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster, Json, agent_cluster
from support.api_servers import ServerFactory
from support.images import Layer, busybox, image, write_layout
from support.polling import wait_for
from support.registry_server import RegistryServer, registry_server
from support.sandbox import detected_isolation

from batholith.local.agent.images import archives
from batholith.local.agent.images.errors import ImageError
from batholith.local.agent.images.manager import RunMode
from batholith.local.agent.images.puller import Registry
from batholith.local.agent.images.store import ImageStore, StoredImage
from batholith.local.agent.pods.image_use import image_uses
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.model.names import CONFIGMAPS, NODES, PODS, SECRETS

pytestmark = [pytest.mark.process, pytest.mark.cluster]

NAME = "registry.example/app:1"


@pytest.fixture
async def stopped(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[AgentCluster]:
    """A cluster without an agent."""
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox no images are run")
    async with agent_cluster(servers, tmp_path) as created:
        yield created


@pytest.fixture
async def cluster(stopped: AgentCluster) -> AsyncIterator[AgentCluster]:
    async with stopped.agent():
        yield stopped


Load = Callable[..., StoredImage]


@pytest.fixture
def load(stopped: AgentCluster, tmp_path: Path) -> Load:
    """Store an image with busybox, more layers, and a configuration."""

    def load_image(*layers: Layer, name: str = NAME, **config: Any) -> StoredImage:
        files = image([busybox(), *layers], config)
        layout = write_layout(tmp_path / f"layout-{len(list(tmp_path.iterdir()))}", name, files)
        return archives.load(ImageStore(stopped.settings.data_dir), layout)[0]

    return load_image


def pod(name: str, *command: str, image: str = NAME, spec: Any = None, **more: Any) -> Json:
    """A pod of one container that runs once."""
    one = container(*command, image=image, **more)
    return manifest(name, one, restartPolicy="Never", **(spec or {}))


async def output(cluster: AgentCluster, body: Json) -> list[str]:
    """Run a pod to its end, and return the lines of its log."""
    name = body["metadata"]["name"]
    await cluster.run(body)
    ended = await cluster.phase(name, "Succeeded", "Failed")
    log = await cluster.logs(name)
    assert ended["status"]["phase"] == "Succeeded", log
    return log.splitlines()


async def waiting(cluster: AgentCluster, name: str, reason: str) -> str:
    """Wait until a container waits for *reason*; return the message."""

    def state(found: Json) -> Json:
        statuses = found["status"].get("containerStatuses") or [{}]
        result: Json = statuses[0].get("state", {}).get("waiting") or {}
        return result

    found = await cluster.wait_pod(name, lambda seen: state(seen).get("reason") == reason)
    return str(state(found)["message"])


async def test_pod_runs_the_command_of_its_image(cluster: AgentCluster, load: Load) -> None:
    load(
        Layer().file("hello", "from the image\n"), Entrypoint=["/bin/cat"], Cmd=["/hello"],
        Env=["A=1"], Healthcheck={"Test": ["CMD", "false"]},
    )  # fmt: skip
    assert await output(cluster, pod("p")) == ["from the image"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "entry cmd"),
        ({"args": ["$(A)"]}, "entry one"),
        ({"command": ["/bin/echo", "own"]}, "own"),
        ({"command": ["/bin/echo"], "args": ["own", "args"]}, "own args"),
    ],
)
async def test_command_and_arguments_replace_those_of_the_image(
    cluster: AgentCluster, load: Load, fields: Json, expected: str
) -> None:
    load(Entrypoint=["/bin/echo", "entry"], Cmd=["cmd"], Env=["A=image"])
    env = [{"name": "A", "value": "one"}]
    assert await output(cluster, pod("p", env=env, **fields)) == [expected]


async def test_pod_sees_the_files_of_its_image_only(cluster: AgentCluster, load: Load) -> None:
    load(Layer().file("etc/.wh.group").file("data/x", "1"))
    script = "ls / /data; cat /etc/group; true"
    without_token = {"automountServiceAccountToken": False}
    found = await output(cluster, pod("p", "sh", "-c", script, spec=without_token))
    assert set(found) - {"", "/:", "/data:"} == {
        "bin", "data", "dev", "etc", "proc", "run", "sys", "tmp", "x",
        "cat: can't open '/etc/group': No such file or directory",
    }  # fmt: skip


async def test_environment_working_directory_and_mounts(cluster: AgentCluster, load: Load) -> None:
    load(Env=["A=image", "B=image", "PATH=/bin"], WorkingDir="/new/for/it")
    await cluster.create({"metadata": {"name": "cm"}, "data": {"key": "value"}}, CONFIGMAPS)
    body = pod(
        "p", "sh", "-c",
        "echo $A $B $HOME; pwd; touch here; cat /deep/er/key; echo; cat /etc/hostname; "
        "grep -c p /etc/hosts || cat /etc/hosts; touch /deep/er/key",
        env=[{"name": "B", "value": "pod"}],
        volumeMounts=[{"name": "v", "mountPath": "/deep/er"}],
        spec={"volumes": [{"name": "v", "configMap": {"name": "cm"}}]},
    )  # fmt: skip
    await cluster.run(body)
    await cluster.phase("p", "Failed")
    lines = (await cluster.logs("p")).splitlines()
    assert lines[:4] == ["image pod /root", "/new/for/it", "value", "p"]
    assert lines[-1] == "touch: /deep/er/key: Read-only file system"


async def test_writes_stay_in_the_container(cluster: AgentCluster, load: Load) -> None:
    load(Layer().file("file", "1").dir("dir").file("dir/inside", "1"))
    script = "cat /file /dir/inside; echo 2 > /file; rm -r /dir; mkdir /dir; ls /dir; cat /file"
    for name in ("first", "second"):
        assert await output(cluster, pod(name, "sh", "-c", script)) == ["112"]


async def test_what_a_container_wrote_is_removed_with_its_run(
    cluster: AgentCluster, load: Load
) -> None:
    load()
    body = manifest("p", container("sh", "-c", "touch /new; test -e /again; exit 1", image=NAME))
    await cluster.run(body)
    await cluster.wait_pod(
        "p", lambda p: (p["status"].get("containerStatuses") or [{}])[0].get("restartCount", 0) > 1
    )
    runs = sorted(cluster.settings.data_dir.glob("pods/*/containers/c/*/image"))
    assert len(runs) <= 2, "at most the last run's, and that of a run that just began"
    await cluster.delete("p", grace=0)
    await wait_for(lambda: not list(cluster.settings.data_dir.glob("pods/*")))


@pytest.mark.parametrize(
    ("user", "context", "expected"),
    [
        (None, {}, "0 0 /root"),
        ("app", {}, "1234 4321 /home/app"),
        ("1234", {}, "1234 4321 /home/app"),
        ("1234:7", {}, "1234 7 /home/app"),
        ("app:staff", {}, "1234 50 /home/app"),
        ("77", {}, "77 0 /"),
        ("app", {"runAsUser": 5}, "5 0 /"),
        ("app:staff", {"runAsUser": 1234}, "1234 4321 /home/app"),
        ("app", {"runAsGroup": 9}, "1234 9 /home/app"),
        ("1234", {"runAsNonRoot": True}, "1234 4321 /home/app"),
    ],
)
async def test_user_is_the_one_of_the_image_or_the_pod(
    cluster: AgentCluster, load: Load, user: str | None, context: Json, expected: str
) -> None:
    load(User=user)
    body = pod("p", "sh", "-c", "echo $(id -u) $(id -g) $HOME", securityContext=context)
    assert await output(cluster, body) == [expected]


@pytest.mark.parametrize(
    ("user", "context", "message"),
    [
        ("unknown", {}, "user 'unknown' is not in its /etc/passwd"),
        ("app:unknown", {}, "group 'unknown' is not in its /etc/group"),
        ("99999999999", {}, "too large a number"),
        (None, {"runAsNonRoot": True}, "image will run as root"),
        ("0", {"runAsNonRoot": True}, "image will run as root"),
        ("app", {"runAsNonRoot": True}, "non-numeric user ('app'), cannot verify"),
    ],
)
async def test_unusable_user_is_reported(
    cluster: AgentCluster, load: Load, user: str | None, context: Json, message: str
) -> None:
    load(User=user)
    await cluster.run(pod("p", "true", securityContext=context))
    assert message in await waiting(cluster, "p", "CreateContainerConfigError")


async def test_user_of_the_image_reads_tokens_and_writes_volumes(
    cluster: AgentCluster, load: Load
) -> None:
    load(User="1234")
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    body = pod(
        "p", "sh", "-c", "test -s /t/token && touch /e/file /tmp/file && echo done",
        volumeMounts=[{"name": "t", "mountPath": "/t"}, {"name": "e", "mountPath": "/e"}],
        spec={"volumes": [
            {"name": "t", "projected": {"sources": [token]}}, {"name": "e", "emptyDir": {}},
        ]},
    )  # fmt: skip
    assert await output(cluster, body) == ["done"]


async def test_read_only_root_keeps_volumes_of_the_image_writable(
    cluster: AgentCluster, load: Load
) -> None:
    load(Layer().dir("data/v", mode=0o700).file("data/v/seed", "1"), Volumes={"/data/v": {}})
    # One stream: the lines of two streams have no order.
    script = "exec 2>&1; touch /x /data/y; cat /data/v/seed && touch /data/v/new && echo fine"
    context = {"readOnlyRootFilesystem": True}
    found = await output(cluster, pod("p", "sh", "-c", script, securityContext=context))
    assert found[0] == "touch: /x: Read-only file system"
    assert found[1] == "touch: /data/y: Read-only file system"
    assert "".join(found[2:]) == "1fine"


async def test_image_without_a_command_is_reported(cluster: AgentCluster, load: Load) -> None:
    load()
    await cluster.run(pod("p"))
    assert "no command specified" in await waiting(cluster, "p", "CreateContainerConfigError")


async def test_missing_program_fails_the_container(cluster: AgentCluster, load: Load) -> None:
    load()
    await cluster.run(pod("p", "python3", "-c", "1"))
    ended = await cluster.phase("p", "Failed")
    [status] = ended["status"]["containerStatuses"]
    assert status["state"]["terminated"]["reason"] == "StartError"
    assert 'exec: "python3": No such file' in status["state"]["terminated"]["message"]


async def test_status_and_node_name_the_image(stopped: AgentCluster, load: Load) -> None:
    stored = load(name="docker.io/library/app:2")
    async with stopped.agent():
        await stopped.run(pod("p", "sleep", "60", image="app:2"))
        running = await stopped.phase("p", "Running")
        [status] = running["status"]["containerStatuses"]
        assert status["image"] == "docker.io/library/app:2"
        assert status["imageID"] == stored.image_id
        conditions = {each["type"] for each in running["status"]["conditions"]}
        assert "batholith.io/Placeholder" not in conditions
        message = 'Container image "app:2" already present on machine'
        await stopped.wait_event("p", "Pulled", message)
        node = await stopped.client.get(NODES, stopped.settings.node_name, view=dict)
        assert node["metadata"]["labels"]["batholith.io/pods"] == "auto"
        assert node["status"]["images"] == [
            {"names": sorted([stored.name, stored.image_id]), "sizeBytes": stored.size}
        ]
        await stopped.delete("p", grace=0)


async def test_next_agent_adopts_a_container_with_its_image(
    stopped: AgentCluster, load: Load
) -> None:
    stored = load()
    async with stopped.agent():
        await stopped.run(pod("p", "sleep", "60"))
        before = await stopped.phase("p", "Running")
    async with stopped.agent():
        await asyncio.sleep(0)
        after = await stopped.phase("p", "Running")
        assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
        uses = list(image_uses(stopped.settings.data_dir))
        assert [(use.pod, use.image, use.layers) for use in uses] == [
            ("default/p", NAME, stored.layers)
        ]
        await stopped.delete("p", grace=0)
        await stopped.wait_pod_deleted("p")


async def test_image_in_use_is_not_removed(cluster: AgentCluster, load: Load) -> None:
    stored = load()
    store = ImageStore(cluster.settings.data_dir)
    await cluster.run(pod("p", "sleep", "60"))
    await cluster.phase("p", "Running")

    def uses() -> Any:
        return image_uses(cluster.settings.data_dir)

    with pytest.raises(ImageError, match="in use by default/p"):
        store.remove(stored.name, uses=uses)
    load(Layer().file("newer"))
    store.collect(uses)
    assert all(map(store.layer, stored.layers)), "a replaced image still runs"
    await cluster.delete("p", grace=0)
    await wait_for(lambda: not list(uses()))
    store.collect(uses)
    assert store.layer(stored.layers[0]) is not None, "of the newer image"


async def test_probes_run_programs_of_the_image(cluster: AgentCluster, load: Load) -> None:
    load(Layer().file("bin/probe", "#!/bin/sh\ntest -e /ready && id -u > /probed\n", mode=0o755))
    probe = {"exec": {"command": ["probe"]}, "periodSeconds": 1}
    await cluster.run(pod("p", "sh", "-c", "touch /ready; sleep 60", readinessProbe=probe))
    await cluster.wait_pod(
        "p", lambda p: (p["status"].get("containerStatuses") or [{}])[0].get("ready")
    )
    await cluster.delete("p", grace=0)


# --- images or processes --------------------------------------------------------------------


async def test_without_a_stored_image_a_pod_runs_programs_of_the_machine(
    cluster: AgentCluster,
) -> None:
    await cluster.run(pod("p", "sh", "-c", "echo $((1 + 1))"))
    ended = await cluster.phase("p", "Succeeded")
    assert ended["status"]["containerStatuses"][0]["imageID"] == ""
    await cluster.wait_event("p", "Started", f"a process of this machine, without its image {NAME}")


async def test_mode_processes_ignores_stored_images(stopped: AgentCluster, load: Load) -> None:
    load(Layer().file("only-here"))
    async with stopped.agent(run_mode=RunMode.PROCESSES):
        node = await stopped.client.get(NODES, stopped.settings.node_name, view=dict)
        assert node["metadata"]["labels"]["batholith.io/pods"] == "processes"
        assert await output(stopped, pod("p", "sh", "-c", "test ! -e /only-here")) == []


@pytest.mark.parametrize(
    ("policy", "reason", "message"),
    [
        ("Never", "ErrImageNeverPull", "is not present with pull policy of Never"),
        ("IfNotPresent", "ErrImagePull", "127.0.0.1:1: "),
    ],
)
async def test_mode_images_runs_nothing_without_the_image(
    stopped: AgentCluster, policy: str, reason: str, message: str
) -> None:
    async with stopped.agent(run_mode=RunMode.IMAGES):
        # Nothing listens there.
        body = pod("p", "sleep", "60", image="127.0.0.1:1/app:1", imagePullPolicy=policy)
        await stopped.run(body)
        assert message in await waiting(stopped, "p", reason)
        await stopped.wait_event("p", "Failed", f"Error: {reason}")


async def test_container_starts_once_its_image_is_loaded(stopped: AgentCluster, load: Load) -> None:
    async with stopped.agent(run_mode=RunMode.IMAGES, image_retry=0.1):
        await stopped.run(pod("p", "true", imagePullPolicy="Never"))
        await waiting(stopped, "p", "ErrImageNeverPull")
        load()
        await stopped.phase("p", "Succeeded")


@pytest.mark.parametrize("mode", list(RunMode))
async def test_without_a_sandbox_images_are_not_run(
    stopped: AgentCluster, load: Load, mode: RunMode
) -> None:
    load(Layer().file("only-here"))
    async with stopped.agent(run_mode=mode, sandbox=IsolationLevel.PLAIN):
        node = await stopped.client.get(NODES, stopped.settings.node_name, view=dict)
        label = node["metadata"]["labels"]["batholith.io/pods"]
        await stopped.run(pod("p", "true"))
        if mode is RunMode.IMAGES:
            assert label == "images"
            text = await waiting(stopped, "p", "CreateContainerConfigError")
            assert "containers cannot run images here: no sandbox" in text
        else:
            assert label == "processes"
            await stopped.phase("p", "Succeeded")


# --- pulls ----------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as server:
        yield server


@pytest.mark.parametrize("mode", [RunMode.AUTO, RunMode.IMAGES])
async def test_image_of_a_named_registry_is_pulled_with_the_pod_s_secret(
    stopped: AgentCluster, registry: RegistryServer, mode: RunMode
) -> None:
    registry.authentication = "bearer"
    config = {"Cmd": ["echo", "pulled"], "Healthcheck": {"Test": ["CMD", "false"]}}
    name = registry.add("team/app", "1", image([busybox()], config))
    data = {".dockerconfigjson": base64.b64encode(registry.dockerconfig()).decode()}
    secret = {"metadata": {"name": "key"}, "type": "kubernetes.io/dockerconfigjson", "data": data}
    await stopped.create(secret, SECRETS)
    registries = (Registry(registry.host),) if mode is RunMode.AUTO else ()
    async with stopped.agent(run_mode=mode, registries=registries):
        body = pod("p", image=name, spec={"imagePullSecrets": [{"name": "key"}]})
        assert await output(stopped, body) == ["pulled"]
        await stopped.wait_event("p", "Pulling", name)
        event = await stopped.wait_event("p", "Pulled", "Successfully pulled image")
        assert "HEALTHCHECK is ignored" in event["message"]


async def test_secret_that_cannot_be_used_is_reported(
    stopped: AgentCluster, registry: RegistryServer
) -> None:
    name = registry.add("app", "1", image([busybox()], {"Cmd": ["echo", "pulled"]}))
    async with stopped.agent(registries=(Registry(registry.host),)):
        body = pod("p", image=name, spec={"imagePullSecrets": [{"name": "missing"}]})
        assert await output(stopped, body) == ["pulled"]
        await stopped.wait_event("p", "FailedToRetrieveImagePullSecret", '"missing"')


async def test_failed_pull_is_repeated_after_a_back_off(
    stopped: AgentCluster, registry: RegistryServer
) -> None:
    files = image([busybox()], {"Cmd": ["true"]})
    name = f"{registry.host}/app:1"
    async with stopped.agent(registries=(Registry(registry.host),), image_retry=0.5):
        await stopped.run(pod("p", image=name))
        assert "not found" in await waiting(stopped, "p", "ErrImagePull")
        text = await waiting(stopped, "p", "ImagePullBackOff")
        assert text.startswith(f'Back-off pulling image "{name}": ErrImagePull: ')
        await stopped.wait_event("p", "Failed", f'Failed to pull image "{name}"')
        await stopped.wait_event("p", "BackOff", "Back-off pulling image")
        registry.add("app", "1", files)
        await stopped.phase("p", "Succeeded")


@pytest.mark.parametrize(("policy", "pulls"), [("Always", 2), ("IfNotPresent", 1), ("Never", 1)])
async def test_policy_determines_whether_a_stored_image_is_pulled_again(
    stopped: AgentCluster, registry: RegistryServer, policy: str, pulls: int
) -> None:
    files = image([busybox(), Layer().file("version", "1")], {"Cmd": ["cat", "/version"]})
    name = registry.add("app", "1", files)
    async with stopped.agent(registries=(Registry(registry.host),)):
        assert await output(stopped, pod("first", image=name)) == ["1"]
        newer = image([busybox(), Layer().file("version", "2")], {"Cmd": ["cat", "/version"]})
        registry.add("app", "1", newer)
        expected = "2" if policy == "Always" else "1"
        body = pod("second", image=name, imagePullPolicy=policy)
        assert await output(stopped, body) == [expected]
        assert len(registry.paths("manifests/1")) == pulls


async def test_auto_mode_asks_no_registry_that_is_not_named(
    stopped: AgentCluster, registry: RegistryServer
) -> None:
    name = registry.add("app", "1", image([busybox()]))
    async with stopped.agent(registries=(Registry("other.example"),)):
        body = pod("p", "sh", "-c", "echo $((1 + 1))", image=name, imagePullPolicy="Always")
        assert await output(stopped, body) == ["2"]
    assert registry.requests == []


async def test_pod_without_credentials_delays_none_that_has_them(
    stopped: AgentCluster, registry: RegistryServer
) -> None:
    registry.authentication = "basic"
    name = registry.add("app", "1", image([busybox()], {"Cmd": ["echo", "pulled"]}))
    data = {".dockerconfigjson": base64.b64encode(registry.dockerconfig()).decode()}
    await stopped.create({"metadata": {"name": "key"}, "data": data}, SECRETS)
    async with stopped.agent(registries=(Registry(registry.host),), image_retry=1e6):
        await stopped.run(pod("without", image=name))
        await waiting(stopped, "without", "ErrImagePull")
        body = pod("with", image=name, spec={"imagePullSecrets": [{"name": "key"}]})
        assert await output(stopped, body) == ["pulled"]


async def test_pod_is_deleted_while_its_image_is_pulled(
    stopped: AgentCluster, registry: RegistryServer
) -> None:
    name = registry.add("app", "1", image([busybox()], {"Cmd": ["true"]}))
    reached, release = threading.Event(), threading.Event()

    def hang(handler: Any) -> bool:
        reached.set()
        release.wait()
        return False

    registry.handle = hang
    try:
        async with stopped.agent(registries=(Registry(registry.host),)):
            await stopped.run(pod("p", image=name))
            await wait_for(reached.is_set)
            waits = await stopped.wait_pod("p", lambda pod: "containerStatuses" in pod["status"])
            [status] = waits["status"]["containerStatuses"]
            assert status["state"]["waiting"]["reason"] == "ContainerCreating"
            await stopped.delete("p", grace=5)
            await stopped.wait_pod_deleted("p")
    finally:
        release.set()


async def test_pods_that_need_one_image_share_its_pull(
    stopped: AgentCluster, registry: RegistryServer
) -> None:
    name = registry.add("app", "1", image([busybox()], {"Cmd": ["true"]}))
    async with stopped.agent(registries=(Registry(registry.host),)):
        for number in range(4):
            await stopped.run(pod(f"p{number}", image=name))
        for number in range(4):
            await stopped.phase(f"p{number}", "Succeeded")
    assert len(registry.paths("/blobs/")) == 2


@pytest.mark.parametrize(("own", "caught"), [("", "USR1"), ("SIGUSR2", "USR2")])
async def test_the_signal_of_an_image_or_of_the_pod_stops_the_container(
    cluster: AgentCluster, load: Load, own: str, caught: str
) -> None:
    load(StopSignal="SIGUSR1")
    traps = "; ".join(f"trap 'echo caught {name}; exit 0' {name}" for name in ("USR1", "USR2"))
    script = f"{traps}; echo up; while :; do sleep 0.05; done"
    more: dict[str, Any] = {"lifecycle": {"stopSignal": own}} if own else {}
    body = manifest("p", container("sh", "-c", script, image=NAME, **more))
    body["metadata"]["finalizers"] = ["example.com/keep"]
    body["spec"]["os"] = {"name": "linux"}
    created = await cluster.run(body)
    if "lifecycle" not in created["spec"]["containers"][0]:
        caught = "USR1"  # a real server has dropped the pod's signal
    await cluster.phase("p", "Running")
    await cluster.wait_log("p", "up")
    await cluster.delete("p")
    await cluster.wait_log("p", f"caught {caught}")
    patch = {"metadata": {"finalizers": None}}
    await cluster.client.patch(PODS, "p", patch, namespace="default")
    await cluster.wait_pod_deleted("p")
