"""Why a pod failed, as a text for people: from its status, as kubelets write it. Pure."""

from collections.abc import Iterable
from typing import Protocol

_MAX_MESSAGE = 300
"""Maximum length of a text that a program or a kubelet wrote, in a message about a job."""

_PLAIN_REASONS = frozenset({"", "Error", "Completed"})
"""Reasons that add nothing to the exit code."""

_DEADLINE_EXCEEDED = "DeadlineExceeded"
_SHORT_REASONS = frozenset({"OOMKilled"})
"""Reasons that suffice: the message is what the program wrote before."""


class Ended(Protocol):
    """Terminated state of a container."""

    @property
    def exit_code(self) -> int:
        """Exit code, 128 + n after signal n."""
        ...

    @property
    def reason(self) -> str:
        """Such as ``OOMKilled``, ``StartError`` or ``Error``."""
        ...

    @property
    def message(self) -> str:
        """Why it could not start, or what the program wrote about its end."""
        ...


def pod_exit_code(codes: Iterable[int], *, succeeded: bool) -> int | None:
    """Return the exit code of a pod: that of its first container that failed, 0 if it has
    *succeeded*, and else ``None``.

    *codes* are those of its containers that have terminated, in the order in which they run.
    """
    failed = next(filter(None, codes), None)
    return 0 if failed is None and succeeded else failed


def pod_failure(reason: str, message: str, containers: Iterable[tuple[str, Ended | None]]) -> str:
    """Return why a failed pod failed, such as ``exit code 3``; ``""`` if its status has no reason.

    *reason* and *message* are those of its status, *containers* its containers in the order in
    which they run: names, and states of those that have terminated. Only the reason of the pod is
    named if it has one: what ended the pod also ended its containers.
    """
    if reason == _DEADLINE_EXCEEDED:
        return f"{reason}: it ran longer than its activeDeadlineSeconds"
    if reason:
        return _joined(reason, message)
    known = list(containers)
    for name, ended in known:
        if ended is not None and ended.exit_code:
            text = _container_failure(ended)
            return text if len(known) == 1 else f"container {name}: {text}"
    return ""


def _container_failure(ended: Ended) -> str:
    code = f"exit code {ended.exit_code}"
    if ended.reason in _PLAIN_REASONS:
        return code
    if ended.reason in _SHORT_REASONS or not ended.message:
        return f"{ended.reason} ({code})"
    return _joined(ended.reason, ended.message)


def _joined(reason: str, message: str) -> str:
    text = " ".join(message.split())
    if len(text) > _MAX_MESSAGE:
        text = f"{text[:_MAX_MESSAGE]}…"
    return f"{reason}: {text}" if text else reason
