"""Lists of jobs over REST: filters, sorting, pages, fields, kinds; the documented body."""

import io
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_servers import EmbeddedServerFactory
from support.polling import wait_until_true
from support.rest_jobs import CRDS, JobsApi, batch_job, jobs_api, template, volcano_job

from batholith.api.jobs.index import SortField
from batholith.api.jobs.kinds import KINDS, VOLCANO
from batholith.api.problems import ProblemError
from batholith.api.schemas.jobs import JobList, PartialJob
from batholith.api.serving.limits import MAX_BODY, MAX_MANIFEST
from batholith.api.writes import jobs as job_writes
from batholith.api.writes.manifests import build_job
from batholith.machinery import served
from batholith.model import crds as definitions
from batholith.model.job import JobPhase
from batholith.model.names import JOBS, NAMESPACES
from batholith.training_ctrl.frameworks import FRAMEWORKS
from batholith.wire.jobs import JobKindName, JobPage, JobSummary, Phase

N = "namespaces/default"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[JobsApi]:
    async with jobs_api(EmbeddedServerFactory(), tmp_path) as found:
        yield found


async def listed(api: JobsApi, path: str, *, total: int) -> Any:
    """The list at *path*, once it has this *total*: the caches lag behind writes."""
    found: dict[str, Any] = {}

    async def has_total() -> bool:
        found.update(await api.get(path))
        return bool(found["total"] == total)

    await wait_until_true(has_total)
    return found


def names(page: dict[str, Any]) -> list[str]:
    return [each["name"] for each in page["items"]]


async def create_some(api: JobsApi) -> None:
    """Five jobs, of two queues and two users; one in another namespace."""
    await api.client.create(NAMESPACES, {"metadata": {"name": "other"}})
    for namespace, name, queue, tier in (
        ("default", "a", "default", "x"),
        ("default", "b", "research", "y"),
        ("default", "c", "default", "y"),
        ("other", "b", "research", "x"),
    ):
        body = volcano_job(name, queue=queue)
        body["metadata"]["labels"] = {"tier": tier}
        await api.send("POST", f"namespaces/{namespace}/jobs", body, status=201)
    direct = volcano_job("d")
    await api.client.create(JOBS, direct, namespace="default")
    state = {"status": {"state": {"phase": "Running"}}}
    await api.client.patch(JOBS, "c", state, namespace="default", subresource="status")


async def test_lists_are_filtered_and_sorted(api: JobsApi) -> None:
    await create_some(api)
    await listed(api, "jobs?phase=Running", total=1)
    for query, expected in {
        "": ["a", "b", "c", "d"],
        "?queue=research": ["b"],
        "?queue=none": [],
        "?phase=Running": ["c"],
        "?phase=Running&phase=Pending&queue=default": ["a", "c", "d"],
        "?user=admin": ["a", "b", "c"],
        "?user=": ["d"],
        "?label_selector=tier%20in%20(y),!other": ["b", "c"],
        "?label_selector=!tier": ["d"],
        "?sort=-name": ["d", "c", "b", "a"],
        "?sort=phase": ["a", "b", "d", "c"],
        "?sort=-queue": ["b", "d", "c", "a"],
        "?created_after=2020-01-01T00:00:00Z": ["a", "b", "c", "d"],
        "?created_before=2020-01-01T00:00:00%2B02:00": [],
    }.items():
        found = await api.get(f"{N}/jobs{query}")
        assert (names(found), found["total"]) == (expected, len(expected)), query
        assert found["next_cursor"] is None
    everywhere = await api.get("jobs")
    assert [(each["namespace"], each["name"]) for each in everywhere["items"]] == [
        ("default", "a"), ("default", "b"), ("other", "b"), ("default", "c"), ("default", "d"),
    ]  # fmt: skip
    assert await api.get("namespaces/absent/jobs") == {
        "items": [],
        "next_cursor": None,
        "total": 0,
    }


async def test_pages_follow_each_other(api: JobsApi) -> None:
    await create_some(api)
    await listed(api, "jobs", total=5)
    found, path = [], "jobs?limit=2&sort=-created"
    page = await api.get(path)
    while True:
        found += [(each["namespace"], each["name"]) for each in page["items"]]
        assert page["total"] == 5
        if page["next_cursor"] is None:
            break
        page = await api.get(f"{path}&cursor={page['next_cursor']}")
    assert len(found) == len(set(found)) == 5
    first = await api.get(path)
    for other in ("jobs?limit=2", f"{N}/jobs?limit=2&sort=-created", f"{path}&queue=default"):
        query = f"{other}&cursor={first['next_cursor']}"
        problem = await api.refusal("GET", query)
        assert (problem["status"], problem["errors"][0]["field"]) == (422, "cursor")


INVALID = [
    ("limit=0", "limit"),
    ("limit=501", "limit"),
    ("phase=running", "phase.0"),
    ("sort=age", "sort"),
    ("cursor=%00", "cursor"),
    ("cursor=bm9uZQ==", "cursor"),
    ("cursor=%C3%A4", "cursor"),
    ("label_selector=a%3D%3D%3Db", "label_selector"),
    ("created_after=yesterday", "created_after"),
    ("created_after=1767225600", "created_after"),
    ("created_after=2026-01-01", "created_after"),
    ("created_before=2026-01-01T00:00:00", "created_before"),
    ("fields=name,nome", "fields"),
    ("fields=", "fields"),
]


async def test_invalid_parameters_are_named(api: JobsApi) -> None:
    for query, field in INVALID:
        problem = await api.refusal("GET", f"jobs?{query}")
        assert (problem["status"], problem["errors"][0]["field"]) == (422, field), query


async def test_lists_contain_the_fields_that_are_asked_for(api: JobsApi) -> None:
    await api.send("POST", f"{N}/jobs", volcano_job("train"), status=201)
    [item] = (await listed(api, "jobs?fields=queue,%20tasks,name", total=1))["items"]
    assert list(item) == ["namespace", "name", "uid", "queue", "tasks"]
    assert item["queue"] == "default"
    PartialJob.model_validate(item)


def test_the_documented_body_has_the_fields_of_the_encoded_one() -> None:
    """Lists send ready bytes; the SDK reads from them what was sent."""
    for kind in KINDS.values():
        for obj in (kind.view(), _full(kind.name)):
            summary = kind.summarize(obj)
            encoded = msgspec.json.encode(summary)
            body = b'{"items":[%b],"next_cursor":null,"total":1}' % encoded
            parsed = JobList.model_validate_json(body, strict=True)
            assert msgspec.json.decode(parsed.model_dump_json()) == msgspec.json.decode(body)
            assert msgspec.json.decode(body, type=JobPage).items == [summary]


def _full(name: JobKindName) -> Any:
    """A job with a value in most fields."""
    kind = KINDS[name]
    labels, annotations = {"tier": "x"}, {"batholith.io/submitted-by": "ann"}
    meta = {
        "namespace": "a", "name": "job", "uid": "1", "resourceVersion": "5", "labels": labels,
        "annotations": annotations, "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-02T00:00:00Z",
    }  # fmt: skip
    spec: dict[str, Any] = {
        "tasks": [{"name": "worker", "replicas": 2, "minAvailable": 1}],
        "template": template(schedulerName="volcano"),
        "completions": 3,
        "suspend": True,
    }
    if kind.training is not None:
        spec[kind.training.replica_field] = {"Worker": {"replicas": 2, "template": template()}}
    status = {
        "state": {"phase": "Completed", "lastTransitionTime": "2026-01-01T00:00:01Z"},
        "taskStatusCount": {"worker": {"phase": {"Running": 1}}},
        "runningDuration": "5s",
        "startTime": "2026-01-01T00:00:01Z",
        "replicaStatuses": {"Worker": {"active": 1, "failed": 1}},
        "active": 2,
        "ready": 1,
    }
    body = {"metadata": meta, "spec": spec, "status": status}
    return msgspec.convert(body, kind.view)


def test_every_kind_of_training_jobs_has_a_path() -> None:
    served = [kind.training for kind in KINDS.values() if kind.training is not None]
    assert served == [framework.kind for framework in FRAMEWORKS]
    assert KINDS.keys() == set(JobKindName)
    assert set(Phase) >= {each.value for each in JobPhase}
    assert set(SortField) == {"name", "created", "phase", "queue"}


async def test_kinds_that_the_cluster_lacks_are_not_found_until_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batholith.api.caches.INTERVAL", 0.05)
    monkeypatch.setattr(served, "RETRY_INTERVAL", 0.05)
    async with jobs_api(EmbeddedServerFactory(), tmp_path, crds=CRDS) as api:
        for path in ("pytorchjobs", f"{N}/pytorchjobs", f"{N}/pytorchjobs/train"):
            problem = await api.refusal("GET", path)
            assert (problem["status"], "PyTorchJob (kubeflow.org/v1)" in problem["detail"]) == (
                404,
                True,
            )
        assert (await api.refusal("GET", f"{N}/nothing"))["status"] == 404
        await api.server.install_crds(*definitions.load_training())

        async def is_served() -> bool:
            return (await api.send("GET", "pytorchjobs")).status == 200

        await wait_until_true(is_served)
        workers = {"replicas": 2, "template": template(), "restartPolicy": "Never"}
        body: dict[str, Any] = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "train"},
            "spec": {
                "pytorchReplicaSpecs": {"Master": {**workers, "replicas": 1}, "Worker": workers}
            },
        }
        body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0][
            "name"
        ] = "pytorch"
        created = (await api.send("POST", f"{N}/pytorchjobs", body, status=201)).body
        assert (created["kind"], created["replicas"], created["user"]) == (
            "pytorchjobs",
            3,
            "admin",
        )
        assert [each["name"] for each in created["tasks"]] == ["Master", "Worker"]
        [item] = (await listed(api, "pytorchjobs?phase=Pending", total=1))["items"]
        assert item == await api.get(f"{N}/pytorchjobs/train")
        change = {"tasks": {"worker": 4}, "min_available": 3}
        path = f"{N}/pytorchjobs/train"
        scaled = (await api.send("PUT", f"{path}/scale", change, status=200)).body
        assert [each["replicas"] for each in scaled["tasks"]] == [1, 4]
        assert scaled["min_available"] == 3
        manifest = await api.get(f"{path}/manifest")
        assert manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        problem = await api.refusal("PUT", f"{path}/scale", {"tasks": {"Chief": 1}})
        assert (problem["status"], problem["errors"][0]["field"]) == (422, "tasks.Chief")
        await api.server.request(
            "DELETE",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pytorchjobs.kubeflow.org",
        )

        async def is_absent() -> bool:
            return (await api.send("GET", "pytorchjobs")).status == 404

        await wait_until_true(is_absent)


async def test_jobs_of_other_kinds_do_not_mix(api: JobsApi) -> None:
    await api.send("POST", f"{N}/jobs", volcano_job("train"), status=201)
    await api.send("POST", f"{N}/batchjobs", batch_job("train"), status=201)
    [volcano] = (await listed(api, "jobs", total=1))["items"]
    [batch] = (await listed(api, "batchjobs", total=1))["items"]
    assert (volcano["kind"], batch["kind"]) == ("jobs", "batchjobs")


async def test_manifests_may_be_large_and_other_bodies_not(api: JobsApi) -> None:
    def sized(size: int) -> bytes:
        body = volcano_job("large")
        body["spec"]["tasks"][0]["template"]["metadata"] = {"annotations": {"text": ""}}
        empty = len(msgspec.json.encode(body))
        body["spec"]["tasks"][0]["template"]["metadata"]["annotations"]["text"] = "x" * (
            size - empty
        )
        return msgspec.json.encode(body)

    large = sized(MAX_MANIFEST + 1)
    problem = await api.refusal("POST", f"{N}/jobs", large)
    assert (problem["status"], str(MAX_MANIFEST) in problem["detail"]) == (413, True)
    reply = await api.send("POST", f"{N}/jobs?dry_run=true", sized(MAX_MANIFEST))
    assert reply.status != 413  # the API server has another limit
    await api.send("POST", f"{N}/jobs?dry_run=true", sized(200_000), status=200)
    for method, path in (("PUT", f"{N}/jobs/large/scale"), ("POST", f"{N}/jobs/large/commands")):
        problem = await api.refusal(method, path, sized(MAX_BODY + 1))
        assert problem["status"] == 413
    # Without a token, no body is even read.
    for size in (MAX_BODY + 1, 1000):
        data = io.BytesIO(sized(size))
        async with api.session.post(f"{api.url}/v1/{N}/jobs", data=data) as response:
            assert response.status == 401


async def test_operations_are_recognised_when_repeated(api: JobsApi) -> None:
    """As after a lost response: the same operation creates one job."""
    operation = uuid.uuid4()

    async def create(given: Any, id_: uuid.UUID) -> JobSummary:
        body = build_job(given, VOLCANO, namespace="default", operation=id_, user="admin")
        summary, _ = await job_writes.create(
            api.client, VOLCANO, body, namespace="default", operation=id_, dry_run=False
        )
        return summary

    for given in (volcano_job("named"), volcano_job(), {"image": "busybox"}):
        first = await create(given, operation)
        assert await create(given, operation) == first
        with pytest.raises(ProblemError) as caught:
            await create(volcano_job(first.name), uuid.uuid4())
        assert caught.value.status == 409
        await api.client.delete(JOBS, first.name, namespace="default")
