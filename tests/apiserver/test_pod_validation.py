"""Pods with and without mistakes: the embedded server judges them in the words of a real one."""

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
TABLE: dict[str, dict[str, list[Json]]] = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "valid-and-invalid-pods.yaml").read_text()
)


def specs(kind: str) -> list[Json]:
    """The specs of pods that are *kind*: right, or wrong in one place."""
    parts = TABLE[kind]
    containers = [{"name": "main", "image": "busybox:1", **part} for part in parts["container"]]
    return [*({"containers": [each]} for each in containers), *parts["pod"]]


def without_token(spec: Json) -> Json:
    """A pod without the token that only a real server gives it."""
    return pod("p", **{"automountServiceAccountToken": False, **spec})


def job(spec: Json) -> Json:
    """A Job whose pods are to be such."""
    template = {"spec": {"restartPolicy": "Never", **without_token(spec)["spec"]}}
    return {"metadata": {"name": "p"}, "spec": {"template": template}}


def validation_result(answer: RawResponse) -> ValidationResult:
    """What an answer says of the object: nothing when it is let pass."""
    if answer.status == 201:
        return (201,)
    body = answer.body
    return answer.status, body["reason"], body["message"], body["details"].get("causes")


async def validation_results(
    server: Server, path: str, objects: Iterable[Json]
) -> list[ValidationResult]:
    """What a server says of each."""
    return [
        validation_result(await server.request("POST", f"{path}?dryRun=All", each))
        for each in objects
    ]


@pytest.mark.parametrize(
    ("path", "made"), [(PODS, without_token), (JOBS, job)], ids=["pods", "jobs"]
)
@pytest.mark.parametrize("kind", ["right", "wrong"])
async def test_both_servers_judge_in_the_same_words(
    kind: str, path: str, made: Callable[[Json], Json], real: RealServerFactory, tmp_path: Path
) -> None:
    objects = [made(spec) for spec in specs(kind)]
    async with real.start(tmp_path) as one, embedded_server(tmp_path) as other:
        theirs = await validation_results(one, path, objects)
        ours = await validation_results(other, path, objects)
    judged = list(zip(objects, ours, theirs, strict=True))
    assert [each for each in judged if each[1] != each[2]] == []


@pytest.mark.parametrize(("kind", "status"), [("right", 201), ("wrong", 422)])
async def test_mistakes_are_refused_and_nothing_else(
    kind: str, status: int, tmp_path: Path
) -> None:
    objects = [without_token(spec) for spec in specs(kind)]
    async with embedded_server(tmp_path) as server:
        said = await validation_results(server, PODS, objects)
    judged = list(zip(objects, said, strict=True))
    assert [each for each in judged if each[1][0] != status] == []
