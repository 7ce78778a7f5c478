"""User ids of pods on the host, and unsupported security contexts."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, decode_pod, manifest
from support.agent_cluster import AgentCluster, bind_pvc
from support.sandbox import detected_isolation

from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.runtime.ids import SHARED, IdMode, allocate_range, chown_tree
from batholith.local.agent.runtime.mounting import ID_RANGE_SIZE, KEPT_CAPABILITIES
from batholith.local.agent.runtime.rights import capabilities, check_security_context
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.local.agent.runtime.users import user_of, volume_owner
from batholith.local.agent.state.environment import SEARCH_PATH, ContainerConfigError
from batholith.model.names import PERSISTENTVOLUMECLAIMS, SECRETS

Json = dict[str, Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def ranges() -> None:
    """Skip unless pods get ranges of user ids."""
    found = detected_isolation()
    if found.id_mode is not IdMode.RANGE:
        pytest.skip(
            f"pods have no ranges of user ids here ({found.isolation}, {found.id_mode} ids)"
        )


def shell(script: str, **more: Any) -> Json:
    return container("sh", "-c", script, **more)


def pod_dir(cluster: AgentCluster, created: Json) -> PodDir:
    return PodDir.of(cluster.settings.data_dir, decode_pod(created))


def owners(directory: PodDir) -> set[int]:
    """Return the host user ids of a pod's processes, without the shim and its helpers."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            environ = (status.parent / "environ").read_bytes()
            text = status.read_text()
        except OSError:
            continue
        if directory.path.name.encode() in environ:
            line = next(line for line in text.splitlines() if line.startswith("Uid:"))
            found.add(int(line.split()[1]))
    return found - {os.geteuid()}


@pytest.mark.process
@pytest.mark.usefixtures("ranges")
async def test_each_pod_has_its_own_host_user_ids(cluster: AgentCluster) -> None:
    seen = []
    for name, uid in (("one", 0), ("two", 77)):
        created = await cluster.run(
            manifest(name, shell("echo up; sleep 60"), securityContext={"runAsUser": uid})
        )
        await cluster.phase(name, "Running")
        await cluster.wait_log(name, "up")
        directory = pod_dir(cluster, created)
        record = directory.read_record()
        assert record is not None
        seen.append(record.ids)
        assert owners(directory) == {record.ids + uid}
        assert record.ids > SHARED
        assert record.ids % ID_RANGE_SIZE == 0
        await cluster.delete(name, grace=0)
    assert len(set(seen)) == 2, "each has its own"


@pytest.mark.process
@pytest.mark.usefixtures("ranges")
async def test_root_in_a_pod_can_switch_users(cluster: AgentCluster) -> None:
    """sshd needs that: it switches from root to other users."""
    script = (
        "touch /tmp/a && chown 1234:4321 /tmp/a && stat -c %u:%g /tmp/a;"
        "setpriv --reuid 1234 --regid 4321 --clear-groups sh -c 'id -u; id -g; touch /tmp/b';"
        "stat -c %u /tmp/b; chroot / id -u"
    )
    await cluster.run(manifest("p", shell(script), restartPolicy="Never"))
    await cluster.phase("p", "Succeeded", "Failed")
    assert (await cluster.logs("p")).split() == ["1234:4321", "1234", "4321", "1234", "0"]


@pytest.mark.process
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


@pytest.mark.process
async def test_secret_files_belong_to_the_pod_s_user(cluster: AgentCluster) -> None:
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox a pod cannot be another user")
    await cluster.create({"metadata": {"name": "s"}, "data": {"key": "aHVzaA=="}}, SECRETS)
    volumes = [{"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}}]
    mounts = [{"name": "s", "mountPath": "/s"}]
    for name, context in (("root", {}), ("user", {"runAsUser": 1000})):
        one = shell("cat /s/key", volumeMounts=mounts)
        created = manifest(
            name, one, volumes=volumes, restartPolicy="Never", securityContext=context
        )
        await cluster.run(created)
        await cluster.phase(name, "Succeeded", "Failed")
        assert await cluster.logs(name) == "hush"


@pytest.mark.process
@pytest.mark.usefixtures("ranges")
async def test_files_in_a_claim_are_accessible_to_later_pods(
    cluster: AgentCluster,
) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = await cluster.create(
        {"metadata": {"name": "data"}, "spec": spec}, PERSISTENTVOLUMECLAIMS
    )
    await bind_pvc(cluster, "data")
    uid = claim["metadata"]["uid"]
    directory = cluster.settings.data_dir / "volumes" / f"{cluster.namespace}_data_{uid}"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "old").write_text("old")  # of an agent without id ranges
    (directory / "deep" / "old").chmod(0o600)
    (directory / "out").symlink_to("/etc/hostname")
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
    assert {path.lstat().st_uid for path in directory.rglob("*")} == {SHARED}
    assert os.stat("/etc/hostname").st_uid == before


@pytest.mark.process
async def test_read_only_root_filesystem_is_read_only(cluster: AgentCluster) -> None:
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox a pod has no root file system")
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


@pytest.mark.process
async def test_unsupported_capability_is_a_configuration_error(cluster: AgentCluster) -> None:
    asked = {"capabilities": {"add": ["SYS_ADMIN"]}}
    await cluster.run(manifest("p", shell("exit 0", securityContext=asked)))
    pod = await cluster.wait_pod(
        "p",
        lambda pod: "CreateContainerConfigError" in str(pod["status"].get("containerStatuses")),
    )
    waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"]
    message = "container c: unsupported security context: the capability SYS_ADMIN"
    assert waiting["message"] == message


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


@pytest.mark.parametrize(("level", "identity", "context", "spec", "message"), REFUSED)
async def test_unsupported_security_context_is_named(
    level: IsolationLevel, identity: IdMode, context: Json, spec: Json, message: str
) -> None:
    pod = decode_pod(manifest("p", container(securityContext=context), **spec))
    (one,) = pod.spec.containers
    with pytest.raises(ContainerConfigError, match=message):
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
async def test_supported_security_context_is_accepted(
    level: IsolationLevel, identity: IdMode, context: Json
) -> None:
    pod = decode_pod(manifest("p", container(securityContext=context)))
    (one,) = pod.spec.containers
    check_security_context(
        pod, one, user_of(pod, one), isolation=level, id_mode=identity, agent_uid=0
    )


async def test_volume_owner_is_the_user_of_all_containers() -> None:
    def owner(*contexts: Json, **shared: Any) -> int:
        containers = [container(name=f"c{i}", securityContext=c) for i, c in enumerate(contexts)]
        return volume_owner(decode_pod(manifest("p", *containers, securityContext=shared)))

    assert owner({}) == 0
    assert owner({"runAsUser": 7}, {"runAsUser": 7}) == 7
    assert owner({"runAsUser": 7}, {}) == 0
    assert owner({}, {}, runAsUser=5) == 5
    assert owner({}, runAsNonRoot=True) == 1000
    assert owner({"runAsNonRoot": True}) == 1000


async def test_dropped_capabilities_are_removed() -> None:
    for dropped, added, left in (
        ([], [], KEPT_CAPABILITIES),
        (["chown", "CAP_KILL"], [], KEPT_CAPABILITIES - {0, 5}),
        (["ALL"], ["SETUID"], {7}),
    ):
        context = {"capabilities": {"drop": dropped, "add": added}}
        pod = decode_pod(manifest("p", container(securityContext=context)))
        assert capabilities(pod.spec.containers[0]) == left


async def test_id_ranges_are_disjoint_except_for_pods_with_common_files() -> None:
    def pod(uid: str, *volumes: Json) -> Any:
        created = manifest(volumes=[{"name": f"v{i}", **v} for i, v in enumerate(volumes)])
        return decode_pod({**created, "metadata": {**created["metadata"], "uid": uid}})

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


async def test_chown_tree_shifts_owners_once_and_follows_no_links(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can change owners")
    outside, directory = tmp_path / "outside", tmp_path / "directory"
    (directory / "deep").mkdir(parents=True)
    outside.mkdir()
    (directory / "deep" / "link").symlink_to(outside)
    (directory / "file").touch()
    os.chown(directory / "file", 33, 44)
    chown_tree(directory, SHARED)
    file = (directory / "file").stat()
    assert (file.st_uid, file.st_gid) == (SHARED + 33, SHARED + 44)
    assert (directory / "deep" / "link").lstat().st_uid == SHARED
    assert outside.stat().st_uid == 0
    (directory / "new").touch()
    chown_tree(directory, SHARED)
    assert (directory / "new").stat().st_uid == 0, "only the first call shifts owners"
