"""The pages of one cluster for all tests of a module, each with a user who is signed in."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.pages import PagesClient, pages_client

from batholith.model.command import Command
from batholith.model.names import COMMANDS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server_of_pages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PagesClient]:
    async with pages_client(tmp_path_factory.mktemp("pages"), with_link=True) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(server_of_pages: PagesClient) -> PagesClient:
    """A browser without a session."""
    server_of_pages.session.cookie_jar.clear()
    return server_of_pages


@pytest_asyncio.fixture(loop_scope="module")
async def pages(visitor: PagesClient) -> AsyncIterator[PagesClient]:
    """A browser with a session; commands that the test has issued are deleted."""
    await visitor.sign_in()
    yield visitor
    for command in (await visitor.client.list(COMMANDS, view=Command)).items:
        await visitor.client.delete(COMMANDS, command.metadata.name, namespace="default")
