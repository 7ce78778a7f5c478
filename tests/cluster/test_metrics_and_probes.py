"""Health and metrics of the components as deployed: processes with a Lease."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.components import ComponentProcess, component, kubeconfig
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.jobs import task
from support.polling import wait_until_equal, wait_until_true
from support.realkube import free_ports

from batholith.kube.client.config import Credentials
from batholith.model import crds
from batholith.model.job import Job
from batholith.model.names import CRDS, JOBS, QUEUES
from batholith.model.queue import Queue

pytestmark = pytest.mark.process

OPEN = ("--healthz-address=127.0.0.1:0", "--listen-address=127.0.0.1:0")
COMMON_METRICS = {
    "workqueue_depth",
    "workqueue_adds",
    "workqueue_retries",
    "workqueue_queue_duration_seconds",
    "workqueue_work_duration_seconds",
    "workqueue_unfinished_work_seconds",
    "workqueue_longest_running_processor_seconds",
    "rest_client_requests",
    "rest_client_request_duration_seconds",
    "rest_client_rate_limiter_duration_seconds",
    "leader_election_master_status",
    "batholith_build_info",
    "process_cpu_seconds",
    "process_resident_memory_bytes",
    "python_gc_collections",
}
CONTROLLER_METRICS = {
    *(
        f"volcano_queue_pod_group_{phase}_count"
        for phase in ("inqueue", "pending", "running", "unknown", "completed")
    ),
    "volcano_job_completed_phase_count",
    "volcano_job_failed_phase_count",
    "volcano_controller_job_to_pod_creation_latency_milliseconds",
}
SCHEDULER_METRICS = {
    "volcano_e2e_scheduling_latency_milliseconds",
    "volcano_action_scheduling_latency_milliseconds",
    "volcano_schedule_attempts",
    "volcano_unschedule_task_count",
    "volcano_unschedule_job_count",
    "volcano_queue_allocated_milli_cpu",
    "volcano_queue_allocated_memory_bytes",
    "volcano_queue_request_milli_cpu",
    "volcano_queue_capacity_milli_cpu",
    "volcano_queue_weight",
}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@asynccontextmanager
async def components(
    server: EmbeddedServer, directory: Path, *names: str
) -> AsyncIterator[Sequence[ComponentProcess]]:
    """Running components, and two simulated nodes."""
    config = ["--kubeconfig", str(server.kubeconfig)]
    agent = ["agent", "--data-dir", str(directory / "agent"), "--simulate=2", *config]
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(component(*agent))]
        started += [
            await stack.enter_async_context(component(name, *config, *OPEN)) for name in names
        ]
        for one in started:
            await one.wait_ready()
        yield started[1:]


async def families(one: ComponentProcess) -> tuple[set[str], Samples]:
    """Names of the metrics that it shows, and the values."""
    status, text = await one.get("metrics", "/metrics")
    assert status == 200
    found = list(text_string_to_metric_families(text))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in found
        for sample in family.samples
    }
    return {family.name for family in found}, samples


async def submit(server: EmbeddedServer, name: str, cpu: str) -> None:
    one = task(replicas=2)
    container = {
        "name": "main",
        "image": "busybox:1",
        "command": ["sleep", "1"],
        "resources": {"requests": {"cpu": cpu}},
    }
    one["template"] = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"schedulerName": "volcano", "minAvailable": 2, "queue": "default", "tasks": [one]}
    async with server.client() as client:
        await client.create(JOBS, {"metadata": {"name": name}, "spec": spec}, namespace="default")


async def test_what_dashboards_for_volcano_know_is_there(tmp_path: Path) -> None:
    async with (
        embedded_server(tmp_path / "server", crds=crds.load()) as server,
        components(server, tmp_path, "controllers", "scheduler") as (controllers, scheduler),
        server.client() as client,
    ):
        await submit(server, "fits", "1")
        await submit(server, "large", "100")

        async def over() -> bool:
            job = await client.get(JOBS, "fits", namespace="default", view=Job)
            return job.status.state.phase == "Completed"

        await wait_until_true(over)
        ended = (("job_name", "default/fits"), ("queue_name", "default"))

        async def completed() -> float | None:
            return (await families(controllers))[1].get(
                ("volcano_job_completed_phase_count", ended)
            )

        await wait_until_equal(completed, 1)

        async def missing_and_created() -> tuple[set[str], bool]:
            names, values = await families(controllers)
            created = "volcano_controller_job_to_pod_creation_latency_milliseconds_count"
            return (COMMON_METRICS | CONTROLLER_METRICS) - names, values.get((created, ()), 0) >= 2

        await wait_until_equal(missing_and_created, (set(), True))

        async def missing_and_reported() -> tuple[set[str], bool, float | None]:
            names, values = await families(scheduler)
            tried = values.get(("volcano_schedule_attempts_total", (("result", "scheduled"),)), 0)
            of = (("queue_name", "default"),)
            allocated = values.get(("volcano_queue_allocated_milli_cpu", of))
            return (COMMON_METRICS | SCHEDULER_METRICS) - names, tried >= 1, allocated

        await wait_until_equal(missing_and_reported, (set(), True, 0))
        for one in (controllers, scheduler):
            assert (await one.get("health", "/healthz")) == (200, "ok")
            assert (await one.get("health", "/readyz")) == (200, "ok")


async def test_a_standby_is_as_ready_as_the_leader(tmp_path: Path) -> None:
    async with (
        embedded_server(tmp_path / "server", crds=crds.load()) as server,
        components(server, tmp_path, "controllers", "controllers") as both,
    ):
        for one in both:
            for path in ("/healthz", "/livez", "/readyz", "/readyz/caches", "/readyz/leader"):

                async def well(one: ComponentProcess = one, path: str = path) -> bool:
                    return await one.get("health", path) == (200, "ok")

                await wait_until_true(well)

        async def masters() -> list[float]:
            samples = [(await families(one))[1].items() for one in both]
            shown = [each for some in samples for each in some]
            return sorted(
                value for (name, _), value in shown if name == "leader_election_master_status"
            )

        await wait_until_equal(masters, [0, 1])
        # Stopped one after the other, the second acquires the Lease, and both stop gracefully.
        codes = [await one.stop() for one in both]
        assert codes == [0, 0]


async def test_not_ready_while_the_server_is_away(tmp_path: Path) -> None:
    nowhere = Credentials(server=f"http://127.0.0.1:{free_ports(1)[0]}")
    config = str(kubeconfig(tmp_path / "config", nowhere))
    async with component("scheduler", "--kubeconfig", config, *OPEN) as one:
        status, text = await one.get("health", "/readyz")
        assert status == 503
        assert text.startswith("[-]caches: not")
        assert (await one.get("health", "/livez"))[0] == 200


async def test_quirk_o1_a_missing_definition_stops_its_own_controller_alone(
    tmp_path: Path,
) -> None:
    """Quirk O2 as well: the process is alive, and reports why it is not ready."""
    known = {body["spec"]["names"]["plural"]: body for body in crds.load()}
    others = [body for plural, body in known.items() if plural != "jobs"]
    async with embedded_server(tmp_path / "server", crds=others) as server:
        config = ["--kubeconfig", str(server.kubeconfig)]
        async with component("controllers", *config, *OPEN) as one, server.client() as client:

            async def open_() -> bool:
                found = (await client.list(QUEUES, view=Queue)).items
                return [each.status.state for each in found] == ["Open", "Open"]

            await wait_until_true(open_)
            assert await one.get("health", "/healthz") == (200, "ok")
            reported = (
                "[-]caches: not synced yet: jobs.batch.volcano.sh\n"
                "[-]controllers: not started yet\n"
            )
            await wait_until_equal(lambda: one.get("health", "/readyz"), (503, reported))
            await client.create(CRDS, known["jobs"])

            async def ready() -> bool:
                return await one.get("health", "/readyz") == (200, "ok")

            await wait_until_true(ready)


async def test_the_default_queue_may_have_another_name(tmp_path: Path) -> None:
    flags = ("--default-queue=research", "--no-leader-elect")
    async with (
        embedded_server(tmp_path / "server", crds=crds.load()) as server,
        component("controllers", "--kubeconfig", str(server.kubeconfig), *flags),
        server.client() as client,
    ):

        async def open_queues() -> dict[str, str]:
            found = (await client.list(QUEUES, view=Queue)).items
            return {one.metadata.name: one.spec.parent for one in found if one.status.state}

        async def both_are_there() -> bool:
            return await open_queues() == {"root": "", "research": "root"}

        await wait_until_true(both_are_there)


async def test_the_embedded_cluster_has_figures_too(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "server", crds=crds.load()) as server:
        config = ["--kubeconfig", str(server.kubeconfig), "--data-dir", str(tmp_path / "agent")]
        open_ = "--metrics-address=127.0.0.1:0"
        async with component("agent", "--simulate=2", *config, open_) as agent:
            await agent.wait_ready()
            names, _ = await families(agent)
            assert names >= {"rest_client_requests", "process_cpu_seconds", "reflector_watches"}
            text = (await server.request("GET", "/metrics")).body
        found = {
            (sample.name, *dict(sorted(sample.labels.items())).values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert found["apiserver_request_total", "200", "GET"] >= 1
        assert found["apiserver_resource_objects", "", "nodes"] == 2
        assert found["apiserver_registered_watchers", "", "pods"] >= 1
        assert found["process_cpu_seconds_total",] > 0
        refused = await server.request("GET", "/metrics", token="unknown")
        assert refused.status == 401
