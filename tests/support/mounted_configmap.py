"""A ConfigMap as kubelet mounts it."""

from pathlib import Path


class MountedConfigMap:
    """A directory as kubelet mounts it: files are links into one that is replaced as a whole."""

    def __init__(self, directory: Path, text: str) -> None:
        self._directory = directory
        self._versions = 0
        self.file = directory / "volcano-scheduler.conf"
        self.replace(text)
        self.file.symlink_to("..data/volcano-scheduler.conf")

    def replace(self, text: str) -> None:
        """Write a new version and swap the link."""
        self._versions += 1
        version = self._directory / f"..{self._versions}"
        version.mkdir()
        (version / self.file.name).write_text(text)
        new = self._directory / "..data_tmp"
        new.symlink_to(version.name)
        new.rename(self._directory / "..data")

    def remove(self) -> None:
        """Let the file go, as when the key is removed."""
        self.file.unlink()
