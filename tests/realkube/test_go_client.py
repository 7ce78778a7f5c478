"""Go clients on both servers: client-go, and the clientset that Volcano publishes."""

from contextlib import AsyncExitStack
from pathlib import Path

from support.api_servers import ServerFactory
from support.components import component
from support.embedded_cluster import embedded_cluster
from support.go_client import needs_go_program, run_go_checks
from support.polling import wait_until_true

from batholith.admission.settings import AdmissionSettings
from batholith.admission.webhooks import webhooks
from batholith.model import crds
from batholith.model.names import QUEUES

ALLOWED = {"KUBE_FEATURE_ClientsAllowCBOR": "true"}
PREFERRED = {**ALLOWED, "KUBE_FEATURE_ClientsPreferCBOR": "true"}


async def test_go_clients_find_what_they_expect(servers: ServerFactory, tmp_path: Path) -> None:
    needs_go_program("client")
    async with servers.start(tmp_path, crds=crds.load()) as server:
        result = await run_go_checks(server.kubeconfig)
    assert {name: text for name, text in result.items() if text} == {}
    assert len(result) > 40


async def test_go_clients_that_know_cbor_fall_back(servers: ServerFactory, tmp_path: Path) -> None:
    needs_go_program("client")
    async with servers.start(tmp_path, crds=crds.load()) as server:
        result = await run_go_checks(
            server.kubeconfig,
            "-run=^(dynamic|job-create|job-update|wire-proto|watch-list)",
            environment=ALLOWED,
        )
        result |= await run_go_checks(server.kubeconfig, "-run=^wire-cbor", environment=PREFERRED)
    assert {name: text for name, text in result.items() if text} == {}


async def test_a_go_program_runs_jobs_and_commands_them(tmp_path: Path) -> None:
    needs_go_program("client")
    async with embedded_cluster(tmp_path / "data", "--simulate", "2") as cluster:
        result = await run_go_checks(cluster.data_dir.kubeconfig, "-life")
    assert list(result.values()) == [""] * 3, result


async def test_a_go_program_commands_our_parts_on_either_server(
    servers: ServerFactory, tmp_path: Path
) -> None:
    needs_go_program("client")
    rules = webhooks(AdmissionSettings())
    async with (
        servers.start(tmp_path / "server", webhooks=rules, crds=crds.load()) as server,
        AsyncExitStack() as running,
    ):
        known = ("--kubeconfig", str(server.kubeconfig))
        for arguments in (
            ("controllers", "--leader-elect=false"),
            ("scheduler", "--leader-elect=false"),
            ("agent", "--simulate", "2", "--data-dir", str(tmp_path / "agent")),
        ):
            started = await running.enter_async_context(component(*arguments, *known))
            await started.wait_ready()

        async def open_for_jobs() -> bool:
            queue = await server.request("GET", QUEUES.path(name="default"))
            return queue.status == 200 and queue.body.get("status", {}).get("state") == "Open"

        await wait_until_true(open_for_jobs)
        result = await run_go_checks(server.kubeconfig, "-life")
    assert list(result.values()) == [""] * 3, result
