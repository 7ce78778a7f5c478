"""resourceVersions of pods right after the scheduler's own writes."""

import asyncio

from batholith.machinery.testing import run_ready_tasks
from batholith.model.meta import ObjectMeta
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.writers.pod_versions import PodVersions


def pod_of(version: str) -> Pod:
    return Pod(metadata=ObjectMeta(name="p", namespace="d", uid="u", resource_version=version))


def test_version_is_the_newer_of_informer_and_last_write() -> None:
    pods = {"d/p": pod_of("9")}
    versions = PodVersions(pods.get)
    assert versions.version("d/p", "u") == "9"
    versions.record_write("u", "10")
    assert versions.version("d/p", "u") == "10", "compared as a number"
    pods["d/p"] = pod_of("11")
    assert versions.version("d/p", "u") == "11"


def test_version_of_a_pod_with_another_uid_is_unknown() -> None:
    versions = PodVersions({"d/p": pod_of("9")}.get)
    versions.record_write("other", "10")
    assert versions.version("d/p", "other") == ""
    assert versions.version("d/none", "u") == ""


async def test_wait_idle_waits_for_the_end_of_a_write() -> None:
    versions = PodVersions()
    waits = asyncio.create_task(versions.wait_idle("u"))
    await waits
    with versions.write_in_progress("u"):
        waits = asyncio.create_task(versions.wait_idle("u"))
        others = asyncio.create_task(versions.wait_idle("another"))
        await run_ready_tasks()
        assert (waits.done(), others.done()) == (False, True)
    await waits
