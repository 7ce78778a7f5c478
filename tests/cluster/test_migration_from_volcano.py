"""Migration of a cluster with Volcano's objects at any point of their lifecycle: nothing is
disturbed.

Each moment is one of a recording of Volcano. Then Volcano is stopped, and our controllers and our
scheduler start; the test is the kubelet.
"""

from pathlib import Path

from support.api_servers import ServerFactory, add_node
from support.polling import wait_for
from support.volcano_migration import VolcanoMigration, volcano_cluster

from batholith.model.names import JOBS, QUEUES


def assert_undisturbed(it: VolcanoMigration) -> None:
    """The objects that Volcano left still exist, and no others."""
    assert not it.deleted_uids
    assert it.pods() == it.volcano_objects("Pod")
    assert it.podgroups() == it.volcano_objects("PodGroup")


async def test_a_running_job_runs_on_and_completes(servers: ServerFactory, tmp_path: Path) -> None:
    async with volcano_cluster(servers, tmp_path, "running") as it:
        [group] = it.volcano_objects("PodGroup")
        await it.start_controllers()
        assert_undisturbed(it)
        assert it.phases.get("Job/j", ["Running"]) == ["Running"]
        assert it.phases.get(f"PodGroup/{group}", ["Running"]) == ["Running"]
        await it.finish_pods()
        await wait_for(lambda: it.phase("Job", "j") == "Completed")
        job = it.get("Job", "j")
        assert job is not None
        assert job.status_fields["succeeded"] == 3
        assert job.status_fields.get("retryCount", 0) == 0
        assert it.pods() == it.volcano_objects("Pod")


async def test_pods_that_wait_are_bound_and_not_made_again(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "starting") as it:
        await it.start_controllers()
        await wait_for(lambda: it.phase("Job", "j") == "Running")
        await wait_for(lambda: it.pods("Running") == it.volcano_objects("Pod"))
        assert_undisturbed(it)
        await it.finish_pods()
        await wait_for(lambda: it.phase("Job", "j") == "Completed")
        assert it.pods() == it.volcano_objects("Pod")


async def test_a_job_on_its_way_to_be_aborted_is_aborted_and_can_be_resumed(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "aborting", pods_terminate=False) as it:
        await it.start_controllers()
        assert it.phase("Job", "j") == "Aborting"
        assert it.pods() == it.volcano_objects("Pod")
        await it.finish_terminating_pods()
        await wait_for(lambda: it.phase("Job", "j") == "Aborted" and not it.pods())
        await it.command("ResumeJob", JOBS, "j")
        await wait_for(lambda: it.phase("Job", "j") == "Running" and len(it.pods("Running")) == 2)
        assert it.deleted_uids == set(it.volcano_objects("Pod").values())


async def test_an_aborted_job_stays_so_until_it_is_resumed(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "aborted") as it:
        await it.start_controllers()
        assert it.phases.get("Job/j", ["Aborted"]) == ["Aborted"]
        assert it.pods() == {}
        await it.command("ResumeJob", JOBS, "j")
        await wait_for(lambda: it.phase("Job", "j") == "Running")
        await wait_for(lambda: sorted(it.pods("Running")) == ["j-t-0", "j-t-1"])
        await it.finish_pods()
        await wait_for(lambda: it.phase("Job", "j") == "Completed")


async def test_a_job_that_starts_anew_after_a_failure_does_so(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "restarting", pods_terminate=False) as it:
        await it.start_controllers()
        await it.finish_terminating_pods()
        await wait_for(lambda: it.phase("Job", "j") == "Running" and len(it.pods("Running")) == 3)
        job = it.get("Job", "j")
        assert job is not None
        assert job.status_fields["retryCount"] == 1


async def test_a_gang_that_waits_goes_on_waiting_and_starts_when_there_is_room(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "waiting") as it:
        await it.start_controllers()
        assert_undisturbed(it)
        assert it.phase("Job", "j") == "Pending"
        for number in range(3):
            await add_node(it.server, f"large-{number}", cpu="64", memory="128Gi")
        await wait_for(lambda: it.phase("Job", "j") == "Running")
        assert it.podgroups() == it.volcano_objects("PodGroup")


async def test_a_job_that_is_over_is_left_alone(servers: ServerFactory, tmp_path: Path) -> None:
    async with volcano_cluster(servers, tmp_path, "completed") as it:
        await it.start_controllers()
        assert_undisturbed(it)
        assert it.phase("Job", "j") == "Completed"
        assert it.phases.get("Job/j", ["Completed"]) == ["Completed"]


async def test_a_closing_queue_closes_when_its_job_is_over(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "queue-closing") as it:
        await it.start_controllers()
        assert_undisturbed(it)
        assert it.phase("Job", "j") == "Running"
        assert it.phases.get("Queue/gq-a", ["Closing"]) == ["Closing"]
        await it.finish_pods()
        await wait_for(lambda: it.phase("Job", "j") == "Completed")
        await it.client.delete(JOBS, "j", namespace="default")
        await wait_for(lambda: it.phase("Queue", "gq-a") == "Closed")


async def test_a_closed_queue_stays_closed_until_it_is_opened(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "queue-closed") as it:
        await it.start_controllers()
        assert it.phases.get("Queue/gq-a", ["Closed"]) == ["Closed"]
        await it.command("OpenQueue", QUEUES, "gq-a")
        await wait_for(lambda: it.phase("Queue", "gq-a") == "Open")


async def test_pods_without_a_job_keep_their_podgroups(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "bare-pods") as it:
        await it.start_controllers()
        assert_undisturbed(it)
        await it.finish_pods()
        groups = it.volcano_objects("PodGroup")
        await wait_for(lambda: all(it.phase("PodGroup", name) == "Completed" for name in groups))
        assert_undisturbed(it)


async def test_pods_that_name_a_podgroup_keep_it(servers: ServerFactory, tmp_path: Path) -> None:
    async with volcano_cluster(servers, tmp_path, "own-podgroup") as it:
        await it.start_controllers()
        assert_undisturbed(it)
        assert it.phase("PodGroup", "mine") == "Running"


async def test_a_command_that_volcano_has_not_carried_out_is(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with volcano_cluster(servers, tmp_path, "running") as it:
        await it.command("AbortJob", JOBS, "j")
        await it.start_controllers()
        await wait_for(lambda: it.phase("Job", "j") == "Aborted" and not it.pods())
