"""Pulls in processes of their own: an agent must not wait for them, nor be at risk by them.

The request is on standard input, the result on standard output. Credentials are in neither
arguments nor environment, which other processes can read.
"""

import asyncio
import ctypes
import os
import signal
import sys
from pathlib import Path

import msgspec

from .credentials import Endpoint
from .errors import ImageError
from .references import Reference
from .store import ImageStore, StoredImage
from .unpacking import UnpackLimits

_PR_SET_PDEATHSIG = 1
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
_PROXY_SUFFIX = "_PROXY"


class PullRequest(msgspec.Struct, frozen=True):
    """What to pull."""

    data_dir: str
    name: tuple[str, str, str, str]
    """Fields of a `Reference`."""

    endpoints: tuple[Endpoint, ...]
    size: int
    free: int


class _PullResult(msgspec.Struct):
    image: StoredImage | None = None
    error: str = ""


async def pull_in_process(
    data_dir: Path, name: Reference, endpoints: tuple[Endpoint, ...], limits: UnpackLimits
) -> StoredImage:
    """Pull an image; a cancellation kills the process, which leaves nothing incomplete.

    Raises:
        ImageError: it failed.
    """
    fields = (name.registry, name.repository, name.tag, name.digest)
    request = PullRequest(str(data_dir), fields, endpoints, limits.size, limits.free)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", _program(), stdin=pipe, stdout=pipe, stderr=pipe,
        env=_environment(),
    )  # fmt: skip
    try:
        output, errors = await process.communicate(msgspec.json.encode(request))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        result = msgspec.json.decode(output, type=_PullResult)
    except msgspec.DecodeError:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ImageError(f"the pull failed: {last[-500:]}") from None
    if result.image is None:
        raise ImageError(result.error)
    return result.image


def _program() -> str:
    """Return a program that runs `main` with the modules of this process, none of its directory."""
    path = [each for each in sys.path if os.path.isabs(each)]
    return f"import sys; sys.path[:] = {path!r}; from {__name__} import main; main()"


def _environment() -> dict[str, str]:
    """Return the environment of a pull: without the cluster's certificates, with proxies."""
    return {
        key: value
        for key, value in os.environ.items()
        if key in _KEPT_VARIABLES or key.upper().endswith(_PROXY_SUFFIX)
    }


def main() -> None:
    """Pull the image of the request on standard input."""
    from .registry import pull  # with httpx, which processes that pull nothing do without

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=PullRequest)
    limits = UnpackLimits(size=request.size, free=request.free)
    result = _PullResult()
    try:
        store = ImageStore(Path(request.data_dir))
        name = Reference(*request.name)
        result.image = pull(store, name, request.endpoints, limits=limits)
    except (ImageError, OSError) as error:
        result.error = str(error)
    sys.stdout.buffer.write(msgspec.json.encode(result))
