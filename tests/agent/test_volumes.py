"""Volumes: content, and confinement of paths."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent import container, decode_pod, manifest

from batholith.agent.runtime.rootfs import Mount
from batholith.agent.state.environment import (
    ClaimVolume,
    ContainerConfigError,
    PodRuntimeInfo,
    ResolvedSources,
)
from batholith.agent.volumes.volumes import (
    MountedVolume,
    VolumeError,
    VolumePaths,
    container_mounts,
    link_mounts,
    make_sub_path,
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
    base: Path, *volumes: dict[str, Any], host_paths: tuple[str, ...] = ()
) -> dict[str, Path]:
    paths = VolumePaths(pod_dir=base / "pod", pvc_root=base / "claims", host_paths=host_paths)
    pod = decode_pod(manifest(volumes=[{"name": f"v{i}", **v} for i, v in enumerate(volumes)]))
    created = set_up_volumes(
        pod, paths=paths, sources=SOURCES, info=PodRuntimeInfo(pod_ip="127.64.0.1")
    )
    return {name: volume.path for name, volume in created.items()}


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
        ({"hostPath": {"path": "/etc"}}, "not below a permitted directory"),
        ({"persistentVolumeClaim": {"claimName": "missing"}}, 'claim "missing" not found'),
        ({"persistentVolumeClaim": {"claimName": "waits"}}, '"waits" is Pending'),
        ({"persistentVolumeClaim": {"claimName": "host"}}, "not below a permitted directory"),
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
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "out").symlink_to("/etc")
    permitted = (str(tmp_path / "open"),)
    created = set_up(tmp_path, {"hostPath": {"path": str(tmp_path / "open")}}, host_paths=permitted)
    assert created["v0"] == tmp_path / "open"
    with pytest.raises(VolumeError, match="permitted"):
        set_up(tmp_path, {"hostPath": {"path": str(tmp_path / "open/out")}}, host_paths=permitted)


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
        make_sub_path(str(tmp_path / "v"), "link/passwd", owner=None)


@given(st.lists(st.sampled_from(["..", "a", ".", "", "b"]), max_size=6).map("/".join))
def test_no_sub_path_leads_out_of_its_volume(name: str) -> None:
    with tempfile.TemporaryDirectory() as base:
        volume = Path(base) / "volume"
        volume.mkdir()
        try:
            make_sub_path(str(volume), name, owner=None)
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
