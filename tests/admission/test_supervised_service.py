"""Failed background tasks are restarted while reviews are served."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from support.admission_server import FAST_ELECTION, options
from support.embedded_apiserver import embedded_server
from support.polling import wait_until_true
from support.running_controller import running

from batholith.admission.serving.service import AdmissionService
from batholith.kube.supervision import TASK_RESTARTS
from batholith.machinery.clock import SystemClock
from batholith.machinery.leader_election import LeaderElector, new_identity
from batholith.model import crds
from batholith.model.names import VALIDATING_CONFIGURATIONS

TASK = "webhook registration"


@pytest.mark.parametrize("failure", [RuntimeError("as planned"), asyncio.CancelledError()])
async def test_a_failed_registration_is_restarted(tmp_path: Path, failure: BaseException) -> None:
    clock, failures, before = SystemClock(), [failure], TASK_RESTARTS[TASK]
    async with (
        embedded_server(tmp_path, crds=crds.load()) as server,
        server.client("admin") as client,
    ):

        def elector() -> LeaderElector:
            if failures:
                raise failures.pop()
            return LeaderElector(
                client, replace(FAST_ELECTION, identity=new_identity()), clock=clock
            )

        service = AdmissionService(client, replace(options(), new_elector=elector), clock=clock)
        configuration = VALIDATING_CONFIGURATIONS.path(name="batholith-queues-validate")

        async def is_registered() -> bool:
            return (await server.request("GET", configuration)).status == 200

        async with running(service):
            await wait_until_true(is_registered)
    assert TASK_RESTARTS[TASK] == before + 1
