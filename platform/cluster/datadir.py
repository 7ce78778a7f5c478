"""The data folder of an embedded cluster: where things lie, and who may use it."""

import fcntl
import os
from pathlib import Path
from typing import Self


class DataDirBusyError(Exception):
    """Another ``batholith up`` holds this folder."""


class ForeignFolderError(Exception):
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

    def hold(self) -> None:
        """Make the folder and keep it until :meth:`release` or the end of this process.

        Raises:
            DataDirBusyError: somebody else holds it.
            ForeignFolderError: it is a folder of something else.
            OSError: it cannot be made or entered.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_ours()
        self.root.chmod(0o700)
        for folder in (self.pki, self.pods, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)
        # The kernel gives the lock back when its holder dies, however it dies.
        lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise DataDirBusyError(f"a cluster is already up in {self.root}") from None
        self._lock = lock

    def is_held_by_another(self) -> bool:
        """Whether another process holds the folder.

        Not for every day: for the moment of the look, somebody who wants to hold it is refused.
        """
        if self._lock is not None:
            return False
        try:
            lock = os.open(self.root / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _check_ours(self) -> None:
        """Keep from shutting others out of /tmp, or a home, that was named by mistake."""
        marks = (self.root / "lock", self.cluster_db)
        if not any(mark.exists() for mark in marks) and any(self.root.iterdir()):
            raise ForeignFolderError(f"{self.root} is not empty, and no data folder of Batholith")

    def release(self) -> None:
        """Let others have the folder; harmless when it is not held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
