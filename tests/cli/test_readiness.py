"""Readiness of components."""

import pytest
from support.components import component
from support.controller_api import ControllerApi

from batholith.model.names import COMMANDS, JOBS, PODGROUPS, QUEUES
from batholith.testing import RequestMatcher

pytestmark = pytest.mark.process

ALONE = ("--leader-elect=false", "--force-beside-volcano")


async def test_controllers_are_ready_once_the_default_queue_exists() -> None:
    """A job that is submitted once the cluster is ready is not denied for a missing queue."""
    writes = RequestMatcher(count=6, where=lambda request: request.method != "GET")
    async with ControllerApi(JOBS, QUEUES, PODGROUPS, COMMANDS) as api:
        fault = api.faults.error(writes, 500)
        config = str(api.kubeconfig)
        async with component("controllers", *ALONE, "--kubeconfig", config) as one:
            await one.wait_ready()
            assert "default" in api.objects(QUEUES)
    assert fault.injected == 6
