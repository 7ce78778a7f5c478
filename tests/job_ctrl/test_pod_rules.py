"""What a cluster may do to new pods, as far as it can be read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.polling import wait_for

from batholith.job_ctrl.placement import Unplaced
from batholith.job_ctrl.pod_rules import PodRules
from batholith.kube.client.client import Client
from batholith.kube.informer.factory import NewInformers
from batholith.machinery.clock import SystemClock
from batholith.model.names import LIMITRANGES, MUTATING_CONFIGURATIONS
from batholith.testing import ApiServer, RequestMatcher

Json = dict[str, Any]


@asynccontextmanager
async def running(server: ApiServer) -> AsyncIterator[PodRules]:
    """The rules as read from *server*."""
    async with Client(server.credentials, user_agent="test") as client:
        rules = PodRules(client, NewInformers(client), clock=SystemClock())
        sources = rules.sources()
        tasks = [asyncio.create_task(source.run()) for source in sources]
        await asyncio.gather(*(source.wait_synced() for source in sources))
        await wait_for(lambda: rules._policies.known)
        try:
            yield rules
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as started:
        yield started


async def test_nothing_excludes_a_namespace_without_rules(server: ApiServer) -> None:
    async with running(server) as rules:
        assert rules.exclude("default") is None


async def test_a_limit_range_excludes_its_namespace(server: ApiServer) -> None:
    await server.create(LIMITRANGES, {"metadata": {"name": "l"}, "spec": {"limits": []}})
    async with running(server) as rules:
        assert rules.exclude("default") is Unplaced.LIMIT_RANGE
        assert rules.exclude("other") is None


@pytest.mark.parametrize(
    ("rule", "excludes"),
    [
        ({}, True),
        ({"operations": ["*"]}, True),
        ({"resources": ["*"]}, True),
        ({"resources": ["*/*"]}, True),
        ({"apiGroups": ["*"]}, True),
        ({"operations": ["UPDATE"]}, False),
        ({"resources": ["pods/status"]}, False),
        ({"resources": ["deployments"]}, False),
        ({"apiGroups": ["apps"]}, False),
    ],
)
async def test_webhooks_for_new_pods_exclude_all(
    server: ApiServer, rule: Json, excludes: bool
) -> None:
    whole = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"]}
    hook = {"name": "m", "rules": [{**whole, "resources": ["pods"], **rule}]}
    server.put(MUTATING_CONFIGURATIONS, "m", webhooks=[hook])
    async with running(server) as rules:
        assert rules.exclude("default") is (Unplaced.MUTATION if excludes else None)


async def test_rules_that_may_not_be_read_exclude_all(server: ApiServer) -> None:
    matcher = RequestMatcher(resource=LIMITRANGES, count=None)
    server.faults.error(matcher, 403)
    async with running(server) as rules:
        assert rules.exclude("default") is Unplaced.UNKNOWN_RULES
