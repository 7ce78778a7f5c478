"""Components of one process start and stop together, in order."""

import asyncio
from dataclasses import dataclass, field

import pytest
from support.controller_api import ControllerApi

from batholith.cli.manager import ComponentExitedError, run_components
from batholith.kube.client.events import EventRecorder
from batholith.machinery.testing import run_ready_tasks
from batholith.model.meta import ObjectReference
from batholith.model.names import EVENTS


@dataclass
class FakeComponent:
    """Needs some iterations of the loop to stop, and records an event then."""

    recorder: EventRecorder
    name: str
    shutdown_iterations: int = 1
    events: list[str] = field(default_factory=list)
    error: Exception | None = None

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        assert ready is not None
        ready.set()
        try:
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            try:
                for _ in range(self.shutdown_iterations):
                    await run_ready_tasks()
                self.events.append("ended in order")
            except asyncio.CancelledError:
                self.events.append("cut short")
                raise
            about = ObjectReference(api_version="v1", kind="Pod", namespace="d", name=self.name)
            self.recorder.record(about, type="Normal", reason="Ended", message=self.name)


async def test_on_a_stop_each_component_shuts_down_and_its_last_events_are_written() -> None:
    async with ControllerApi() as api, api.client() as client:
        recorder = EventRecorder(client, component="tests")
        components = [
            FakeComponent(recorder, "one"),
            FakeComponent(recorder, "two", shutdown_iterations=5),
        ]
        ready = asyncio.Event()
        running = asyncio.create_task(run_components(recorder, *components, ready=ready))
        await ready.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [component.events for component in components] == [["ended in order"]] * 2
        assert {event["message"] for event in api.objects(EVENTS).values()} == {"one", "two"}


async def test_a_failed_component_stops_the_others_and_is_reported_once() -> None:
    async with ControllerApi() as api, api.client() as client:
        recorder = EventRecorder(client, component="tests")
        well = FakeComponent(recorder, "one")
        ill = FakeComponent(recorder, "two", error=RuntimeError("ill"))
        with pytest.RaisesGroup(
            pytest.RaisesExc(RuntimeError, match="ill"), flatten_subgroups=True
        ):
            await run_components(recorder, well, ill, ready=asyncio.Event())
        assert well.events == ["ended in order"]


class ExitingComponent:
    """Stops as if it had been cancelled."""

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        raise asyncio.CancelledError


async def test_a_component_that_stops_without_being_cancelled_ends_the_process() -> None:
    async with ControllerApi() as api, api.client() as client:
        recorder = EventRecorder(client, component="tests")
        with pytest.RaisesGroup(pytest.RaisesExc(ComponentExitedError), flatten_subgroups=True):
            await run_components(recorder, ExitingComponent(), ready=asyncio.Event())
