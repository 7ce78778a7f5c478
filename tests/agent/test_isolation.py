"""Whose a pod's processes and files are on the machine, and what it may not ask for."""

import os
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.agent import container, decode_pod, manifest
from support.agent_cluster import AgentCluster, agent_cluster, bind_pvc
from support.api_servers import ServerFactory, add_namespace

from batholith.agent.pods.records import PodDir
from batholith.agent.runtime import rootfs
from batholith.agent.runtime.ids import SHARED, IdMode, allocate_range, chown_tree
from batholith.agent.runtime.mounting import ID_RANGE_SIZE, KEPT_CAPABILITIES
from batholith.agent.runtime.rights import capabilities, check_security_context
from batholith.agent.runtime.runs import IsolationLevel, detect_isolation
from batholith.agent.runtime.users import user_of
from batholith.agent.state.environment import SEARCH_PATH, ContainerConfigError
from batholith.model.names import PERSISTENTVOLUMECLAIMS, SECRETS

Json = dict[str, Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AgentCluster]:
    """One server and one agent for all tests of this module."""
    async with agent_cluster(servers, tmp_path_factory.mktemp("world")) as made, made.agent():
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: AgentCluster) -> AgentCluster:
    """The shared cluster, in a namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await add_namespace(shared.server, name)
    return replace(shared, namespace=name)


@pytest.fixture
def ranges() -> None:
    """Only where pods get ranges of user ids."""
    found = detect_isolation()
    if found.id_mode is not IdMode.RANGE:
        pytest.skip(f"pods have no ranges of ids here ({found.isolation}, {found.id_mode} ids)")


def shell(script: str, **more: Any) -> Json:
    return container("sh", "-c", script, **more)


def pod_dir(cluster: AgentCluster, made: Json) -> PodDir:
    return PodDir.of(cluster.settings.data_dir, decode_pod(made))


def owners(folder: PodDir) -> set[int]:
    """Users of the machine that a pod's processes run as, without the shim and its helpers."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            environ = (status.parent / "environ").read_bytes()
            text = status.read_text()
        except OSError:
            continue
        if folder.path.name.encode() in environ:
            line = next(line for line in text.splitlines() if line.startswith("Uid:"))
            found.add(int(line.split()[1]))
    return found - {os.geteuid()}


@pytest.mark.usefixtures("ranges")
async def test_pods_are_users_of_the_machine_that_own_nothing_there(cluster: AgentCluster) -> None:
    seen = []
    for name, uid in (("one", 0), ("two", 77)):
        made = await cluster.run(
            manifest(name, shell("echo up; sleep 60"), securityContext={"runAsUser": uid})
        )
        await cluster.phase(name, "Running")
        await cluster.wait_log(name, "up")
        folder = pod_dir(cluster, made)
        record = folder.read_record()
        assert record is not None
        seen.append(record.ids)
        assert owners(folder) == {record.ids + uid}
        assert record.ids > SHARED
        assert record.ids % ID_RANGE_SIZE == 0
        await cluster.delete(name, grace=0)
    assert len(set(seen)) == 2, "each has its own"


@pytest.mark.usefixtures("ranges")
async def test_root_in_a_pod_may_be_many_users(cluster: AgentCluster) -> None:
    """As sshd wants it, which leaves root's rights to users of its own."""
    script = (
        "touch /tmp/a && chown 1234:4321 /tmp/a && stat -c %u:%g /tmp/a;"
        "setpriv --reuid 1234 --regid 4321 --clear-groups sh -c 'id -u; id -g; touch /tmp/b';"
        "stat -c %u /tmp/b; chroot / id -u"
    )
    await cluster.run(manifest("p", shell(script), restartPolicy="Never"))
    await cluster.phase("p", "Succeeded", "Failed")
    assert (await cluster.logs("p")).split() == ["1234:4321", "1234", "4321", "1234", "0"]


@pytest.mark.usefixtures("ranges")
async def test_sshd_serves_root_of_a_pod(cluster: AgentCluster) -> None:
    programs = [shutil.which(name, path=SEARCH_PATH) for name in ("sshd", "ssh", "ssh-keygen")]
    if None in programs:
        if "mpi" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("sshd is required")
        pytest.skip("openssh-server is not installed")
    script = (
        "mkdir -p /run/sshd ~/.ssh; chmod 700 ~/.ssh; k=$HOME/.ssh/id;"
        "ssh-keygen -q -t ed25519 -N '' -f $k; cp $k.pub ~/.ssh/authorized_keys;"
        "/usr/sbin/sshd -D -e -f /dev/null -p 2299 -h $k -o ListenAddress=$IP -o PidFile=none &"
        "until ssh -F /dev/null -i $k -p 2299 -o StrictHostKeyChecking=no $IP id -u 2>/dev/null;"
        "do sleep 0.1; done; kill $!"
    )
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    await cluster.run(manifest("p", shell(script, env=env), restartPolicy="Never"))
    await cluster.phase("p", "Succeeded", "Failed")
    assert "0" in (await cluster.logs("p")).splitlines()


async def test_files_of_secrets_are_their_reader_s(cluster: AgentCluster) -> None:
    if detect_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox a pod cannot be another user")
    await cluster.create({"metadata": {"name": "s"}, "data": {"key": "aHVzaA=="}}, SECRETS)
    volumes = [{"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}}]
    mounts = [{"name": "s", "mountPath": "/s"}]
    for name, context in (("root", {}), ("user", {"runAsUser": 1000})):
        one = shell("cat /s/key", volumeMounts=mounts)
        made = manifest(name, one, volumes=volumes, restartPolicy="Never", securityContext=context)
        await cluster.run(made)
        await cluster.phase(name, "Succeeded", "Failed")
        assert await cluster.logs(name) == "hush"


@pytest.mark.usefixtures("ranges")
async def test_what_is_left_in_a_claim_is_there_for_all_pods_that_come(
    cluster: AgentCluster,
) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = await cluster.create(
        {"metadata": {"name": "data"}, "spec": spec}, PERSISTENTVOLUMECLAIMS
    )
    await bind_pvc(cluster, "data")
    uid = claim["metadata"]["uid"]
    folder = cluster.settings.data_dir / "volumes" / f"{cluster.namespace}_data_{uid}"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "old").write_text("old")  # of an agent that gave all pods its own id
    (folder / "deep" / "old").chmod(0o600)
    (folder / "out").symlink_to("/etc/hostname")
    before = os.stat("/etc/hostname").st_uid
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    mounts = [{"name": "d", "mountPath": "/d"}]
    script = (
        "umask 077; cat /d/deep/old; ls /d/deep; echo more >> /d/deep/old; touch /d/deep/$HOSTNAME"
    )
    for name in ("first", "second"):
        one = shell(script, volumeMounts=mounts)
        await cluster.run(manifest(name, one, volumes=volumes, restartPolicy="Never"))
        done = await cluster.phase(name, "Succeeded", "Failed")
        assert done["status"]["phase"] == "Succeeded", await cluster.logs(name)
    assert (await cluster.logs("second")).split() == ["oldmore", "first", "old"]
    assert {path.lstat().st_uid for path in folder.rglob("*")} == {SHARED}
    assert os.stat("/etc/hostname").st_uid == before


async def test_a_root_that_is_to_be_read_only_is(cluster: AgentCluster) -> None:
    if detect_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox a pod has no root of its own")
    script = (
        "for p in / /tmp /run /root /var/tmp; do touch $p/x 2>/dev/null && echo $p; done;"
        "touch /v/x && echo fine > /dev/termination-log"
    )
    one = shell(
        script,
        securityContext={"readOnlyRootFilesystem": True},
        volumeMounts=[{"name": "v", "mountPath": "/v"}],
    )
    await cluster.run(
        manifest("p", one, volumes=[{"name": "v", "emptyDir": {}}], restartPolicy="Never")
    )
    done = await cluster.phase("p", "Succeeded", "Failed")
    assert await cluster.logs("p") == ""
    ended = done["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["message"] == "fine\n"


async def test_what_a_level_cannot_give_is_a_configuration_error(cluster: AgentCluster) -> None:
    asked = {"capabilities": {"add": ["SYS_ADMIN"]}}
    await cluster.run(manifest("p", shell("exit 0", securityContext=asked)))
    pod = await cluster.wait_pod(
        "p",
        lambda pod: "CreateContainerConfigError" in str(pod["status"].get("containerStatuses")),
    )
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    words = "container c: unsupported security context: the capability SYS_ADMIN"
    assert waiting["message"] == words


REFUSED: list[tuple[IsolationLevel, IdMode, Json, Json, str]] = [
    (IsolationLevel.UNSHARE, IdMode.OWN, {"privileged": True}, {}, "privileged"),
    (IsolationLevel.PLAIN, IdMode.OWN, {"privileged": True}, {}, "privileged"),
    (
        IsolationLevel.UNSHARE,
        IdMode.RANGE,
        {"capabilities": {"add": ["SYS_ADMIN"]}},
        {},
        "SYS_ADMIN",
    ),
    (
        IsolationLevel.UNSHARE,
        IdMode.RANGE,
        {"capabilities": {"add": ["CAP_NET_RAW"]}},
        {},
        "NET_RAW",
    ),
    (IsolationLevel.BUBBLEWRAP, IdMode.OWN, {"capabilities": {"add": ["CHOWN"]}}, {}, "CHOWN"),
    (IsolationLevel.UNSHARE, IdMode.OWN, {"procMount": "Unmasked"}, {}, "procMount"),
    (IsolationLevel.UNSHARE, IdMode.RANGE, {"runAsUser": ID_RANGE_SIZE}, {}, "below 65536"),
    (IsolationLevel.UNSHARE, IdMode.RANGE, {"runAsGroup": ID_RANGE_SIZE}, {}, "below 65536"),
    (IsolationLevel.UNSHARE, IdMode.SWITCHED, {"runAsUser": 0}, {}, "user namespace"),
    (IsolationLevel.PLAIN, IdMode.OWN, {"runAsUser": 4321}, {}, "runAsUser"),
    (IsolationLevel.PLAIN, IdMode.OWN, {"runAsNonRoot": True}, {}, "runAsNonRoot"),
    (
        IsolationLevel.PLAIN,
        IdMode.OWN,
        {"readOnlyRootFilesystem": True},
        {},
        "readOnlyRootFilesystem",
    ),
    (IsolationLevel.UNSHARE, IdMode.RANGE, {}, {"hostPID": True}, "hostPID"),
    (IsolationLevel.BUBBLEWRAP, IdMode.OWN, {}, {"shareProcessNamespace": True}, "shareProcess"),
    (IsolationLevel.UNSHARE, IdMode.OWN, {}, {"hostIPC": True}, "hostIPC"),
]


@pytest.mark.parametrize(("level", "identity", "context", "spec", "words"), REFUSED)
async def test_each_refusal_says_why(
    level: IsolationLevel, identity: IdMode, context: Json, spec: Json, words: str
) -> None:
    pod = decode_pod(manifest("p", container(securityContext=context), **spec))
    (one,) = pod.spec.containers
    with pytest.raises(ContainerConfigError, match=words):
        check_security_context(
            pod, one, user_of(pod, one), isolation=level, id_mode=identity, agent_uid=0
        )


GRANTED: list[tuple[IsolationLevel, IdMode, Json]] = [
    (IsolationLevel.UNSHARE, IdMode.RANGE, {"capabilities": {"add": ["CHOWN"], "drop": ["ALL"]}}),
    (IsolationLevel.UNSHARE, IdMode.OWN, {"runAsUser": 1_000_650_000}),
    (IsolationLevel.UNSHARE, IdMode.SWITCHED, {"runAsUser": 7}),
    (IsolationLevel.UNSHARE, IdMode.SWITCHED, {}),
    (IsolationLevel.PLAIN, IdMode.OWN, {"runAsUser": 0}),
    (IsolationLevel.PLAIN, IdMode.OWN, {"privileged": False, "procMount": "Default"}),
]


@pytest.mark.parametrize(("level", "identity", "context"), GRANTED)
async def test_what_can_be_given_is(level: IsolationLevel, identity: IdMode, context: Json) -> None:
    pod = decode_pod(manifest("p", container(securityContext=context)))
    (one,) = pod.spec.containers
    check_security_context(
        pod, one, user_of(pod, one), isolation=level, id_mode=identity, agent_uid=0
    )


async def test_rights_that_a_container_drops_are_gone() -> None:
    for dropped, added, left in (
        ([], [], KEPT_CAPABILITIES),
        (["chown", "CAP_KILL"], [], KEPT_CAPABILITIES - {0, 5}),
        (["ALL"], ["SETUID"], {7}),
    ):
        context = {"capabilities": {"drop": dropped, "add": added}}
        pod = decode_pod(manifest("p", container(securityContext=context)))
        assert capabilities(pod.spec.containers[0]) == left


async def test_ranges_are_apart_and_pods_that_share_files_share_one() -> None:
    def pod(uid: str, *volumes: Json) -> Any:
        made = manifest(volumes=[{"name": f"v{i}", **v} for i, v in enumerate(volumes)])
        return decode_pod({**made, "metadata": {**made["metadata"], "uid": uid}})

    taken: list[int] = []
    for number in range(500):
        taken.append(allocate_range(pod(f"u{number}", {"emptyDir": {}}), taken))
    assert len(set(taken)) == 500
    assert all(SHARED < base < 0x7FFE0000 and base % ID_RANGE_SIZE == 0 for base in taken)
    assert allocate_range(pod("u0"), []) == taken[0], "the same one again"
    claim = {"persistentVolumeClaim": {"claimName": "c"}}
    assert allocate_range(pod("a", claim), []) == allocate_range(
        pod("b", {"hostPath": {"path": "/"}}), []
    )


async def test_a_folder_is_taken_over_once_and_no_link_is_followed(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    outside.mkdir()
    (folder / "deep" / "link").symlink_to(outside)
    (folder / "file").touch()
    os.chown(folder / "file", 33, 44)
    chown_tree(folder, SHARED)
    file = (folder / "file").stat()
    assert (file.st_uid, file.st_gid) == (SHARED + 33, SHARED + 44)
    assert (folder / "deep" / "link").lstat().st_uid == SHARED
    assert outside.stat().st_uid == 0
    (folder / "late").touch()
    chown_tree(folder, SHARED)
    assert (folder / "late").stat().st_uid == 0, "it was taken over already"


async def test_tools_below_a_closed_home_are_there_for_all_users(tmp_path: Path) -> None:
    host = tmp_path / "host"
    for place in ("home/me/.venv/bin", "home/me/.ssh", "srv/shut/python/bin", "srv/shut/data"):
        (host / place).mkdir(parents=True)
    for place in ("home/me", "srv/shut"):
        (host / place).chmod(0o700)
    tools = ["/srv/shut/python", "/home/me/.venv", "/usr"]
    steps = rootfs.mount_plan([], hidden=[], home="/home/me", host=str(host), tools=tools)
    places = [step[2] for step in steps]
    assert ("tmpfs", "755", "/home/me", "") in steps
    assert places.index("/home/me") < places.index("/home/me/.venv")
    assert ("tmpfs", "755", "/srv/shut", "") in steps
    assert ("show", str(host / "srv/shut/python"), "/srv/shut/python", "") in steps
    assert not any(place.endswith((".ssh", "data")) for place in places)
