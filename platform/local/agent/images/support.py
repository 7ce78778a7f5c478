"""Whether containers can run images on this machine, and how their layers are stacked."""

import asyncio
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ..runtime.ids import IMAGES, SHARED, IdMode, Ids
from ..runtime.image_run import RunImage
from ..runtime.mounting import ID_RANGE_SIZE
from ..runtime.runs import IsolationLevel, IsolationReport, LaunchSpec, RunDir
from ..runtime.shim import START_ERROR
from .store import ImageStore, support_error

_NO_PROGRAM = "/batholith-probe"


@dataclass(slots=True)
class ImageSupport:
    """What the machine permits; a test run finds out, once, before the first image is run."""

    report: IsolationReport
    data_dir: Path
    overlay: bool = True
    """Whether overlayfs stacks layers, after `error` returned that images can be run."""

    _found: str | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def known_error(self) -> str:
        """Why images cannot be run, as far as it is known without a test run."""
        if self._found is not None:
            return self._found
        if self.report.isolation is IsolationLevel.PLAIN:
            return "no sandbox is available, and without one an image is no boundary"
        if os.geteuid() == 0 and self.report.id_mode is not IdMode.RANGE:
            return "pods of root have no separate user ids here, which images need"
        if not self.report.safe_paths:
            return "this machine permits user namespaces to bubblewrap alone, which images need"
        return ""

    async def error(self) -> str:
        """Return why images cannot be run; empty if they can."""
        async with self._lock:
            if self._found is None:
                self._found = self.known_error or await asyncio.to_thread(self._try)
        return self._found

    def _try(self) -> str:
        try:
            if error := support_error(self.data_dir):
                return error
            with ImageStore(self.data_dir).in_use():
                for overlay in (True, False):
                    error = _try_root(self.data_dir, overlay=overlay)
                    if not error:
                        self.overlay = overlay
                        return ""
        except OSError as failed:
            return str(failed)
        return error


def first_id() -> int | None:
    """Return the first of the user ids that own the layers; ``None`` if the agent's user does."""
    return IMAGES if os.geteuid() == 0 else None


def _try_root(data_dir: Path, *, overlay: bool) -> str:
    """Return why a root cannot be built of an image's layers; empty if it can.

    The layer has no program, so that a run can fail only at the last step. On the file system of
    the images, because not all permit what it takes.
    """
    with tempfile.TemporaryDirectory(prefix="probe-", dir=data_dir / "images" / "tmp") as text:
        base = Path(text)
        layer = base / "layer"
        layer.mkdir()
        first = first_id()
        if first is not None:
            os.chown(layer, first, first)
        run = RunDir(base / "pods" / "uid" / "c" / "0")
        run.prepare(
            LaunchSpec(
                argv=[_NO_PROGRAM],
                env={},
                cwd="/",
                log=base / "log",
                hostname="probe",
                isolation=IsolationLevel.UNSHARE,
                ids=Ids() if first is None else Ids(SHARED + ID_RANGE_SIZE),
                image=RunImage(
                    name="", image_id="", chains=(), directories=(str(layer),), first_id=first,
                    overlay=overlay,
                ),
            )
        )  # fmt: skip
        os.waitpid(run.start(), 0)
        record = run.exit_record()
        if record is None:
            return run.errors() or "the test run was lost"
        if record.reason == START_ERROR and record.message.startswith(f'exec: "{_NO_PROGRAM}"'):
            return ""
        return record.message or f"the test run exited with {record.code}"
