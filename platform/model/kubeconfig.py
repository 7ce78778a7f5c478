"""Kubeconfig files: contexts with their cluster and user, merged as kubectl merges files."""

import base64
import binascii
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN_USER_PREFIX = "batholith-"
"""User names in kubeconfigs of ``batholith up``, which must be private to their owner."""

Document = tuple[Path, Mapping[str, Any]]
"""A file and its content."""


class KubeconfigError(ValueError):
    """A file cannot be used; the text names it and the cause."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A named cluster, user or context, and the file that contains it."""

    body: Mapping[str, Any]
    path: Path

    def text(self, key: str) -> str:
        """Return a value as text; empty if it is missing."""
        value = self.body.get(key)
        return "" if value is None else str(value)

    def file(self, key: str) -> Path | None:
        """Return a path; a relative one is resolved against the kubeconfig's directory."""
        value = self.text(key)
        return self.path.parent / Path(value).expanduser() if value else None

    def data(self, key: str) -> bytes:
        """Return what a value is the base64 of; empty if it is missing.

        Raises:
            KubeconfigError: it is not base64.
        """
        try:
            return base64.b64decode("".join(self.text(key).split()), validate=True)
        except (binascii.Error, ValueError):
            raise KubeconfigError(f"{self.path}: {key} is not base64") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A context of a kubeconfig."""

    name: str
    namespace: str
    cluster: Entry
    user: Entry
    must_be_private: bool
    """The file of the user is from ``batholith up``: other users must not be able to write it."""


def default_paths() -> list[Path]:
    """Return the files of ``$KUBECONFIG``, else ``~/.kube/config``; they need not exist."""
    listed = [Path(path) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    # Unlike Path.expanduser this does not fail for a uid without passwd entry, as in pods.
    return listed or [Path(os.path.expanduser("~/.kube/config"))]


def parse(path: Path, text: bytes) -> Document:
    """Return the content of a file.

    Raises:
        KubeconfigError: it is not YAML, or not a mapping.
    """
    # Only users of kubeconfigs need it.
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # The parser's message quotes the text, which may be a token.
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise KubeconfigError(f"{path} is not YAML{where}") from None
    if document is not None and not isinstance(document, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig: its top level is no mapping")
    return path, document or {}


def find_context(documents: Sequence[Document], name: str | None = None) -> Context:
    """Return the context *name*, by default the current one, of the merged files.

    Raises:
        KubeconfigError: there is no such context, or its cluster or user is missing.
    """
    current = (str(document.get("current-context") or "") for _, document in documents)
    chosen = name or next(filter(None, current), "")
    if not chosen:
        raise KubeconfigError(f"{documents[0][0]}: no context given and no current-context set")
    context = _find(documents, "context", chosen)
    user_name = context.text("user")
    return Context(
        name=chosen,
        namespace=context.text("namespace") or "default",
        cluster=_find(documents, "cluster", context.text("cluster")),
        user=_find(documents, "user", user_name) if user_name else Entry({}, context.path),
        must_be_private=user_name.startswith(OWN_USER_PREFIX),
    )


def entries(found: object) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings of a list."""
    if isinstance(found, list):
        yield from (entry for entry in found if isinstance(entry, dict))


def extension(cluster: Entry, name: str) -> Any:
    """Return an extension of a cluster; ``None`` if it is missing."""
    for each in entries(cluster.body.get("extensions")):
        if each.get("name") == name:
            return each.get("extension")
    return None


def _find(documents: Sequence[Document], kind: str, name: str) -> Entry:
    """Return the first entry of a name."""
    for path, document in documents:
        for entry in entries(document.get(f"{kind}s")):
            if entry.get("name") == name:
                body = entry.get(kind) or {}
                if not isinstance(body, dict):
                    raise KubeconfigError(f"{path}: {kind} {name!r} is no mapping")
                return Entry(body, path)
    files = ", ".join(str(path) for path, _ in documents)
    raise KubeconfigError(f"{files}: no {kind} named {name!r}")
