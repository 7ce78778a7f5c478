"""Construction of the controllers."""

import subprocess
import sys

import pytest

from batholith.cli.controller_selection import CONTROLLERS

BUILD = """
import asyncio, sys
from prometheus_client import CollectorRegistry
from batholith.cli.controller_builder import Builder, SharedMetrics, import_controllers
from batholith.cli.controller_flags import BatchFlags, ControllerFlags, TrainingFlags
from batholith.cli.controller_selection import CONTROLLERS
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.client.events import EventRecorder

async def main():
    client = Client(Credentials(server="http://127.0.0.1:1"), user_agent="test")
    recorder = EventRecorder(client, component="test")
    registry = CollectorRegistry()
    metrics = SharedMetrics(registry)
    import_controllers(CONTROLLERS)
    before = set(sys.modules)
    builder = Builder(
        flags=ControllerFlags(), batch=BatchFlags(), training=TrainingFlags(), client=client,
        recorder=recorder, registry=registry, metrics=metrics,
    )
    print(len(builder.build(CONTROLLERS)), *sorted(set(sys.modules) - before))

asyncio.run(main())
"""


@pytest.mark.process
def test_nothing_is_imported_once_a_shard_is_held() -> None:
    """Renewals would wait for it."""
    result = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True)
    assert result.stdout.split() == [str(len(CONTROLLERS))], result.stderr + result.stdout
