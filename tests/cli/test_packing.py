"""The working directory as an archive."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from batholith.cli.submit.errors import SubmitError
from batholith.cli.submit.packing import IN_CLAIM, IN_CONFIGMAPS, pack
from batholith.model.workdirs import CHUNK, chunks


def unpacked(directory: Path) -> dict[str, bytes]:
    """Contents of the packed files by name; links and directories have their target or ``/``."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(pack(directory)), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            found[member.name] = (
                file.read() if file is not None else (member.linkname or "/").encode()
            )
            assert (member.uid, member.uname) == (0, "")
    return found


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        path = directory / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_files_directories_and_links_are_packed(tmp_path: Path) -> None:
    write(tmp_path, train_dot_py="print()", data__a="1", _dot_git__HEAD="x")
    (tmp_path / "link").symlink_to("data/a")
    (tmp_path / "outside").symlink_to("/etc/passwd")
    assert unpacked(tmp_path) == {
        "train.py": b"print()",
        "data": b"/",
        "data/a": b"1",
        "link": b"data/a",
        "outside": b"/etc/passwd",
    }


def test_the_ignore_file_leaves_out_names_paths_and_directories(tmp_path: Path) -> None:
    write(tmp_path, a_dot_log="", sub__b_dot_log="", data__x="", sub__data="", keep__big="", out="")
    (tmp_path / ".batholithignore").write_text("# comment\n*.log\n\ndata/\nkeep/big\n/out\n")
    assert set(unpacked(tmp_path)) == {".batholithignore", "sub", "sub/data", "keep"}


def test_exceptions_in_the_ignore_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".batholithignore").write_text("*.log\n!a.log\n")
    with pytest.raises(SubmitError, match="line 2: exceptions with ! are not supported"):
        pack(tmp_path)


def test_too_large_directories_are_refused_with_their_largest_files(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(os.urandom(10))
    (tmp_path / "large").write_bytes(os.urandom(IN_CONFIGMAPS.packed + 1))
    with pytest.raises(SubmitError, match=r"more than 1 MiB compressed.*\(largest: large, small\)"):
        pack(tmp_path)
    assert len(pack(tmp_path, IN_CLAIM)) > IN_CONFIGMAPS.packed
    (tmp_path / "large").unlink()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(SubmitError, match="largest: sparse"):
        pack(tmp_path)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(IN_CLAIM.unpacked + 1)
    with pytest.raises(SubmitError, match=r"more than 256 MiB compressed, or more than 1024 MiB"):
        pack(tmp_path, IN_CLAIM)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SubmitError, match="pipe is neither a file"):
        pack(tmp_path)


def test_an_archive_is_stored_in_pieces() -> None:
    archive = os.urandom(CHUNK + 1)
    assert [len(each) for each in chunks(archive)] == [CHUNK, 1]
    assert b"".join(chunks(archive)) == archive
