"""Paths that a container replaces during their resolution."""

import ctypes
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batholith.local.agent.runtime import mounting

SECRET = "tokens.json"


@pytest.fixture(params=["openat2", "by component"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How paths are resolved: by the kernel, or as before Linux 5.6."""
    if request.param == "by component":
        monkeypatch.setattr(mounting, "SYS_OPENAT2", 10**6)  # no kernel has that many calls


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A volume in which a directory and a link to a secret replace each other constantly."""
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    (volume / "dir").mkdir(parents=True)
    (volume / "dir" / SECRET).write_text("harmless")
    outside.mkdir()
    (outside / SECRET).write_text("secret")
    (volume / "link").symlink_to("../outside")
    ended = threading.Event()
    problems: list[str] = []

    def swap() -> None:
        library, exchange, here = ctypes.CDLL(None, use_errno=True), 2, -100
        one, other = os.fsencode(volume / "dir"), os.fsencode(volume / "link")
        while not ended.is_set():
            if library.renameat2(here, one, here, other, exchange) != 0:
                problems.append(os.strerror(ctypes.get_errno()))
                return

    swapping = threading.Thread(target=swap)
    swapping.start()
    yield volume
    ended.set()
    swapping.join()
    assert problems == []


def resolve_for(seconds: float, volume: Path) -> dict[str, int]:
    """Open and create paths during the replacement; count the outcomes."""
    top = os.open(volume, os.O_PATH)
    met = {"inside": 0, "refused": 0}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            held = mounting.open_beneath(top, f"dir/{SECRET}")
        except OSError as error:
            assert error.errno in (errno.ENOENT, errno.EXDEV, errno.ELOOP, errno.ENOTDIR)
            met["refused"] += 1
        else:
            with open(f"/proc/self/fd/{held}") as file:
                assert file.read() == "harmless"
            met["inside"] += 1
            os.close(held)
        try:
            mounting.mkdir_beneath(str(volume), "dir/new/deep", mode=0o777, owner=None)
        except OSError:
            met["refused"] += 1
    os.close(top)
    return met


@pytest.mark.usefixtures("way")
def test_concurrent_replacement_does_not_lead_out_of_a_volume(volume: Path) -> None:
    met = resolve_for(1.0, volume)
    assert min(met.values()) > 0, "both outcomes occurred"
    assert os.listdir(volume.parent / "outside") == [SECRET]


@pytest.mark.soak
@pytest.mark.usefixtures("way")
def test_concurrent_replacement_does_not_lead_out_of_a_volume_in_a_long_run(volume: Path) -> None:
    resolve_for(120.0, volume)
    assert os.listdir(volume.parent / "outside") == [SECRET]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "up/outside", "abs", "proc"])
def test_path_out_of_the_volume_is_not_opened(tmp_path: Path, path: str) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    (volume / "a").mkdir(parents=True)
    outside.mkdir()
    (volume / "up").symlink_to("..")
    (volume / "abs").symlink_to(outside)
    (volume / "proc").symlink_to(f"/proc/self/cwd{outside}")
    top = os.open(volume, os.O_PATH)
    with pytest.raises(OSError) as refused:
        mounting.open_beneath(top, path)
    assert refused.value.errno in (errno.EXDEV, errno.ELOOP)
    with pytest.raises(OSError):
        mounting.mkdir_beneath(str(volume), f"{path}/new", mode=0o777, owner=None)
    os.close(top)
    assert os.listdir(outside) == []


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to("secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(OSError):
            mounting.open_regular(str(tmp_path / name))
    os.close(mounting.open_regular(str(tmp_path / "secret")))
