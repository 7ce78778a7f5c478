"""Removal of directories that pods have filled."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from batholith.agent.runtime.removal import remove_tree

DEPTH = 1500
"""More directories than Python permits recursive calls."""


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory in memory, if there is any: on a disk thousands of directories are slow."""
    shared = "/dev/shm"
    parent = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as created:
        yield Path(created)


def test_directories_of_any_depth_are_removed(fast_path: Path) -> None:
    top = fast_path / "volume"
    top.mkdir()
    current = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        for name in ("deeper", "empty"):
            os.mkdir(name, dir_fd=current)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=current))
        below = os.open("deeper", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)
    remove_tree(top)
    assert os.listdir(fast_path) == []


def test_directories_without_permissions_are_removed(tmp_path: Path) -> None:
    inner = tmp_path / "volume" / "closed" / "read-only" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    for directory in (inner.parent, inner.parent.parent):
        directory.chmod(0)
    remove_tree(tmp_path / "volume")
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "file").touch()
    volume = tmp_path / "volume"
    (volume / "deep").mkdir(parents=True)
    for link in (volume / "link", volume / "deep" / "link"):
        link.symlink_to(outside)
    os.mkfifo(volume / "deep" / "pipe")
    remove_tree(volume / "link")
    remove_tree(volume)
    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(outside) == ["file"]
    assert outside.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_directory_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    remove_tree(tmp_path / name)
    assert os.listdir(tmp_path) == ["file"]
