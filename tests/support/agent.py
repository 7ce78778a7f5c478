"""Builders and helpers of the agent's tests."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from batholith.local.agent.state.core_types import Pod
from batholith.local.agent.state.pod_actions import PodActions, compute_pod_actions
from batholith.local.agent.state.rendering import render
from batholith.local.agent.state.status import (
    Accepted,
    BackOff,
    Event,
    PodState,
    Prepared,
    apply,
)

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BACKOFF = BackOff()


def decode_pod(text: Mapping[str, Any]) -> Pod:
    """Return the agent's view of a pod with this manifest."""
    return msgspec.convert(text, Pod)


def manifest(name: str = "p", *containers: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod's manifest; without containers it has one, named ``c``."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def container(
    *command: str, name: str = "c", image: str = "busybox", **more: Any
) -> dict[str, Any]:
    """A container's part of a manifest."""
    created: dict[str, Any] = {"name": name, "image": image, **more}
    if command:
        created["command"] = list(command)
    return created


def after(seconds: float) -> datetime:
    """A moment of the tests' time."""
    return START + timedelta(seconds=seconds)


class PodStatusSimulator:
    """State of a pod that events advance; status and pod actions follow from it."""

    def __init__(self, pod: Pod, *events: Event) -> None:
        self.pod = pod
        self.state = PodState()
        self.apply(Accepted(START), Prepared("127.64.0.9", "127.0.0.1"), *events)

    def apply(self, *events: Event) -> "PodStatusSimulator":
        """Go on with the story."""
        for event in events:
            self.state = apply(self.state, event, BACKOFF)
        return self

    def status(self) -> dict[str, Any]:
        """What is shown."""
        return render(self.pod, self.state, now=after(1000), back_off=BACKOFF)

    def next_actions(self, seconds: float = 0) -> PodActions:
        """What is to be done at a moment."""
        return compute_pod_actions(self.pod, self.state, now=after(seconds), back_off=BACKOFF)
