"""Removal of what containers leave, and other walks over directories that they have nested."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from batholith.local.agent.pods.records import PodDir, PodRecord
from batholith.local.agent.runtime.ids import SHARED, chown_tree
from batholith.local.agent.runtime.removal import remove_tree

DEPTH = 3_000


@pytest.fixture(autouse=True)
def few_open_files() -> Iterator[None]:
    """Permit fewer open files than directories are nested."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def nest(directory: Path, depth: int, name: str = "directory") -> None:
    """Create nested directories with a file in the innermost one."""
    directory.mkdir(parents=True, exist_ok=True)
    current = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.close(current)


def test_deeply_nested_directories_are_removed(tmp_path: Path) -> None:
    nest(tmp_path / "tree", DEPTH)
    nest(tmp_path / "tree", 5, name="other")
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_directories_without_permissions_are_removed(tmp_path: Path) -> None:
    for path in ("tree/a/b/c", "tree/d"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "file").touch()
    for path in ("tree/a/b/c", "tree/a/b", "tree/a", "tree/d", "tree"):
        (tmp_path / path).chmod(0)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    for path in ("tree/link", "tree/deep/link"):
        (tmp_path / path).symlink_to(tmp_path / "outside")
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    (tmp_path / "top").symlink_to("outside")
    remove_tree(tmp_path / "top")
    assert os.listdir(tmp_path / "outside") == ["file"]


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_directory_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    remove_tree(tmp_path / name)
    assert os.listdir(tmp_path) == ["file"]


def test_pod_with_deeply_nested_volumes_is_removed(tmp_path: Path) -> None:
    pod_dir = PodDir(tmp_path, uid="u", log_name="n_p_u")
    record = PodRecord(uid="u", namespace="n", name="p", ip="127.0.0.2", accepted_at="")
    pod_dir.write_record(record)
    nest(pod_dir.path / "volumes" / "v", DEPTH)
    pod_dir.clear()
    assert not (pod_dir.path / "volumes").exists()
    nest(pod_dir.path / "containers" / "c" / "0" / "work", DEPTH)
    pod_dir.remove()
    assert not pod_dir.path.exists()


def test_owners_of_deeply_nested_files_are_shifted(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can change owners")
    nest(tmp_path / "tree", 1_200, name="d")
    chown_tree(tmp_path / "tree", SHARED)
    innermost = tmp_path / "tree" / "/".join(["d"] * 1_200) / "file"
    assert innermost.stat().st_uid == (tmp_path / "tree").stat().st_uid == SHARED
    remove_tree(tmp_path / "tree")
