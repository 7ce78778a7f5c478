"""Data directory of an embedded cluster: its layout and its lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ...kube.private_files import check_mode, ensure_private_dir, open_private, open_private_dir

LOCK_NAME = "lock"
_MARKS = frozenset({LOCK_NAME, "cluster.db"})
"""Files that mark a data directory."""


class DataDirLockedError(Exception):
    """Another ``batholith up`` holds this directory."""


class NotADataDirError(Exception):
    """The directory is not empty, and not a data directory."""


class DataDir:
    """Directory of mode 0700 that one supervisor at a time holds."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.kubeconfig = self.root / "kubeconfig"
        self.api_socket = self.root / "apiserver.sock"
        self.cluster_db = self.root / "cluster.db"
        self.api_db = self.root / "api.db"
        self.pki = self.root / "pki"
        self.tokens = self.root / "tokens.json"
        self.sign_in = self.root / "sign-in.json"
        self.notify_key = self.root / "notify-key"
        self.pods = self.root / "pods"
        self.logs = self.root / "logs"
        self.up_json = self.root / "up.json"
        self.ports = self.root / "ports.json"
        self.node_json = self.root / "node.json"
        self.disk_reserve = self.root / "cluster.reserve"
        self._lock: int | None = None

    @classmethod
    def default(cls) -> Self:
        """``$XDG_DATA_HOME/batholith``."""
        home = Path(os.environ.get("XDG_DATA_HOME", ""))
        if not home.is_absolute():  # the XDG specification: ignore relative values
            home = Path.home() / ".local" / "share"
        return cls(home / "batholith")

    def lock(self) -> None:
        """Create the directory and lock it until :meth:`unlock` or the exit of this process.

        Raises:
            DataDirLockedError: another process holds it.
            NotADataDirError: it has other content.
            UnsafePathError: other users control it.
            OSError: it cannot be created or opened.
        """
        with self._clear_errors():
            if not self._has_data_dir_marks():
                raise NotADataDirError(f"{self.root} is not empty and not a data directory")
            ensure_private_dir(self.root)
            # The kernel releases the lock when its holder dies, even by SIGKILL.
            lock = open_private(self.root / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise DataDirLockedError(f"a cluster is already up in {self.root}") from None
        self._lock = lock
        # After the lock file, which marks a data directory even if this process is killed here.
        for directory in (self.pki, self.pods, self.logs):
            ensure_private_dir(directory)

    def check(self) -> bool:
        """Return whether it is a data directory; change nothing.

        Raises:
            UnsafePathError: other users control it.
            OSError: it cannot be opened.
        """
        with self._clear_errors():
            opened = open_private_dir(self.root)
        try:
            if not _MARKS.intersection(os.listdir(opened)):
                return False
            check_mode(self.root, os.fstat(opened))
            return True
        finally:
            os.close(opened)

    def is_locked_by_other(self) -> bool:
        """Return whether another process holds the directory.

        The check itself locks it for an instant, in which a concurrent `lock` fails.
        """
        if self._lock is not None:
            return False
        try:
            lock = open_private(self.root / LOCK_NAME)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _has_data_dir_marks(self) -> bool:
        """Guard against changing the mode of /tmp, or of a home, that was named by mistake."""
        try:
            opened = open_private_dir(self.root)
        except FileNotFoundError:
            return True
        try:
            found = os.listdir(opened)
        finally:
            os.close(opened)
        return not found or bool(_MARKS.intersection(found))

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Name the directory and the reason in an error of the operating system."""
        try:
            yield
        except OSError as error:
            if error.errno is None:  # its text is complete
                raise
            text = f"cannot use the data directory {self.root}: {error.strerror}"
            raise type(error)(text) from error

    def unlock(self) -> None:
        """Release the lock, if it is held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
