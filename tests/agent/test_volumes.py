"""Volumes: content, and confinement of paths."""

import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent import container, decode_pod, manifest

from batholith.local.agent.runtime.rootfs import Mount
from batholith.local.agent.state.core_types import PersistentVolume
from batholith.local.agent.state.environment import (
    ClaimVolume,
    ContainerConfigError,
    PodRuntimeInfo,
    ResolvedSources,
)
from batholith.local.agent.volumes.host_dirs import (
    HostDir,
    find,
    prepare,
    resolve,
    working_directory,
)
from batholith.local.agent.volumes.pvc_dirs import claim_volume
from batholith.local.agent.volumes.volumes import (
    MountedVolume,
    VolumeError,
    VolumePaths,
    container_mounts,
    create_sub_path,
    link_mounts,
    references_of,
    set_up_volumes,
)

SOURCES = ResolvedSources(
    config_maps={"m": {"a": b"1", "b": b"2"}, "missing": None},
    secrets={"s": {"key": b"hush"}},
    claims={
        "c": ClaimVolume(uid="u1", handle="u1"),
        "missing": None,
        "waits": ClaimVolume(error='persistentvolumeclaim "waits" is Pending'),
        "host": ClaimVolume(uid="u2", host_path="/etc"),
        "kept": ClaimVolume(uid="u3", handle="u0"),
    },
)


def set_up(
    base: Path, *volumes: dict[str, Any], host_dirs: tuple[HostDir, ...] = ()
) -> dict[str, Path]:
    created = mounted(base, *volumes, host_dirs=host_dirs)
    return {name: volume.path / (volume.inside or "") for name, volume in created.items()}


def mounted(
    base: Path,
    *volumes: dict[str, Any],
    host_dirs: tuple[HostDir, ...] = (),
    sources: ResolvedSources = SOURCES,
) -> Mapping[str, MountedVolume]:
    paths = VolumePaths(pod_dir=base / "pod", pvc_root=base / "claims", host_dirs=host_dirs)
    pod = decode_pod(manifest(volumes=[{"name": f"v{i}", **v} for i, v in enumerate(volumes)]))
    return set_up_volumes(
        pod, paths=paths, sources=sources, info=PodRuntimeInfo(pod_ip="127.64.0.1")
    )


def files(directory: Path) -> dict[str, str]:
    """Return the files that a container sees in *directory*."""
    seen = {}
    for parent, below, names in os.walk(directory, followlinks=True):
        below[:] = [name for name in below if not name.startswith("..")]
        for name in names:
            path = Path(parent) / name
            seen[str(path.relative_to(directory))] = path.read_text()
    return seen


def test_sources_become_files_with_their_modes(tmp_path: Path) -> None:
    created = set_up(
        tmp_path,
        {"configMap": {"name": "m"}},
        {"configMap": {"name": "m", "items": [{"key": "b", "path": "x/y", "mode": 0o400}]}},
        {"secret": {"secretName": "s", "defaultMode": 0o600}},
        {"emptyDir": {}},
        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {
            "projected": {
                "sources": [
                    {"secret": {"name": "s"}},
                    {"configMap": {"name": "m", "items": [{"key": "a", "path": "sub/a"}]}},
                ]
            }
        },
        {"persistentVolumeClaim": {"claimName": "c"}},
    )
    assert [files(directory) for directory in created.values()] == [
        {"a": "1", "b": "2"}, {"x/y": "2"}, {"key": "hush"}, {}, {"n": "p"},
        {"key": "hush", "sub/a": "1"}, {},
    ]  # fmt: skip
    assert stat.S_IMODE((created["v0"] / "a").stat().st_mode) == 0o644
    assert stat.S_IMODE((created["v1"] / "x/y").stat().st_mode) == 0o400
    assert stat.S_IMODE((created["v2"] / "key").stat().st_mode) == 0o600
    assert created["v6"] == tmp_path / "claims" / "default_c_u1"


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "missing"}}, 'configmap "missing" not found'),
        ({"configMap": {"name": "m", "items": [{"key": "q", "path": "q"}]}}, "non-existent key: q"),
        ({"configMap": {"name": "m", "items": [{"key": "a", "path": "../a"}]}}, "'..'"),
        (
            {"hostPath": {"path": "/etc"}},
            "not below a directory that pods may mount; `batholith up --mount /etc`",
        ),
        (
            {"hostPath": {"path": "/etc/hosts", "type": "File"}},
            "hostPath /etc/hosts is not below .*`batholith up --mount /etc` permits it",
        ),
        ({"hostPath": {"path": "/"}}, "hostPath /: the root directory cannot be shared with pods"),
        ({"persistentVolumeClaim": {"claimName": "missing"}}, 'claim "missing" not found'),
        ({"persistentVolumeClaim": {"claimName": "waits"}}, '"waits" is Pending'),
        (
            {"persistentVolumeClaim": {"claimName": "host"}},
            "not below a directory that pods may mount; `batholith up --mount /etc`",
        ),
        ({"persistentVolumeClaim": {"claimName": "kept"}}, "directory 'u0' not found on this node"),
        ({"nfs": {"server": "x"}}, "unsupported volume type"),
    ],
)
def test_volume_error_names_its_cause(tmp_path: Path, volume: dict[str, Any], message: str) -> None:
    with pytest.raises(VolumeError, match=message):
        set_up(tmp_path, volume)


def test_optional_sources_may_be_missing(tmp_path: Path) -> None:
    created = set_up(
        tmp_path,
        {"configMap": {"name": "missing", "optional": True}},
        {"configMap": {"name": "m", "optional": True, "items": [{"key": "q", "path": "q"}]}},
    )
    assert [files(directory) for directory in created.values()] == [{}, {}]


def test_a_host_path_must_be_permitted(tmp_path: Path) -> None:
    (tmp_path / "open" / "deep").mkdir(parents=True)
    (tmp_path / "open" / "out").symlink_to("/etc")
    (tmp_path / "open" / "in").symlink_to("deep")
    permitted = (HostDir(str(tmp_path / "open")),)

    def host_path(path: str) -> Path:
        volume = {"hostPath": {"path": str(tmp_path / path)}}
        return set_up(tmp_path, volume, host_dirs=permitted)["v0"]

    assert host_path("open") == tmp_path / "open"
    assert host_path("open/in") == host_path("open/deep") == tmp_path / "open" / "deep"
    for path in ("open/out", "open/../other", "openly", ""):
        with pytest.raises(VolumeError, match="not below a directory that pods may mount"):
            host_path(path)
    with pytest.raises(VolumeError, match="No such file"):
        host_path("open/none")


def test_the_type_of_a_volumes_host_path_is_checked(tmp_path: Path) -> None:
    spec = {"hostPath": {"path": str(tmp_path / "new"), "type": "DirectoryOrCreate"}}
    volume = msgspec.convert({"metadata": {"name": "v"}, "spec": spec}, PersistentVolume)
    bound = claim_volume("u", volume, has_dirs=True)
    assert (bound.host_path, bound.host_path_type) == (str(tmp_path / "new"), "DirectoryOrCreate")
    sources = replace(SOURCES, claims={"c": bound})
    claim = {"persistentVolumeClaim": {"claimName": "c"}}
    mounted(tmp_path, claim, host_dirs=(HostDir(str(tmp_path)),), sources=sources)
    assert (tmp_path / "new").is_dir()
    bound = replace(bound, host_path_type="File")
    sources = replace(SOURCES, claims={"c": bound})
    with pytest.raises(VolumeError, match="type check failed"):
        mounted(tmp_path, claim, host_dirs=(HostDir(str(tmp_path)),), sources=sources)


def test_a_host_path_is_created_and_checked_by_its_type(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "shut").mkdir()
    permitted = (HostDir(str(tmp_path / "open")), HostDir(str(tmp_path / "shut"), read_only=True))

    def host_path(path: str, kind: str) -> Path:
        volume = {"hostPath": {"path": str(tmp_path / path), "type": kind}}
        return mounted(tmp_path, volume, host_dirs=permitted)["v0"].path

    for _ in range(2):
        host_path("open/new/dir", "DirectoryOrCreate")
        host_path("open/new/file", "FileOrCreate")
    host_path("open/new/dir", "Directory")
    host_path("open/new/file", "File")
    assert (tmp_path / "open/new/dir").is_dir()
    assert (tmp_path / "open/new/file").read_bytes() == b""
    for path, kind, problem in (
        ("open/new/dir", "File", "is not a file"),
        ("open/new/dir", "FileOrCreate", "is not a file"),
        ("open/new/file", "Directory", "is not a directory"),
        ("open/new/file", "DirectoryOrCreate", "is not a directory"),
        ("open/new/file", "Socket", "is not a socket file"),
        ("open/new/file", "CharDevice", "is not a character device"),
        ("open/new/file", "BlockDevice", "is not a block device"),
        ("open/none", "Directory", "No such file"),
        ("open/none/file", "FileOrCreate", "No such file"),
        ("shut/new", "DirectoryOrCreate", "No such file"),
        ("shut/new", "FileOrCreate", "No such file"),
        ("other", "DirectoryOrCreate", "not below a directory that pods may mount"),
    ):
        with pytest.raises(VolumeError, match=problem):
            host_path(path, kind)
    assert not (tmp_path / "other").exists()
    assert os.listdir(tmp_path / "shut") == []


def test_nothing_is_created_behind_a_link_out_of_a_host_directory(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "outside")
    directory = HostDir(str(tmp_path / "open"))
    for kind in ("DirectoryOrCreate", "FileOrCreate"):
        with pytest.raises(OSError, match=r"link|Too many|Invalid cross-device"):
            prepare(directory, "link/new", kind, owner=None)
    assert os.listdir(tmp_path / "outside") == []


def test_outermost_writable_directory_permits_a_host_path(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    a, b, c = (str(tmp_path / path) for path in ("a", "a/b", "a/b/c"))
    for directories, expected in (
        ([HostDir(a), HostDir(b)], (HostDir(a), "b/c")),
        ([HostDir(a, read_only=True), HostDir(b), HostDir(c)], (HostDir(b), "c")),
        ([HostDir(c, read_only=True), HostDir(b, read_only=True)], (HostDir(b, True), "c")),
        ([HostDir(c)], (HostDir(c), "")),
        ([HostDir("/other")], None),
    ):
        assert find(directories, c) == expected


def test_no_directory_is_created_in_a_read_only_host_directory(tmp_path: Path) -> None:
    permitted = (HostDir(str(tmp_path / "open"), read_only=True),)
    (tmp_path / "open").mkdir()
    volumes = mounted(tmp_path, {"hostPath": {"path": str(tmp_path / "open")}}, host_dirs=permitted)
    mounts = [{"name": "v0", "mountPath": "/a", "subPath": "new"}]
    pod = decode_pod(manifest("p", container(volumeMounts=mounts)))
    (mount,) = container_mounts(pod.spec.containers[0], volumes, {})
    assert mount.read_only
    assert os.listdir(tmp_path / "open") == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a project; HOME is a link to it."""
    (tmp_path / "home" / "project").mkdir(parents=True)
    (tmp_path / "home" / ".ssh").mkdir()
    (tmp_path / "link").symlink_to("home")
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    return tmp_path / "home"


def test_flag_names_a_directory_that_pods_may_mount(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = home / ".local" / "share" / "batholith"
    monkeypatch.chdir(home)
    project = str(home / "project")
    for text in ("project", project, f"{tmp_path}/link/project", "project/"):
        assert resolve(text, data_dir=data) == HostDir(project)
    assert resolve("project:ro", data_dir=data) == HostDir(project, read_only=True)
    assert str(resolve("project:ro", data_dir=data)) == f"{project}:ro"
    assert HostDir.parse(f"{project}:ro") == HostDir(project, read_only=True)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/", "the root directory"),
        ("{home}/none", "No such file or directory"),
        ("{home}/file", "not a directory"),
        ("{home}", "contains your home"),
        ("{link}:ro", "contains your home"),
        ("{home}/..", "the data directory"),
        ("{data}", "the data directory"),
        ("{data}/volumes", "the data directory"),
        ("/proc/self", "of the kernel"),
        ("/proc/self/cwd/../../../proc", "of the kernel"),
        ("/dev", "of the kernel"),
    ],
)
def test_dangerous_directories_are_refused(
    home: Path, tmp_path: Path, path: str, reason: str
) -> None:
    data = tmp_path / "data"
    (data / "volumes").mkdir(parents=True)
    (home / "file").touch()
    text = path.format(home=home, data=data, link=tmp_path / "link")
    with pytest.raises(ValueError, match=reason) as refused:
        resolve(text, data_dir=data)
    assert str(refused.value).startswith(f"--mount {text}: ")


def test_working_directory_is_permitted_read_only_unless_it_holds_more_than_a_project(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.chdir(home / "project")
    expected = HostDir(str(home / "project"), read_only=True)
    assert working_directory(data_dir=data) == expected
    for path in (home, home / ".ssh", data, tmp_path, "/", "/tmp", "/etc", "/usr", "/proc/self"):
        monkeypatch.chdir(path)
        assert working_directory(data_dir=data) is None, path


def test_retained_directory_is_mounted_by_the_claim_bound_to_its_volume(
    tmp_path: Path,
) -> None:
    old = tmp_path / "claims" / "default_before_u0"
    old.mkdir(parents=True)
    assert set_up(tmp_path, {"persistentVolumeClaim": {"claimName": "kept"}}) == {"v0": old}


def test_references_of_a_pod_include_all_its_sources() -> None:
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m1", "key": "k"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}},
    ]
    sources = [{"serviceAccountToken": {"path": "token", "audience": "me"}}]
    pod = decode_pod(
        manifest(
            "p",
            container(env=env, envFrom=[{"secretRef": {"name": "s2"}}]),
            volumes=[
                {"name": "a", "secret": {"secretName": "s3"}},
                {"name": "b", "projected": {"sources": sources}},
            ],
        )
    )
    needs = references_of(pod)
    assert needs.config_maps == {"m1"}
    assert needs.secrets == {"s1", "s2", "s3"}
    assert needs.tokens == {("me", 3600)}


def test_sub_path_is_created_in_its_volume_if_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    mounts = [
        {"name": "v", "mountPath": "/a", "subPath": "file"},
        {"name": "v", "mountPath": "/b/", "subPathExpr": "dir/$(NAME)", "readOnly": True},
    ]
    pod = decode_pod(manifest("p", container(volumeMounts=mounts)))
    found = container_mounts(pod.spec.containers[0], {"v": MountedVolume(tmp_path)}, {"NAME": "p"})
    assert found == [
        Mount(str(tmp_path), "/a", sub_path="file"),
        Mount(str(tmp_path), "/b", read_only=True, sub_path="dir/p"),
    ]
    assert (tmp_path / "dir/p").is_dir()


def test_sub_path_through_a_link_out_of_the_volume_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "link").symlink_to("/etc")
    with pytest.raises(ContainerConfigError, match="leads out"):
        create_sub_path(MountedVolume(tmp_path / "v"), "link/passwd", owner=None)


@given(st.lists(st.sampled_from(["..", "a", ".", "", "b"]), max_size=6).map("/".join))
def test_no_sub_path_leads_out_of_its_volume(name: str) -> None:
    with tempfile.TemporaryDirectory() as base:
        volume = Path(base) / "volume"
        volume.mkdir()
        try:
            create_sub_path(MountedVolume(volume), name, owner=None)
        except ContainerConfigError:
            assert name.startswith("/") or ".." in name.split("/")
        else:
            assert (volume / name).is_dir()
        assert os.listdir(base) == ["volume"]


def test_without_a_sandbox_mounts_are_links_below_the_root(tmp_path: Path) -> None:
    pod, root = tmp_path / "pod", tmp_path / "pod" / "root"
    (pod / "v").mkdir(parents=True)
    root.mkdir()
    mounts = [Mount(str(pod / "v"), "/etc/volcano"), Mount(str(pod / "v"), "/etc/volcano/in")]
    link_mounts(root, mounts, pod=pod)
    (pod / "v" / "file").write_text("x")
    assert (root / "etc/volcano/file").read_text() == "x"
    outside = [Mount(str(tmp_path), "/host"), Mount(str(pod / "v"), "/host/below")]
    with pytest.raises(ContainerConfigError, match="/host/below"):
        link_mounts(root, outside, pod=pod)
    assert not (tmp_path / "below").exists()
