"""Files that another user may have prepared, or may read, are rejected."""

import os
from pathlib import Path

import pytest

from batholith.kube.client.config import load_credentials
from batholith.kube.errors import ConfigError, UnsafePathError
from batholith.kube.private_files import (
    GROUP_OTHER_WRITE,
    ensure_private_dir,
    open_private,
    open_private_dir,
    read_credential,
    read_private,
)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0o600)
    return path


def test_private_file_is_read(secret: Path) -> None:
    assert read_private(secret) == read_credential(secret) == b"x"


@pytest.mark.parametrize("read", [read_private, read_credential])
@pytest.mark.parametrize(("mode", "access"), [(0o640, "read"), (0o604, "read"), (0o620, "change")])
def test_permissive_mode_is_rejected(secret: Path, mode: int, access: str, read: object) -> None:
    secret.chmod(mode)
    assert callable(read)
    with pytest.raises(UnsafePathError, match=rf"{secret}: its mode 0{mode:o} lets .* {access} it"):
        read(secret)
    with pytest.raises(UnsafePathError, match=f"`chmod 600 {secret}`"):
        read(secret)


def test_world_readable_file_can_be_allowed(secret: Path) -> None:
    secret.chmod(0o644)
    assert read_private(secret, forbidden=GROUP_OTHER_WRITE) == b"x"


@pytest.mark.parametrize("read", [read_private, read_credential])
def test_symlink_is_rejected_even_to_a_private_file(secret: Path, read: object) -> None:
    link = secret.with_name("link")
    link.symlink_to(secret)
    assert callable(read)
    with pytest.raises(UnsafePathError, match=f"{link}: it is a symbolic link"):
        read(link)


def test_file_is_not_created_through_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "created")
    with pytest.raises(UnsafePathError, match="symbolic link"):
        open_private(tmp_path / "link", os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "created").exists()


def test_fifo_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for read in (read_private, read_credential):
        with pytest.raises(UnsafePathError, match="no regular file"):
            read(tmp_path / "fifo")


def test_file_of_another_user_is_rejected_even_for_root(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: secret.stat().st_uid + 1)
    with pytest.raises(UnsafePathError, match=f"{secret}: it belongs to .*, not to .*chown"):
        read_private(secret)
    with pytest.raises(UnsafePathError, match="belongs to"):
        open_private_dir(secret.parent)


def test_mounted_token_may_be_a_world_readable_link(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026/token").write_text("t")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "token").symlink_to("..data/token")
    (tmp_path / "..2026/token").chmod(0o644)
    assert read_credential(tmp_path / "token") == b"t"
    (tmp_path / "..2026/token").chmod(0o666)
    with pytest.raises(UnsafePathError, match="lets other users change it"):
        read_credential(tmp_path / "token")


def test_new_or_empty_directory_becomes_private_and_a_used_one_is_rejected(tmp_path: Path) -> None:
    directory = tmp_path / "a/b"
    ensure_private_dir(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o777)
    ensure_private_dir(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    (directory / "file").touch()
    directory.chmod(0o755)
    with pytest.raises(UnsafePathError, match=f"`chmod 700 {directory}`"):
        ensure_private_dir(directory)
    ensure_private_dir(directory, forbidden=GROUP_OTHER_WRITE)
    assert directory.stat().st_mode & 0o777 == 0o700


def test_directory_below_a_world_writable_parent_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsafePathError, match=f"rename what is in {tmp_path}/open"):
        ensure_private_dir(tmp_path / "open/data")
    (tmp_path / "open").chmod(0o1777)
    ensure_private_dir(tmp_path / "open/data")


def test_only_batholith_kubeconfigs_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "config"
    for user in ("other", "batholith-admin"):
        path.write_text(
            "{current-context: c, contexts: [{name: c, context: {cluster: c, user: U}}],"
            " clusters: [{name: c, cluster: {server: 'https://there'}}],"
            " users: [{name: U, user: {token: t}}]}".replace("U", user)
        )
        path.chmod(0o600)
        assert load_credentials(str(path)).token == "t"
        path.chmod(0o644)
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(path)
        if user == "other":
            assert (
                load_credentials(str(path)).token
                == load_credentials(str(tmp_path / "link")).token
                == "t"
            )
    with pytest.raises(ConfigError, match=f"{path}: its mode 0644"):
        load_credentials(str(path))
    with pytest.raises(ConfigError, match="symbolic link"):
        load_credentials(str(tmp_path / "link"))
