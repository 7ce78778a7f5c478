"""Random sequences of requests get the same responses from both servers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from hypothesis import given, settings
from support.api_servers import RealServerFactory
from support.conversations import normalised
from support.embedded_apiserver import MERGE, RawResponse, Server, embedded_server
from support.examples import examples
from support.random_requests import (
    NAMES,
    RandomRequest,
    custom_definition,
    name_of,
    sequences,
)
from support.response_comparison import ResponseComparison

from batholith.local.apiserver.kinds.info import KindInfo
from batholith.model import crds

EXPECTED_DIFFERENCES: Mapping[str, tuple[str, ...]] = {
    "": ("is stored but not ", "unknown field"),
    "Endpoints": ("Endpoints is deprecated",),
    "Job": ("controller-uid",),
    "Pod": (".volumeMounts is missing", ".volumes is missing"),
    "Service": (".spec.clusterIP", ".cells[2]"),
    "Thing": ("'.spec.replicas'",),
}
"""By kind, or for all kinds: substrings of differences that docs/differences.md states."""


@asynccontextmanager
async def _open_both(
    real: RealServerFactory, directory: Path
) -> AsyncIterator[tuple[Server, Server]]:
    async with (
        real.start(directory) as theirs,
        embedded_server(directory / "embedded", crds=crds.load(), node_lifecycle=False) as ours,
    ):
        for server in (theirs, ours):
            await server.install_crds(custom_definition())
        yield theirs, ours


def _differences(
    kind: KindInfo, comparison: ResponseComparison, wanted: RawResponse, got: RawResponse
) -> list[str]:
    if wanted.status != got.status:
        return [f"status {got.status} instead of {wanted.status}: {got.body} {wanted.body}"]
    found = comparison.differences(normalised(wanted.body), normalised(got.body))
    if ("Warning" in wanted.headers) != ("Warning" in got.headers):
        found.append(f"warning {got.warnings} instead of {wanted.warnings}")
    known = EXPECTED_DIFFERENCES.get("", ()) + EXPECTED_DIFFERENCES.get(kind.resource.kind, ())
    return [each for each in found if not any(text in each for text in known)]


async def _compare(
    servers: tuple[Server, Server], kind: KindInfo, requests: list[RandomRequest], prefix: str
) -> list[str]:
    """Send *requests* to both servers; return where their responses differ."""
    comparison = ResponseComparison()
    found: list[str] = []
    for request in requests:
        wanted, got = [await request.send(server, prefix) for server in servers]
        found += (f"{request}: {each}" for each in _differences(kind, comparison, wanted, got))
        if found:
            break  # what follows may differ for it
    for server in servers:
        await _remove(server, kind, prefix)
    return found


async def _remove(server: Server, kind: KindInfo, prefix: str) -> None:
    for name in NAMES:
        name = name_of(kind, name).replace("{prefix}", prefix)
        path = kind.resource.path("default" if kind.resource.namespaced else "", name)
        options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        if (await server.request("DELETE", path, options)).status != 404:
            await server.request(
                "PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE
            )


def test_random_requests_get_the_same_responses_from_both_servers(
    real: RealServerFactory, tmp_path: Path
) -> None:
    prefixes = (f"r{number}" for number in count())
    with asyncio.Runner() as runner:
        opened = _open_both(real, tmp_path)
        servers = runner.run(opened.__aenter__())

        @settings(max_examples=examples(200))
        @given(sequences())
        def check(sequence: tuple[KindInfo, list[RandomRequest]]) -> None:
            found = runner.run(_compare(servers, *sequence, next(prefixes)))
            assert not found, "\n".join(found)

        try:
            check()
        finally:
            runner.run(opened.__aexit__(None, None, None))
