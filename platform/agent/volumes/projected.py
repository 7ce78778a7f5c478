"""Volumes whose files come from the API: what is in them, and how it changes under a running pod.

A folder shows its files through links, so that all of them change in one step, as a kubelet does
it: whoever watches the folder sees `..data` being replaced, and never half of a change.

```
worker.host -> ..data/worker.host
..data      -> ..x7d2kq_a
..x7d2kq_a/worker.host
```
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..state.core_types import DataSource, DownwardSource, KeyToPath, Pod, Projection, Volume
from ..state.environment import ConfigError, Facts, Sources, field_value, resource_value

_FILE_MODE = 0o644
_TOKEN_MODE = 0o600
_DATA = "..data"
_NEW = "..link"


@dataclass(frozen=True, slots=True)
class File:
    """What one file holds, and who may read it."""

    content: bytes
    mode: int


def projections(volume: Volume) -> tuple[Projection, ...]:
    """The volume's sources, a simple one as a projection of one; empty for other volumes."""
    if volume.projected:
        return volume.projected.sources
    if volume.config_map or volume.secret or volume.downward_api:
        one = Projection(
            config_map=volume.config_map, secret=volume.secret, downward_api=volume.downward_api
        )
        return (one,)
    return ()


def secret_name(source: DataSource) -> str:
    """The Secret that *source* means."""
    return source.secret_name or source.name


def files_of(volume: Volume, pod: Pod, *, sources: Sources, facts: Facts) -> dict[str, File]:
    """The files of a volume by their names in it; what is named later wins.

    Raises:
        ConfigError: something that must be there is not, or a name leads out of the volume.
    """
    reader = _Reader(
        pod, sources, facts, volume.projected.default_mode if volume.projected else None
    )
    files = {name: file for part in projections(volume) for name, file in reader.read(part)}
    for name in files:
        _check(name)
    return files


@dataclass(frozen=True, slots=True)
class _Reader:
    pod: Pod
    sources: Sources
    facts: Facts
    mode: int | None
    """Mode of files whose source names none."""

    def read(self, part: Projection) -> Iterator[tuple[str, File]]:
        if part.config_map:
            name = part.config_map.name
            held = self.sources.config_maps.get(name)
            yield from self._data(part.config_map, f'configmap "{name}"', held)
        if part.secret:
            name = secret_name(part.secret)
            held = self.sources.secrets.get(name)
            yield from self._data(part.secret, f'secret "{name}"', held)
        if part.downward_api:
            yield from self._downward(part.downward_api)
        if part.service_account_token:
            token = self.sources.tokens.get(part.service_account_token.audience)
            if token is not None:  # a server without service account tokens gives none
                yield part.service_account_token.path, File(token, _TOKEN_MODE)

    def _data(
        self, source: DataSource, what: str, held: Mapping[str, bytes] | None
    ) -> Iterator[tuple[str, File]]:
        if held is None:
            if source.optional:
                return
            raise ConfigError(f"{what} not found")
        for item in source.items or tuple(KeyToPath(key=key, path=key) for key in held):
            if item.key in held:
                yield item.path, File(held[item.key], self._mode(item.mode, source.default_mode))
            elif not source.optional:
                raise ConfigError(f"{what} references non-existent key: {item.key}")

    def _downward(self, source: DownwardSource) -> Iterator[tuple[str, File]]:
        for item in source.items:
            text = ""
            if item.field_ref:
                text = field_value(self.pod, item.field_ref, self.facts)
            elif item.resource_field_ref:
                text = resource_value(self.pod, item.resource_field_ref, self.facts)
            mode = self._mode(item.mode, source.default_mode)
            yield item.path, File(text.encode(), mode)

    def _mode(self, own: int | None, default: int | None) -> int:
        return next((mode for mode in (own, default, self.mode) if mode is not None), _FILE_MODE)


def _check(name: str) -> None:
    parts = name.split("/")
    if name.startswith(("/", "..")) or ".." in parts:
        raise ConfigError(f"the path {name!r} must be relative and must not contain '..'")


def publish(folder: Path, files: Mapping[str, File], *, owner: int | None = None) -> bool:
    """Have *folder* show *files* and nothing else of ours, in one step; whether that is new.

    The files are *owner*'s, if that is anybody. May be interrupted anywhere and called again. Not
    by two at once.

    Raises:
        OSError: the disk is full, or the folder is gone.
    """
    if _shown(folder / _DATA, owner) == files:
        _link_all(folder, files)
        return False
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    fresh.chmod(0o755)
    for name, file in files.items():
        _write(fresh / name, file, owner)
    _link(folder / _DATA, fresh.name)
    _link_all(folder, files)
    for entry in folder.iterdir():
        if entry.name.startswith("..") and entry not in (folder / _DATA, fresh):
            shutil.rmtree(entry, ignore_errors=True)
    return True


def _shown(data: Path, owner: int | None) -> dict[str, File] | None:
    """The files as they are now; ``None`` if there are none yet, or they cannot be read."""
    if not data.is_dir():
        return None
    files = [path for path in data.rglob("*") if path.is_file()]
    try:
        if owner is not None and any(path.stat().st_uid != owner for path in files):
            return None  # of an earlier agent, which gave them to another
        return {
            str(path.relative_to(data)): File(path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
            for path in files
        }
    except OSError:  # a mode that forbids even us to read
        return None


def _write(path: Path, file: File, owner: int | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(file.content)
        if owner is not None:
            os.fchown(opened.fileno(), owner, owner)
        os.fchmod(opened.fileno(), file.mode)


def _link_all(folder: Path, files: Mapping[str, File]) -> None:
    """Links for what is there, none for what is not."""
    wanted = {name.partition("/")[0] for name in files}
    for name in wanted:
        if not os.path.isdir(folder / name) or os.path.islink(folder / name):
            _link(folder / name, f"{_DATA}/{name}")
    for entry in folder.iterdir():
        ours = entry.is_symlink() and os.readlink(entry) == f"{_DATA}/{entry.name}"
        if ours and entry.name not in wanted:
            entry.unlink()


def _link(place: Path, target: str) -> None:
    if place.is_symlink() and os.readlink(place) == target:
        return
    new = place.parent / _NEW
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.rename(place)
