"""Which version of a pod a binding is meant for, when we have just written the pod ourselves."""

import asyncio

from batholith.machinery.testing import run_ready_tasks
from batholith.model.meta import ObjectMeta
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.writers.pod_versions import PodVersions


def lister_of(version: str) -> Pod:
    return Pod(metadata=ObjectMeta(name="p", namespace="d", uid="u", resource_version=version))


def test_the_newer_of_what_was_seen_and_what_we_wrote_counts() -> None:
    pods = {"d/p": lister_of("9")}
    standing = PodVersions(pods.get)
    assert standing.version("d/p", "u") == "9"
    standing.record_write("u", "10")
    assert standing.version("d/p", "u") == "10", "as a number, which is more than 9"
    pods["d/p"] = lister_of("11")
    assert standing.version("d/p", "u") == "11"


def test_of_another_pod_of_that_name_no_version_is_known() -> None:
    standing = PodVersions({"d/p": lister_of("9")}.get)
    standing.record_write("other", "10")
    assert standing.version("d/p", "other") == ""
    assert standing.version("d/nobody", "u") == ""


async def test_whoever_asks_in_the_midst_of_a_write_waits_for_its_end() -> None:
    standing = PodVersions()
    waits = asyncio.create_task(standing.wait_idle("u"))
    await waits  # nothing is under way
    with standing.write_in_progress("u"):
        waits = asyncio.create_task(standing.wait_idle("u"))
        others = asyncio.create_task(standing.wait_idle("another"))
        await run_ready_tasks()
        assert (waits.done(), others.done()) == (False, True)
    await waits
