"""Reads files of volumes that contain environment variables; a pod may have replaced them."""

import os
import stat

from ..runtime.mounting import open_beneath
from ..state.core_types import FileKeySelector
from ..state.env_files import EnvFileError, parse_env_file
from ..state.environment import ContainerConfigError
from .volumes import MountedVolume

_MAX_BYTES = 1 << 20


def read_variable(volume: MountedVolume | None, ref: FileKeySelector) -> str | None:
    """Return the value of a variable in a file of *volume*; ``None``: it is optional and missing.

    Raises:
        ContainerConfigError: it is missing, or the file cannot be read.
    """
    if volume is None:
        raise ContainerConfigError(f'cannot find the volume "{ref.volume_name}" of a fileKeyRef')
    try:
        value = parse_env_file(_read(volume, ref.path), ref.key)
    except OSError as error:
        raise ContainerConfigError(f"env file {ref.path!r}: {error.strerror}") from error
    except (EnvFileError, UnicodeDecodeError) as error:
        raise ContainerConfigError(f"env file {ref.path!r}: {error}") from error
    if "\0" in value:
        raise ContainerConfigError(f"env file {ref.path!r}: {ref.key!r} contains a NUL byte")
    if value:
        return value
    if ref.optional:
        return None
    raise ContainerConfigError(
        f'environment variable key "{ref.key}" not found in file "{ref.path}"'
    )


def _read(volume: MountedVolume, path: str) -> str:
    top = os.open(volume.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = open_beneath(top, path)
    finally:
        os.close(top)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise ContainerConfigError(f"env file {path!r}: not a regular file")
        with open(f"/proc/self/fd/{found}", "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    finally:
        os.close(found)
    if len(content) > _MAX_BYTES:
        raise ContainerConfigError(f"env file {path!r}: more than {_MAX_BYTES} bytes")
    return content.decode()
