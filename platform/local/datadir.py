"""The data folder of an embedded cluster: where things lie, and who may use it."""

import fcntl
import os
from pathlib import Path
from typing import Self

from ..kube.private_files import check_mode, ensure_private_dir, open_private, open_private_dir

_MARKS = frozenset({"lock", "cluster.db"})
"""What a data folder is known by."""


class DataDirLockedError(Exception):
    """Another ``batholith up`` holds this folder."""


class NotADataDirError(Exception):
    """The folder holds things, and none that say that it is a data folder."""


class DataDir:
    """One folder, mode 0700, that one supervisor at a time holds."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.kubeconfig = self.root / "kubeconfig"
        self.cluster_db = self.root / "cluster.db"
        self.api_db = self.root / "api.db"
        self.pki = self.root / "pki"
        self.tokens = self.root / "tokens.json"
        self.pods = self.root / "pods"
        self.logs = self.root / "logs"
        self.up_json = self.root / "up.json"
        self._lock: int | None = None

    @classmethod
    def default(cls) -> Self:
        """``$XDG_DATA_HOME/batholith``."""
        home = Path(os.environ.get("XDG_DATA_HOME", ""))
        if not home.is_absolute():  # the specification of that variable has such values ignored
            home = Path.home() / ".local" / "share"
        return cls(home / "batholith")

    def lock(self) -> None:
        """Make the folder and keep it until :meth:`unlock` or the end of this process.

        Raises:
            DataDirBusyError: somebody else holds it.
            ForeignFolderError: it is a folder of something else.
            UnsafePathError: others control it.
            OSError: it cannot be made or entered.
        """
        if not self._has_data_dir_marks():
            raise NotADataDirError(f"{self.root} is not empty, and no data folder of Batholith")
        ensure_private_dir(self.root)
        # The kernel gives the lock back when its holder dies, however it dies.
        lock = open_private(self.root / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise DataDirLockedError(f"a cluster is already up in {self.root}") from None
        self._lock = lock
        # After the lock, which marks the folder: a crash in between leaves one that is ours.
        for folder in (self.pki, self.pods, self.logs):
            ensure_private_dir(folder)

    def check(self) -> bool:
        """Whether it is a data folder; changes nothing.

        Raises:
            UnsafePathError: others control it.
            OSError: it cannot be entered.
        """
        folder = open_private_dir(self.root)
        try:
            if not _MARKS.intersection(os.listdir(folder)):
                return False
            check_mode(self.root, os.fstat(folder))
            return True
        finally:
            os.close(folder)

    def is_locked_by_other(self) -> bool:
        """Whether another process holds the folder.

        Not for every day: for the moment of the look, somebody who wants to hold it is refused.
        """
        if self._lock is not None:
            return False
        try:
            lock = open_private(self.root / "lock")
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
        """Keep from shutting others out of /tmp, or a home, that was named by mistake."""
        try:
            folder = open_private_dir(self.root)
        except FileNotFoundError:
            return True
        try:
            found = os.listdir(folder)
        finally:
            os.close(folder)
        return not found or bool(_MARKS.intersection(found))

    def unlock(self) -> None:
        """Let others have the folder; harmless when it is not held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
