"""What the agent keeps on disk about a pod, so that its successor knows.

```
pods/<uid>/pod.json                     address and when it was taken on, written before anything
pods/<uid>/hosts, hostname, volumes/
pods/<uid>/containers/<name>/<n>/       one run each (`runner`)
logs/<namespace>_<name>_<uid>/<container>/<n>.log
```
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from ...kube.private_files import GROUP_OTHER_WRITE, ensure_private_dir
from ..runtime import shim
from ..runtime.runs import RunDir
from ..state.core_types import Pod


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that was taken on."""

    uid: str
    namespace: str
    name: str
    ip: str
    accepted_at: str
    """RFC 3339."""

    boot: str = ""
    monotonic: float = 0.0
    """The same by the steady clock of this boot of the machine, which agents share."""

    ids: int = 0
    """First of the pod's user ids; 0 if it has none of its own."""


def make_dirs(data_dir: Path) -> None:
    """Make what the agent keeps its things in.

    Raises:
        UnsafePathError: others control one of them.
        OSError: one cannot be made.
    """
    for part in ("", "pods", "logs", "volumes"):
        # Older agents made them with the modes of the umask, which let others look in.
        ensure_private_dir(data_dir / part, forbidden=GROUP_OTHER_WRITE)


class PodDir:
    """One pod on disk."""

    def __init__(self, data_dir: Path, *, uid: str, log_name: str) -> None:
        if uid in ("", ".", "..") or "/" in uid:
            raise ValueError(f"not a uid: {uid!r}")
        self.path = data_dir / "pods" / uid
        self.logs = data_dir / "logs" / log_name

    @classmethod
    def of(cls, data_dir: Path, pod: Pod) -> "PodDir":
        """The folder of *pod*."""
        meta = pod.metadata
        log_name = f"{meta.namespace}_{meta.name}_{meta.uid}"
        return cls(data_dir, uid=meta.uid, log_name=log_name)

    @classmethod
    def all(cls, data_dir: Path) -> "Iterator[tuple[PodDir, PodRecord]]":
        """Every pod that has a record."""
        pods = data_dir / "pods"
        for path in sorted(pods.iterdir()) if pods.is_dir() else []:
            record = _read(path)
            if record is not None:
                log_name = f"{record.namespace}_{record.name}_{record.uid}"
                yield cls(data_dir, uid=path.name, log_name=log_name), record

    def read_record(self) -> PodRecord | None:
        """What was written when the pod was taken on."""
        return _read(self.path)

    def write_record(self, record: PodRecord) -> None:
        """Write the record, durably."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self.path / "pod.json.new"
        shim.write_atomically(str(new), msgspec.json.encode(record).decode())
        new.rename(self.path / "pod.json")

    def runs(self, container: str) -> list[RunDir]:
        """All runs of a container, oldest first."""
        folder = self.path / "containers" / container
        if not folder.is_dir():
            return []
        numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        return [RunDir(folder / str(number)) for number in numbers]

    def new_run(self, container: str) -> RunDir:
        """A run that was never tried; numbers are not used again, not even called-off ones."""
        runs = self.runs(container)
        number = int(runs[-1].path.name) + 1 if runs else 0
        return RunDir(self.path / "containers" / container / str(number))

    def log_path(self, run: RunDir) -> Path:
        """Where a run's output goes."""
        return self.logs / run.container_name / f"{run.path.name}.log"

    def containers(self) -> list[str]:
        """The containers that ever had a run."""
        folder = self.path / "containers"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    @classmethod
    def unrecorded(cls, data_dir: Path) -> "list[PodDir]":
        """Pods that an agent had begun to take on when it died; nothing of them ever ran."""
        pods = data_dir / "pods"
        found = sorted(pods.iterdir()) if pods.is_dir() else []
        return [
            cls(data_dir, uid=path.name, log_name=f"_{path.name}")
            for path in found
            if _read(path) is None
        ]

    def clear(self) -> None:
        """Drop what only containers needed: the pod is over, its logs and records stay."""
        shutil.rmtree(self.path / "volumes", ignore_errors=True)
        for name in self.containers():
            for run in self.runs(name):
                for part in ("root", "home", "work"):
                    shutil.rmtree(run.path / part, ignore_errors=True)

    @property
    def is_busy(self) -> bool:
        """Whether a container of the pod runs."""
        return any(run.shim_pid() for name in self.containers() for run in self.runs(name))

    def remove(self) -> None:
        """Forget the pod and its logs."""
        # The record goes last: what is left half-way is still known.
        for part in [*self._removable_entries(), self.logs]:
            shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def _removable_entries(self) -> list[Path]:
        return [path for path in self.path.iterdir() if path.is_dir()] if self.path.is_dir() else []


def _read(path: Path) -> PodRecord | None:
    with suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode((path / "pod.json").read_bytes(), type=PodRecord)
    return None
