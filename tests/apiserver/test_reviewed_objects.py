"""What webhooks see of new objects of each kind, compared with a real API server."""

import asyncio
from pathlib import Path
from typing import Any

from support.api_servers import RealServerFactory
from support.embedded_apiserver import Server, embedded_server
from support.polling import wait_for
from support.response_comparison import ResponseComparison
from support.review_server import MUTATING, VALIDATING, ReviewServer, allow, path_of, review_server
from support.samples import KINDS, minimal_sample, sample_name, sample_path

from batholith.local.apiserver.admission.matching import is_exempt
from batholith.local.apiserver.current_time import now
from batholith.local.apiserver.kinds.info import KindInfo

Json = dict[str, Any]

REVIEWED = [kind for kind in KINDS if not is_exempt(kind.resource)]
EVERYTHING = {
    "apiGroups": ["*"],
    "apiVersions": ["*"],
    "resources": ["*"],
    "operations": ["CREATE"],
}


async def test_webhooks_review_a_new_object_of_each_kind_once(
    real: RealServerFactory, tmp_path: Path
) -> None:
    async with embedded_server(tmp_path / "ours") as server:
        ours = await reviews_by_kind(server, tmp_path)
    async with real.start(tmp_path / "theirs") as server:
        theirs = await reviews_by_kind(server, tmp_path)
    for name, (mutated, validated) in ours.items():
        expected, expected_later = theirs[name]
        # A new DaemonSet has no template generation, where a real server shows 0.
        expected["metadata"].pop("annotations", None)
        seen = (
            {key: obj.get(key, {}) for key in ("metadata", "spec")} for obj in (expected, mutated)
        )
        assert ResponseComparison().differences(*seen) == [], name
        assert validated["metadata"].keys() >= expected_later["metadata"].keys(), name


async def reviews_by_kind(server: Server, directory: Path) -> dict[str, tuple[Json, Json]]:
    """Create a sample of each kind; return what a mutating and a validating webhook saw of it."""
    async with review_server(directory) as reviews:
        hooks = {MUTATING: reviews.hook("mutate"), VALIDATING: reviews.hook("validate", late)}
        for kind, hook in hooks.items():
            hook |= {"rules": [EVERYTHING], "timeoutSeconds": 30}
            await reviews.install(server, kind, hook, name=kind.lower())
        await asyncio.gather(*(create(server, kind) for kind in REVIEWED))
        for kind in hooks:
            await server.request("DELETE", path_of(kind))
        return {str(kind.resource): only_reviews(reviews, kind) for kind in REVIEWED}


async def late(request: Json) -> Json:
    """Allow in another second: what a server sets may not depend on when it is reviewed."""
    received = now()
    await wait_for(lambda: now() != received)
    return allow(request)


async def create(server: Server, kind: KindInfo) -> None:
    path = f"{sample_path(kind)}?dryRun=All"
    response = await server.request("POST", path, minimal_sample(kind))
    assert response.status == 201, response.body


def only_reviews(reviews: ReviewServer, kind: KindInfo) -> tuple[Json, Json]:
    mutated, validated = (
        [
            request["object"]
            for request in reviews.requests(path)
            if request["requestResource"]
            == {
                "group": kind.resource.group,
                "version": kind.resource.version,
                "resource": kind.resource.plural,
            }
            and request["object"]["metadata"].get("name") == sample_name(kind)
        ]
        for path in ("mutate", "validate")
    )
    assert (len(mutated), len(validated)) == (1, 1), kind.resource
    for seen in (*mutated, *validated):
        seen["metadata"].pop("managedFields", None)
    return mutated[0], validated[0]
