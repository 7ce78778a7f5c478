"""Valid and invalid pods: the embedded server's errors are those of a real one."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.api_servers import RealServerFactory
from support.embedded_apiserver import PODS, RawResponse, Server, embedded_server, pod

Json = dict[str, Any]
ValidationResult = tuple[Any, ...]
JOBS = "/apis/batch/v1/namespaces/default/jobs"
TABLE: dict[str, dict[str, list[Json]]] = yaml.load(
    (Path(__file__).parents[1] / "data" / "valid-and-invalid-pods.yaml").read_text(),
    Loader=yaml.CSafeLoader,
)


def specs(kind: str) -> list[Json]:
    """The pod specs of *kind*: valid, or invalid in one field."""
    table = TABLE[kind]
    containers = [{"name": "main", "image": "busybox:1", **fields} for fields in table["container"]]
    return [*({"containers": [each]} for each in containers), *table["pod"]]


def without_token(spec: Json) -> Json:
    """A pod without the token volume that only a real server adds."""
    return pod("p", **{"automountServiceAccountToken": False, **spec})


def job(spec: Json) -> Json:
    """A Job with such pods."""
    template = {"spec": {"restartPolicy": "Never", **without_token(spec)["spec"]}}
    return {"metadata": {"name": "p"}, "spec": {"template": template}}


def validation_result(response: RawResponse) -> ValidationResult:
    """The status and error of a response; no error if the object is accepted."""
    if response.status == 201:
        return (201,)
    body = response.body
    return response.status, body["reason"], body["message"], body["details"].get("causes")


async def validation_results(
    server: Server, path: str, objects: Iterable[Json]
) -> list[ValidationResult]:
    """The results of a server for each object."""
    return [
        validation_result(await server.request("POST", f"{path}?dryRun=All", each))
        for each in objects
    ]


@pytest.mark.parametrize(
    ("path", "build"), [(PODS, without_token), (JOBS, job)], ids=["pods", "jobs"]
)
@pytest.mark.parametrize("kind", ["right", "wrong"])
async def test_both_servers_return_the_same_errors(
    kind: str, path: str, build: Callable[[Json], Json], real: RealServerFactory, tmp_path: Path
) -> None:
    objects = [build(spec) for spec in specs(kind)]
    async with real.start(tmp_path) as one, embedded_server(tmp_path) as other:
        theirs = await validation_results(one, path, objects)
        ours = await validation_results(other, path, objects)
    results = list(zip(objects, ours, theirs, strict=True))
    assert [each for each in results if each[1] != each[2]] == []


@pytest.mark.parametrize(("kind", "status"), [("right", 201), ("wrong", 422)])
async def test_only_invalid_objects_are_rejected(kind: str, status: int, tmp_path: Path) -> None:
    objects = [without_token(spec) for spec in specs(kind)]
    async with embedded_server(tmp_path) as server:
        actual = await validation_results(server, PODS, objects)
    results = list(zip(objects, actual, strict=True))
    assert [each for each in results if each[1][0] != status] == []
