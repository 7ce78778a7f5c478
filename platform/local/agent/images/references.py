"""Names of images, as container runtimes normalize them."""

import re
from dataclasses import dataclass

from .errors import ImageError

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_REGISTRY = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_NAME = 255
DEFAULT_REGISTRY = "docker.io"


@dataclass(frozen=True, slots=True)
class Reference:
    """A complete name of an image; it has either a tag or a digest."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        """``docker.io/library/busybox:latest``."""
        return f"{self.path}@{self.digest}" if self.digest else f"{self.path}:{self.tag}"

    @property
    def path(self) -> str:
        """Registry and repository: ``docker.io/library/busybox``."""
        return f"{self.registry}/{self.repository}"


def is_digest(text: str) -> bool:
    """Return whether *text* is ``sha256:`` and 64 hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def parse(text: str) -> Reference:
    """Return the complete name of ``busybox``, ``localhost:5000/a/b:1`` or ``a@sha256:…``.

    As in container runtimes, a digest replaces the tag.

    Raises:
        ImageError: it is not the name of an image.
    """
    rest, separator, digest = text.partition("@")
    if separator and not is_digest(digest):
        raise ImageError(f"image name {text!r}: {digest!r} is not a digest sha256:…")
    name, tag = rest, ""
    if ":" in rest.rpartition("/")[2]:
        name, _, tag = rest.rpartition(":")
        if not _TAG.fullmatch(tag):
            raise ImageError(f"image name {text!r}: {tag!r} is not a tag")
    first, _, path = name.partition("/")
    if path and (set(".:") & set(first) or first == "localhost" or first != first.lower()):
        registry, repository = first, path
    else:
        registry, repository = DEFAULT_REGISTRY, name
    if registry in ("index.docker.io", DEFAULT_REGISTRY):
        registry = DEFAULT_REGISTRY
        repository = repository if "/" in repository else f"library/{repository}"
    if (
        not _REGISTRY.fullmatch(registry)
        or not _REPOSITORY.fullmatch(repository)
        or len(registry) + len(repository) > _MAX_NAME
    ):
        raise ImageError(f"{text!r} is not the name of an image")
    if digest:
        return Reference(registry, repository, digest=digest)
    return Reference(registry, repository, tag=tag or "latest")
