"""What a cluster may do to new pods, as far as it can be read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.polling import wait_for

from batholith.job_ctrl.creation.placement import Unplaced
from batholith.job_ctrl.creation.pod_rules import PodRules
from batholith.kube.client.client import Client
from batholith.kube.informer.factory import NewInformers
from batholith.machinery.clock import SystemClock
from batholith.model.names import LIMITRANGES, MUTATING_CONFIGURATIONS, NAMESPACES
from batholith.testing import ApiServer, RequestMatcher

PODS = ({"app": "x"},)
WHOLE = {
    "operations": ["CREATE"],
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
}


@asynccontextmanager
async def running(server: ApiServer) -> AsyncIterator[PodRules]:
    """The rules as read from *server*."""
    async with Client(server.credentials, user_agent="test") as client:
        rules = PodRules(client, NewInformers(client), clock=SystemClock())
        sources = rules.sources()
        tasks = [asyncio.create_task(source.run()) for source in sources]
        await asyncio.gather(*(source.wait_synced() for source in sources))
        for source in sources:
            await source.attach()
        await wait_for(lambda: rules.policies_known)
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
        assert rules.exclude("default", PODS) is None


async def test_a_limit_range_excludes_its_namespace(server: ApiServer) -> None:
    await server.create(LIMITRANGES, {"metadata": {"name": "l"}, "spec": {"limits": []}})
    async with running(server) as rules:
        assert rules.exclude("default", PODS) is Unplaced.LIMIT_RANGE
        assert rules.exclude("other", PODS) is None


def put_webhook(server: ApiServer, **more: Any) -> None:
    server.put(MUTATING_CONFIGURATIONS, "m", webhooks=[{"name": "m", "rules": [WHOLE], **more}])


async def test_webhooks_for_new_pods_exclude_all_that_they_select(server: ApiServer) -> None:
    put_webhook(server)
    async with running(server) as rules:
        assert rules.exclude("default", PODS) is Unplaced.MUTATION
        put_webhook(server, objectSelector={"matchLabels": {"app": "y"}})
        await wait_for(lambda: rules.exclude("default", PODS) is None)
        assert rules.exclude("default", ({"app": "y"},)) is Unplaced.MUTATION
        server.remove(MUTATING_CONFIGURATIONS, "m")
        await wait_for(lambda: rules.exclude("default", ({"app": "y"},)) is None)


async def test_selectors_of_namespaces_read_their_labels(server: ApiServer) -> None:
    put_webhook(server, namespaceSelector={"matchLabels": {"inject": "yes"}})
    await server.create(NAMESPACES, {"metadata": {"name": "with", "labels": {"inject": "yes"}}})
    await server.create(NAMESPACES, {"metadata": {"name": "without"}})
    async with running(server) as rules:
        assert rules.exclude("with", PODS) is Unplaced.MUTATION
        assert rules.exclude("without", PODS) is None
        assert rules.exclude("absent", PODS) is Unplaced.UNKNOWN_RULES
        await server.patch(NAMESPACES, "without", {"metadata": {"labels": {"inject": "yes"}}})
        await wait_for(lambda: rules.exclude("without", PODS) is Unplaced.MUTATION)


async def test_namespaces_that_may_not_be_read_matter_if_a_webhook_selects_by_them(
    server: ApiServer,
) -> None:
    server.faults.error(RequestMatcher(resource=NAMESPACES, count=None), 403)
    async with running(server) as rules:
        assert rules.exclude("default", PODS) is None
        put_webhook(server, namespaceSelector={"matchLabels": {"inject": "yes"}})
        await wait_for(lambda: rules.exclude("default", PODS) is Unplaced.UNKNOWN_RULES)


async def test_rules_that_may_not_be_read_exclude_all(server: ApiServer) -> None:
    matcher = RequestMatcher(resource=LIMITRANGES, count=None)
    server.faults.error(matcher, 403)
    async with running(server) as rules:
        assert rules.exclude("default", PODS) is Unplaced.UNKNOWN_RULES
