"""How the working directory of a submitted job is stored in ConfigMaps."""

from collections.abc import Sequence

MAX_ARCHIVE = 1 << 20
"""Bytes of the archive: more ConfigMaps would be a load on the API server."""
CHUNK = 512 << 10
"""Bytes of one ConfigMap, of which the API server accepts 1 MiB."""
CHUNK_KEY = "chunk"
"""Key of a ConfigMap with a piece of the archive."""


def chunks(archive: bytes) -> Sequence[bytes]:
    """Return *archive* in pieces, one for each ConfigMap."""
    return [archive[start : start + CHUNK] for start in range(0, len(archive), CHUNK)]


def configmap_names(job_name: str, archive: bytes) -> list[str]:
    """Return the names of the ConfigMaps of a job with this archive."""
    return [f"{job_name}-workdir-{number}" for number in range(len(chunks(archive)))]
