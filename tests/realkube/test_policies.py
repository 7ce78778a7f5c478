"""The rules that hold without webhooks: policies in CEL, on a real API server."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Unpack

import pytest
from support.admission import ObjectReaderStub, admit, job, queue, task
from support.api_servers import (
    EmbeddedServerFactory,
    RealServerFactory,
    ServerFactory,
    ServerOptions,
    merge_patch,
    real_servers,
)
from support.cel_policies import RESOURCES, batch_job, install, path_of, policies
from support.denial_phrases import CASES, filled
from support.denials_on_servers import create_queues, denials
from support.embedded_apiserver import MERGE, RawResponse, Server
from support.polling import wait_until_true
from support.realkube import RealKube
from support.webhooks import serve_webhooks

from batholith.admission import WEBHOOKS, AdmissionSettings
from batholith.admission.other_jobs import batch_job_webhook
from batholith.model import crds as definitions
from batholith.model.admission import AdmissionRequest, DeniedError
from batholith.model.names import BATCH_JOBS, CRDS, JOBS, PODGROUPS, QUEUES, Resource
from batholith.model.training.kinds import PYTORCH

Json = dict[str, Any]

PYTORCH_JOBS = PYTORCH.resource

DATA = Path(__file__).parents[1] / "data"
BY_A_POLICY = "ValidatingAdmissionPolicy"


class EmbeddedFactory(EmbeddedServerFactory):
    """Embedded servers with the policies."""

    @asynccontextmanager
    async def start(
        self, directory: Path, **options: Unpack[ServerOptions]
    ) -> AsyncIterator[Server]:
        options["crds"] = [*definitions.load(), _pytorch_jobs()]
        async with super().start(directory, **options) as server:
            await server.create(JOBS.path("default"), _wrong_job())
            for each in policies():
                await server.create(path_of(each["kind"]), each)
            yield server


def _pytorch_jobs() -> Json:
    """The definition of one kind of training jobs."""
    found = definitions.load_training()
    return next(each for each in found if each["spec"]["names"]["kind"] == PYTORCH_JOBS.kind)


def _wrong_job() -> Json:
    """A job that was stored before the policies."""
    return stored(minAvailable=9, plugins={"nosuch": []}) | {"metadata": {"name": "before"}}


# The embedded server evaluates the same rules; its own tests cover how, and these cost minutes.
@pytest.fixture(scope="module", params=[pytest.param("embedded", marks=pytest.mark.soak), "real"])
def servers(request: pytest.FixtureRequest) -> ServerFactory:
    if request.param == "embedded":
        return EmbeddedFactory()
    started: ServerFactory = request.getfixturevalue("real_with_policies")
    return started


@pytest.fixture(scope="module")
def real_with_policies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServerFactory]:
    def prepare(kube: RealKube) -> None:
        assert kube.request_json("POST", JOBS.path("default"), _wrong_job()) == 201
        assert kube.request_json("POST", CRDS.path(), _pytorch_jobs()) == 201
        kube.wait_status(200, PYTORCH_JOBS.path())
        install(kube)

    with real_servers(tmp_path_factory.mktemp("kube"), prepare=prepare) as started:
        yield started


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as started:
        yield started


def lines(name: str) -> list[Json]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def path_for(body: Json) -> str:
    resource = RESOURCES[body["kind"]]
    return resource.path("default" if resource.namespaced else "")


async def submit(server: Server, body: Json) -> RawResponse:
    """Send an object of which only the outcome counts."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "namespace"}
    resource = RESOURCES[body["kind"]]
    whole = {**body, "apiVersion": resource.api_version, "metadata": metadata}
    return await server.request("POST", f"{path_for(body)}?dryRun=All", whole)


async def denial_message(server: Server, body: Json) -> str:
    """The message with which a policy denies an object; empty if none does."""
    response = await submit(server, body)
    if response.status == 201:
        return ""
    message = str(response.body["message"])
    assert BY_A_POLICY in message, message
    assert (response.status, response.body["reason"]) == (422, "Invalid")
    return message


# -- what was recorded

NOT_COVERED = {
    "no-queue": "a policy sees the queues that there are, not that one is missing",
    "pg-queue": "the same",
    "gq-parent": "the same",
}
"""Recorded refusals that policies cannot give."""


async def test_what_was_refused_by_rules_is_refused_in_the_same_words(server: Server) -> None:
    await server.create(QUEUES.path(), named("default", parent="root"))
    (parent,) = (
        each["object"] for each in RECORDED if each["object"]["metadata"]["name"] == "gq-ok"
    )
    await server.create(QUEUES.path(), parent)
    child = named("child", parent="gq-ok", capability={"cpu": "8"})
    await wait_denied(server, child, "exceeds its ancestor's capability")
    wrong = []
    for case in RECORDED:
        body = case["object"]
        if case["refused_by"] != "rules" or body["metadata"]["name"] in NOT_COVERED:
            continue
        response = await submit(server, body)
        result = str(response.body.get("message", ""))
        # Of several errors a policy reports the first.
        if BY_A_POLICY not in result or case["says"][0] not in result:
            wrong.append((body["metadata"]["name"], case["says"], result))
    assert wrong == []


RECORDED = lines("admission-denials.jsonl")


async def test_what_was_accepted_is_accepted(server: Server) -> None:
    taken = [case["object"] for case in RECORDED if case["refused_by"] == "nobody"]
    taken += list(accepted_by_the_reference())
    assert len(taken) > 100
    wrong = []
    for body in taken:
        response = await submit(server, body)
        if BY_A_POLICY in str(response.body):
            wrong.append((body["metadata"]["name"], response.body["message"]))
    assert wrong == []


def accepted_by_the_reference() -> Iterator[Json]:
    """All that was applied in the recorded lives, and taken."""
    for name in ("manifests", "scenarios", "workloads"):
        for life in lines(f"recorded/{name}.jsonl"):
            fates = (life.get("ending") or life["life"])["applied"]
            taken = {(kind, name) for kind, name, wrong in fates if wrong is None}
            applied = (each for step in life["steps"] for each in step.get("apply", []))
            for body in applied:
                kind = RESOURCES.get(body["kind"])
                ours = kind is not None and body["apiVersion"] == kind.api_version
                if ours and (body["kind"], body["metadata"]["name"]) in taken:
                    yield body


def named(name: str, **spec: Any) -> Json:
    return queue(name, **spec) | {"apiVersion": QUEUES.api_version}


# -- each rule, and that policies and functions agree


def whole(*tasks: Json, name: str = "j", **spec: Any) -> Json:
    """A job that names all, so that a server without webhooks sees what the functions see."""
    return job(*tasks, name=name, **spec)


POLICY = {"event": "PodFailed", "action": "RestartJob"}
BOTH_TIERS = {"highestTierAllowed": 1, "highestTierName": "rack"}
SIX = {"totalPartitions": 2, "partitionSize": 3}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def asking(**requests: Any) -> Json:
    """The pod spec of a container that asks for something."""
    container = {"name": "main", "image": "busybox", "resources": {"requests": requests}}
    return {"containers": [container]}


def mounting(name: str) -> Json:
    container = {
        "name": "main",
        "image": "busybox",
        "volumeMounts": [{"name": name, "mountPath": "/a"}],
    }
    return {"containers": [container], "volumes": [{"name": "here", "emptyDir": {}}]}


def flow(**targets: list[str]) -> Json:
    flows = [{"name": name, "dependsOn": {"targets": its}} for name, its in targets.items()]
    return {"kind": "JobFlow", "metadata": {"name": "f"}, "spec": {"flows": flows}}


TWICE = flow(a=[], b=["a"])
TWICE["spec"]["flows"].append({"name": "b", "dependsOn": {"targets": ["a"]}})


def probed(**probe: Any) -> Json:
    """A flow whose second Job waits for a probe of the first."""
    body = flow(a=[], b=["a"])
    body["spec"]["flows"][1]["dependsOn"]["probe"] = probe
    return body


def annotated(body: Json, **annotations: str) -> Json:
    """The object with Batholith's annotations, ``_`` for ``-``."""
    found = {f"batholith.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return {**body, "metadata": body["metadata"] | {"annotations": found}}


WARNING = "metadata.annotations[batholith.io/time-limit-warning]"
REFUSED: dict[str, tuple[Json, str]] = {
    "limit": (annotated(whole(), time_limit="soon"), "metadata.annotations"),
    "limit-0": (annotated(whole(), time_limit="0s"), "metadata.annotations"),
    "limit-warning": (annotated(whole(), time_limit="1h", time_limit_warning="1h"), WARNING),
    "limit-warning-only": (annotated(whole(), time_limit_warning="1m"), WARNING),
    "limit-warning-0": (
        annotated(whole(), time_limit="1h", time_limit_warning="0s"),
        "metadata.annotations",
    ),
    "limit-estimate": (annotated(whole(), running_estimate="-1h"), "metadata.annotations"),
    "parallel": (
        annotated(whole(), max_parallel="0"),
        "metadata.annotations[batholith.io/max-parallel]",
    ),
    "replace-nodes": (
        annotated(whole(), replace_nodes="yes"),
        "metadata.annotations[batholith.io/replace-nodes]: must be true or false",
    ),
    **{
        f"keep-nodes {value}": (
            annotated(whole(), keep_nodes=value),
            "metadata.annotations[batholith.io/keep-nodes]: must be a duration above zero and at",
        )
        for value in ("yes", "0s", "11m")
    },
    "depends-on": (
        annotated(whole(), depends_on="afterok:a,after:b"),
        "metadata.annotations[batholith.io/depends-on]",
    ),
    "begin": (
        annotated(whole(), begin="tomorrow"),
        "metadata.annotations[batholith.io/begin]",
    ),
    **{
        f"notify {url}": (
            annotated(whole(), notify=url),
            "metadata.annotations[batholith.io/notify]",
        )
        for url in ("", "ftp://x/", "https://", "https://u@x/", "https://x/#a", "https://x/ y")
    },
    **{
        f"notify events {events}": (
            annotated(whole(), notify="https://x/", notify_events=events),
            "metadata.annotations[batholith.io/notify-events]",
        )
        for events in ("", "start,stop", "start, end")
    },
    "notify events only": (
        annotated(whole(), notify="none", notify_events="end"),
        "metadata.annotations[batholith.io/notify-events]",
    ),
    "queue notify": (
        annotated(named("q", parent="root"), notify="example.org"),
        "requestBody.metadata.annotations[batholith.io/notify]",
    ),
    "queue notify events": (
        annotated(named("q", parent="root"), notify_events="end"),
        "requestBody.metadata.annotations[batholith.io/notify-events]",
    ),
    "queue-limit": (
        annotated(named("q", parent="root"), default_time_limit="1 hour"),
        "requestBody.metadata.annotations",
    ),
    "queue-runtime": (
        annotated(named("q", parent="root"), min_runtime="0s"),
        "requestBody.metadata.annotations",
    ),
    **{
        f"budget {budget}": (
            annotated(named("q", parent="root"), budget=budget),
            "requestBody.metadata.annotations[batholith.io/budget]: Invalid value",
        )
        for budget in ("", "cpu", "cpu=x", "cpu=0", "gpu=1", "cpu=1,cpu=1", "cpu=1, memory=1Gi")
    },
    **{
        f"budget window {window}": (
            annotated(named("q", parent="root"), budget="cpu=1", budget_window=window),
            "requestBody.metadata.annotations[batholith.io/budget-window]: Invalid value",
        )
        for window in ("7d", "59s")
    },
    "budget policy": (
        annotated(named("q", parent="root"), budget="cpu=1", budget_policy="firm"),
        "requestBody.metadata.annotations[batholith.io/budget-policy]: Invalid value",
    ),
    "budget without amounts": (
        annotated(named("q", parent="root"), budget_policy="soft"),
        "requestBody.metadata.annotations",
    ),
    "pods": (
        whole(task("a", 60_000), task("b", 40_001)),
        "spec.tasks[*].replicas: the job has 100001 pods, but a job may have at most 100000",
    ),
    "C2": (
        whole(task("m"), plugins={"mpi": ["--master", "boss"]}),
        'spec.plugins.mpi: The specified mpi master task was not found: no task is named "boss"',
    ),
    "C3": (whole(networkTopology=BOTH_TIERS), "spec.networkTopology: must not specify"),
    "C4": (
        whole(task(), task("u", 1, minAvailable=2)),
        "spec.tasks[1]: 'minAvailable' must be <= 'replicas' in task: u",
    ),
    "C5": (whole(task("a"), task("t"), task("t")), "spec.tasks[1]: duplicated task name t"),
    "C6": (
        whole(task("a"), task("t", policies=[POLICY | {"action": "SyncJob"}])),
        'spec.tasks[1].policies: Invalid value: "SyncJob": invalid policy action',
    ),
    "C7": (
        whole(task("t", 11), name="j" * 60),
        f"create pod with name {'j' * 60}-t-10 validate failed [name part must be no more than 63",
    ),
    "C8 no container": (
        whole(task(), task("u", pod={"containers": []})),
        "spec.task[1].template.spec.containers: Required value",
    ),
    "C8 no image": (
        whole(task(pod={"containers": [{"name": "main", "image": "x"}, {"name": "other"}]})),
        "spec.task[0].template.spec.containers[1].image: Required value",
    ),
    "C8 requests": (
        whole(task(pod=asking(memory="-1Gi"))),
        "spec.task[0].template.spec.containers[0].resources.requests[memory]: Invalid value:",
    ),
    "C8 mounts": (
        whole(task(pod=mounting("there"))),
        'spec.task[0].template.spec.containers[0].volumeMounts[0].name: Not found: "there"',
    ),
    "C9": (
        whole(task(topologyPolicy="restricted", pod=asking(cpu="1500m"))),
        "spec.tasks: the cpu request isn't an integer in spec.task[0] container[0].",
    ),
    "C9 no cpu": (whole(task(topologyPolicy="restricted")), "the cpu request isn't an integer"),
    "C10 size": (
        whole(task("t", 5, partitionPolicy=SIX)),
        "spec.tasks[0]: 'Replicas' are not equal to TotalPartitions*PartitionSize in task: t",
    ),
    "C10 least": (
        whole(task("t", 6, minAvailable=4, partitionPolicy=SIX | {"minPartitions": 1})),
        "spec.tasks[0]: 'MinAvailable' is not equal to MinPartitions*PartitionSize in task: t",
    ),
    "C10 topology": (
        whole(task("t", 6, partitionPolicy=SIX | {"networkTopology": BOTH_TIERS})),
        "spec.tasks[0]: must not specify 'highestTierAllowed' and 'highestTierName'",
    ),
    "C11": (
        whole(name="j.k", volumes=[{"mountPath": "/a", "volumeClaimName": "c"}]),
        "metadata.name",
    ),
    "C11 svc": (
        whole(name="1j", plugins={"svc": []}),
        "metadata.name: plugin svc creates a Service",
    ),
    "C11 implied": (
        whole(name="1j", plugins={"ray": []}),
        "metadata.name: plugin svc creates a Service",
    ),
    "C12": (
        whole(task("a", 2), task("b", 1), minAvailable=4),
        "spec.minAvailable: job 'minAvailable' must not be greater than total replicas",
    ),
    "C13 both": (
        whole(policies=[POLICY | {"exitCode": 1}]),
        "spec.policies: must not specify event",
    ),
    "C13 none": (whole(policies=[{"action": "RestartJob"}]), "spec.policies: either event and"),
    "C13 events": (
        whole(policies=[{"events": ["PodFailed", "PodRunning"], "action": "RestartJob"}]),
        'spec.policies: Invalid value: "PodRunning": invalid policy event',
    ),
    "C13 duplicate": (
        whole(policies=[POLICY, {"events": ["Unknown", "PodFailed"], "action": "AbortJob"}]),
        "spec.policies: duplicate event PodFailed  across different policy",
    ),
    "C13 timeout": (whole(policies=[POLICY | {"timeout": "5 m"}]), 'Invalid value: "5 m": invalid'),
    "C14": (whole(plugins={"env": [], "no": []}), "spec.plugins: unable to find job plugin: no"),
    "estimate": (whole(runningEstimate="soon"), "spec.runningEstimate: Invalid value"),
    "C15 duplicate": (
        whole(volumes=[{"mountPath": "/a", "volumeClaimName": name} for name in "bc"]),
        "spec.volumes[0]: duplicated mountPath: /a",
    ),
    "C15 neither": (whole(volumes=[{"mountPath": "/a"}]), "spec.volumes[0]: either VolumeClaim or"),
    "C15 name": (
        whole(volumes=[{"mountPath": "/a", "volumeClaimName": "A_b"}]),
        "spec.volumes[0]: invalid VolumeClaimName A_b",
    ),
    "C18": (whole(queue="root"), "spec.queue: can not submit job to root queue"),
    "C20 unknown": (
        whole(task("a", dependsOn={"name": ["z"]})),
        "form a directed acyclic graph(DAG): task a depends on z, which is not a task",
    ),
    "C20 circle": (
        whole(*(task(a, dependsOn={"name": [b]}) for a, b in ("ab", "bc", "ca", "dc"))),
        "spec.tasks: job has dependencies between tasks, but doesn't form a directed acyclic"
        " graph(DAG): a, b, c, d",
    ),
    "C20 duplicate": (
        whole(task("b"), task("a", dependsOn={"name": ["b", "b"]})),
        "spec.tasks[1].dependsOn",
    ),
    "queue amount": (
        named("q", capability={"cpu": "-1"}),
        'requestBody.spec.capability.cpu: Invalid value: "-1": must be greater than or equal to 0',
    ),
    "queue whole": (
        named("q", capability={"example.com/gpu": "500m"}),
        'requestBody.spec.capability.example.com/gpu: Invalid value: "500m": must be an integer',
    ),
    "queue path": (
        named("q", annotations={"volcano.sh/hierarchy": "root/a"}),
        "volcano.sh/hierarchy must have the same length with volcano.sh/hierarchy-weights",
    ),
    "queue weights": (
        named(
            "q",
            annotations={"volcano.sh/hierarchy": "root/a", "volcano.sh/hierarchy-weights": "1/0"},
        ),
        "volcano.sh/hierarchy-weights: 0 in the 1/0 must be larger than 0",
    ),
    "podgroup": (
        {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"networkTopology": BOTH_TIERS}},
        "spec.networkTopology: must not specify 'highestTierAllowed' and 'highestTierName'",
    ),
    "podgroup root": (
        {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"queue": "root"}},
        "spec.queue: can not submit PodGroup to root queue",
    ),
    "flow undefined": (flow(a=["z"]), "jobflow Flow is not DAG: vertex is not defined: z"),
    "flow itself": (flow(a=["a"]), "jobflow Flow is not DAG"),
    "flow circle": (
        flow(a=["b"], b=["c"], c=["a"], d=["a"]),
        "jobflow Flow is not DAG: it has a cycle",
    ),
    "flow circle of a name listed twice": (
        TWICE
        | {
            "spec": {
                "flows": [*TWICE["spec"]["flows"], {"name": "a", "dependsOn": {"targets": ["b"]}}]
            }
        },
        "jobflow Flow is not DAG: it has a cycle",
    ),
    "flow port": (
        probed(tcpSocketList=[{"port": 0}]),
        "spec.flows[1].dependsOn.probe: a port must be between 1 and 65535",
    ),
    "flow header": (
        probed(httpGetList=[{"port": 1, "httpHeader": {"name": "a b", "value": ""}}]),
        "spec.flows[1].dependsOn.probe: a header is invalid",
    ),
    "flow path": (
        probed(httpGetList=[{"port": 1, "path": "/a b"}]),
        "spec.flows[1].dependsOn.probe: a path must consist of visible ASCII characters",
    ),
    "flow phase": (
        probed(taskStatusList=[{"phase": "Done"}]),
        "spec.flows[1].dependsOn.probe: the phase of a task is unsupported",
    ),
    "podgroup inside": (
        {
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"subGroupPolicy": [{"name": "s", "networkTopology": BOTH_TIERS}]},
        },
        "in subGroupPolicy 's': must not specify",
    ),
}


@pytest.mark.parametrize("rule", REFUSED)
async def test_what_a_rule_refuses_without_webhooks(server: Server, rule: str) -> None:
    body, text = REFUSED[rule]
    assert text in await denial_message(server, body)
    with pytest.raises(DeniedError):
        admit(body)


MALFORMED = (
    ({"time-limit": "soon"}, "a time limit or estimate is no duration"),
    ({"running-estimate": "-1h"}, "a time limit or estimate is no duration"),
    ({"time-limit": "1h", "time-limit-warning": "2h"}, "must be less than batholith.io/time-limit"),
    ({"notify": "ftp://x/"}, "batholith.io/notify]: must be a URL"),
    ({"notify-events": "end"}, "batholith.io/notify-events]: must be some of"),
)
"""Annotations of a Job of batch/v1, and why they are denied."""
WELL_FORMED = (
    {"time-limit": "1h30m", "time-limit-warning": "90s", "running-estimate": "10m"},
    {"notify": "https://x.example/", "notify-events": "end,failure"},
    {"notify": "none", "begin": "whenever"},
)


async def test_annotations_of_jobs_of_batch_are_refused_without_webhooks(server: Server) -> None:
    path = f"{BATCH_JOBS.path('default')}?dryRun=All"
    for annotations, text in MALFORMED:
        body = batch_job({f"batholith.io/{name}": value for name, value in annotations.items()})
        response = await server.request("POST", path, body)
        assert (response.status, text in str(response.body)) == (422, True), response.body
        with pytest.raises(DeniedError, match=r"metadata\.annotations"):
            admit_batch_job(body)
    for annotations in WELL_FORMED:
        body = batch_job({f"batholith.io/{name}": value for name, value in annotations.items()})
        response = await server.request("POST", path, body)
        assert response.status == 201, response.body
        admit_batch_job(body)


def admit_batch_job(body: Json) -> None:
    validate = batch_job_webhook(AdmissionSettings()).validate
    assert validate is not None
    request = AdmissionRequest(
        operation="CREATE", namespace="default", name="probe", object=body, old_object=None
    )
    validate(request, ObjectReaderStub())


ACCEPTED: dict[str, Json] = {
    "notify": annotated(
        whole(), notify="https://x.example:8443/a?b=%20[c]", notify_events="end,time-limit"
    ),
    "notify none": annotated(whole(), notify="none"),
    "queue notify": annotated(named("q", parent="root"), notify="http://[::1]:80"),
    "waiting": annotated(
        whole(),
        max_parallel="3",
        depends_on="afterok:a,afterany:b.c,singleton",
        begin="2026-01-31T16:00:00+01:00",
    ),
    "pods": whole(task("a", 60_000), task("b", 40_000)),
    "little": {
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"tasks": [{"template": task()["template"]}]},
    },
    "no names": whole(*({"template": task()["template"]} for _ in range(2))),
    "no replicas": whole({"name": "t", "template": task()["template"]}),
    "mpi": whole(task("boss"), plugins={"mpi": ["--master", "worker", "--master=boss"]}),
    "cpus": whole(task(topologyPolicy="restricted", pod=asking(cpu="2000m"))),
    "limits": whole(
        task(
            topologyPolicy="restricted",
            pod={
                "containers": [
                    {"name": "m", "image": "x", "resources": {"limits": {"cpu": 2}}},
                ]
            },
        )
    ),
    "partitions": whole(task("t", 6, minAvailable=3, partitionPolicy=SIX | {"minPartitions": 1})),
    "policies": whole(
        policies=[
            {"event": "*", "action": "RestartJob", "timeout": "1h30m"},
            {"exitCode": 3, "action": "AbortJob", "timeout": "-1.5s"},
        ]
    ),
    "same event": whole(
        policies=[{"event": "Unknown", "events": ["Unknown"], "action": "AbortJob"}]
    ),
    "volumes": whole(
        volumes=[
            {"mountPath": "/a", "volumeClaim": CLAIM},
            {"mountPath": "/b", "volumeClaimName": "b.c"},
        ]
    ),
    "mounts": whole(task(pod=mounting("here"))),
    "dotted": whole(name="j.k"),
    "depends": whole(task("b", dependsOn={"name": ["a", "c"]}), task("a"), task("c")),
    "chain": whole(
        *(task(a, dependsOn={"name": [b]}) for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        task("i"),
    ),
    "long chain": whole(
        *(task(f"t{n}", dependsOn={"name": [f"t{n + 1}"]}) for n in range(30)), task("t30")
    ),
    "estimate": whole(runningEstimate="1h30m"),
    "flow": flow(a=[], b=["a"], c=["a"], d=["b", "c"]),
    "flow chain": flow(a=[], **{b: [a] for a, b in zip("abcdefgh", "bcdefghi", strict=True)}),
    "flow without flows": flow(),
    "flow twice": TWICE,
    "flow probe": probed(
        httpGetList=[
            {
                "taskName": "t",
                "port": 80,
                "path": "/a?b=c",
                "httpHeader": {"name": "X", "value": ""},
            }
        ],
        tcpSocketList=[{"port": 65535}],
        taskStatusList=[{"phase": "Running"}, {"taskName": "t", "phase": "Completed"}],
    ),
    "long": whole(name="j" * 59),
    "queue": named(
        "q",
        capability={"cpu": "4", "nvidia.com/gpu": 8},
        deserved={"cpu": "2500m"},
        guarantee={"resource": {"cpu": 1}},
    ),
    "queue budget": annotated(
        named("q", parent="root"),
        budget="cpu=1000,memory=4000Gi,nvidia.com/gpu=50",
        budget_window="168h",
        budget_policy="soft",
        min_runtime="10m",
    ),
    "queue path": named(
        "q",
        annotations={"volcano.sh/hierarchy": "root/a", "volcano.sh/hierarchy-weights": "1/0.5e1"},
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
async def test_what_is_right_is_accepted_by_both(server: Server, case: str) -> None:
    body = ACCEPTED[case]
    response = await submit(server, body)
    assert response.status == 201, response.body
    admit(body)


async def test_policies_and_functions_agree_on_jobs_made_of_parts(server: Server) -> None:
    await server.create(QUEUES.path(), named("default", parent="root"))
    dice, differ, refused = Random(20), [], 0
    for _ in range(400):
        body = random_job(dice)
        result = await denial_message(server, body)
        try:
            admit(body)
            denied = ""
        except DeniedError as error:
            denied = str(error)
        refused += bool(result)
        if bool(result) != bool(denied):
            differ.append((body["spec"], result, denied))
    assert differ == []
    assert 100 < refused < 300, "both are to be seen"


def random_job(dice: Random) -> Json:
    """A job of fields that are each valid or invalid, most of them valid."""
    tasks = [random_task(dice) for _ in range(dice.choice((1, 1, 2, 3)))]
    if dice.random() < 0.95:
        for index, each in enumerate(tasks):
            each["name"] = f"t{index}"
    spec: Json = {}
    for field, choices in JOB_FIELDS.items():
        if dice.random() < 0.1:
            spec[field] = dice.choice(choices)
    name = "j" if dice.random() < 0.8 else dice.choice(("1j", "j.k", "j" * 60, "j" * 64))
    return whole(*tasks, name=name, **spec)


def random_task(dice: Random) -> Json:
    created = task("t", dice.choice((0, 1, 4, 6, 11)))
    for field, choices in TASK_FIELDS.items():
        if dice.random() < 0.07:
            created[field] = dice.choice(choices)
    if dice.random() < 0.1:
        created["template"] = {"spec": dice.choice(PODS_TO_BE)}
    return created


SOME_POLICIES: list[list[Json]] = [
    [POLICY],
    [POLICY, {"exitCode": 1, "action": "AbortJob"}],
    [POLICY, {"events": ["Unknown", "TaskFailed"], "action": "AbortJob", "timeout": "1m"}],
    [POLICY, POLICY],
    [{"event": "*", "action": "RestartJob"}, {"exitCode": 2, "action": "CompleteJob"}],
    [{"event": "*", "action": "RestartJob"}, POLICY],
    [{"exitCode": 1, "action": "AbortJob"}] * 2,
    [{"exitCode": 0, "action": "AbortJob"}],
    [{"exitCode": 1}],
    [{"event": "OutOfSync", "action": "AbortJob"}],
    [POLICY | {"timeout": "1"}],
]
JOB_FIELDS: dict[str, list[Any]] = {
    "minAvailable": [0, 1, 2, 7],
    "plugins": [
        {"env": [], "svc": []},
        {"ssh": []},
        {"mpi": ["--master=t0"]},
        {"mpi": ["-master", "t1"]},
        {"mpi": []},
        {"tensorflow": []},
        {"x": []},
    ],
    "policies": SOME_POLICIES,
    "runningEstimate": ["1h", "1.5h2s", "0", "-1ms", "1", "1 h", ""],
    "networkTopology": [{"mode": "soft", "highestTierAllowed": 1}, BOTH_TIERS],
    "volumes": [
        [{"mountPath": "/a", "volumeClaimName": "c"}, {"mountPath": "/b", "volumeClaim": CLAIM}],
        [{"mountPath": "/a", "volumeClaimName": "c"}] * 2,
        [{"mountPath": "/a", "volumeClaimName": "c", "volumeClaim": CLAIM}],
        [{"mountPath": "/a", "volumeClaimName": "C"}],
        [{"mountPath": "/a"}],
    ],
    "minSuccess": [1],
    "ttlSecondsAfterFinished": [0],
}
TASK_FIELDS: dict[str, list[Any]] = {
    "minAvailable": [0, 1, 4, 5],
    "policies": SOME_POLICIES,
    "topologyPolicy": ["none", "restricted"],
    "partitionPolicy": [
        SIX,
        SIX | {"minPartitions": 1},
        SIX | {"minPartitions": 3},
        {"totalPartitions": 2, "partitionSize": 2, "minPartitions": 2},
    ],
    "dependsOn": [{"name": ["t0"]}, {"name": ["t1"]}, {"name": ["t2", "t1"], "iteration": "any"}],
}
PODS_TO_BE: list[Json] = [
    asking(cpu="1"),
    asking(cpu=2, memory="1Gi"),
    asking(cpu="500m"),
    asking(cpu="-1"),
    mounting("here"),
    mounting("there"),
    {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "OnFailure"},
    {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Seldom"},
    {"containers": [{"name": "main"}]},
    {"containers": []},
]


# -- changes


def stored(**spec: Any) -> Json:
    """A job as it lies there, whose author has left out what may be left out."""
    template = {"spec": {"containers": [{"name": "main", "image": "busybox", "command": ["true"]}]}}
    tasks = [
        {"name": "a", "replicas": 2, "template": template, "policies": [POLICY]},
        {"name": "b", "replicas": 1, "template": template},
    ]
    body = job() | {"metadata": {"name": "j"}}
    body["spec"] |= {"minAvailable": 1, "tasks": tasks, "plugins": {"env": []}} | spec
    return body


def changed_task(change: Json, *, task: int = 0) -> Json:
    """Fields of one task changed."""
    body = stored()
    body["spec"]["tasks"][task] |= change
    return body


async def replace(server: Server, body: Json) -> RawResponse:
    """Replace what is stored under a name, for show."""
    at = f"{path_for(body)}/{body['metadata']['name']}"
    version = (await server.get(at))["metadata"]["resourceVersion"]
    whole = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
    return await server.request("PUT", f"{at}?dryRun=All", whole)


OTHER = {"spec": {"containers": [{"name": "main", "image": "alpine", "command": ["true"]}]}}
WRONG_CHANGES: dict[str, tuple[Json, str]] = {
    "U2": (
        changed_task({"replicas": 1, "minAvailable": 2}),
        "spec.tasks[0]: 'minAvailable' must be <= 'replicas' in task: a (minAvailable is 2",
    ),
    "U3": (
        changed_task({"partitionPolicy": SIX}),
        "spec.tasks[0]: 'Replicas' are not equal to TotalPartitions*PartitionSize in task: a",
    ),
    "U4": (
        stored(minAvailable=4),
        "spec.minAvailable: job 'minAvailable' must not be greater than total replicas",
    ),
    "U7": (
        stored(tasks=stored()["spec"]["tasks"][:1]),
        "spec.tasks: job updates may not add or remove tasks",
    ),
    "queue": (stored(queue="other"), "`suspend`; changed: spec.queue"),
    "several": (
        stored(maxRetry=5, minSuccess=1),
        "changed: spec.maxRetry, spec.minSuccess",
    ),
    "plugins": (stored(plugins={"env": ["-x"]}), "changed: spec.plugins"),
    "policies": (stored(policies=[POLICY]), "changed: spec.policies"),
    "ttl": (stored(ttlSecondsAfterFinished=0), "changed: spec.ttlSecondsAfterFinished"),
    "volumes": (
        stored(volumes=[{"mountPath": "/a", "volumeClaimName": "c"}]),
        "changed: spec.volumes",
    ),
    "topology": (stored(networkTopology={"mode": "soft"}), "changed: spec.networkTopology"),
    "estimate": (stored(runningEstimate="1h"), "changed: spec.runningEstimate"),
    "name": (changed_task({"name": "c"}), "changed: spec.tasks[*].name"),
    "template": (changed_task({"template": OTHER}, task=1), "changed: spec.tasks[*].template"),
    "task policies": (changed_task({"policies": []}), "changed: spec.tasks[*].policies"),
    "task topology": (
        changed_task({"topologyPolicy": "none"}),
        "changed: spec.tasks[*].topologyPolicy",
    ),
    "depends": (changed_task({"dependsOn": {"name": ["b"]}}), "changed: spec.tasks[*].dependsOn"),
    "task retries": (changed_task({"maxRetry": 1}), "changed: spec.tasks[*].maxRetry"),
}


@pytest.mark.parametrize("rule", WRONG_CHANGES)
async def test_what_may_not_change(server: Server, rule: str) -> None:
    body, text = WRONG_CHANGES[rule]
    before = await server.create(JOBS.path("default"), stored())
    response = await replace(server, body)
    assert (response.status, response.body["reason"]) == (422, "Invalid")
    assert text in response.body["message"]
    with pytest.raises(DeniedError):
        admit(body, old=before)


RIGHT_CHANGES = {
    "nothing": stored(),
    "least": stored(minAvailable=2),
    "priority": stored(priorityClassName="high"),
    "suspend": stored(suspend=True),
    "replicas": changed_task({"replicas": 5}),
    "explicit defaults": stored(queue="default", schedulerName="volcano", maxRetry=3, policies=[]),
    "defaults by webhook": changed_task({"maxRetry": 3, "minAvailable": 2}),
    "defaults left out": {
        **stored(),
        "spec": {"tasks": stored()["spec"]["tasks"], "plugins": {"env": []}},
    },
}


@pytest.mark.parametrize("case", RIGHT_CHANGES)
async def test_what_may_change(server: Server, case: str) -> None:
    before = await server.create(JOBS.path("default"), stored())
    response = await replace(server, RIGHT_CHANGES[case])
    assert response.status == 200, response.body
    admit(RIGHT_CHANGES[case], old=before)


async def test_names_of_claims_may_be_written(server: Server) -> None:
    volumes = [{"mountPath": "/a", "volumeClaim": CLAIM}]
    await server.create(JOBS.path("default"), stored(volumes=volumes))
    written = [volumes[0] | {"volumeClaimName": "j-pvc-0"}]
    response = await replace(server, stored(volumes=written))
    assert response.status == 200, response.body


async def test_a_wrong_job_from_before_can_still_be_written_but_for_its_spec(
    server: Server,
) -> None:
    """Its labels, its finalizers, its status, and so its end."""
    at = JOBS.path("default", "before")
    await merge_patch(
        server, at, {"metadata": {"finalizers": ["example.com/held"], "labels": {"a": "b"}}}
    )
    await merge_patch(server, f"{at}/status", {"status": {"state": {"phase": "Failed"}}})
    await merge_patch(server, at, {"metadata": {"finalizers": []}})
    assert (await server.request("DELETE", at)).status == 200


async def test_such_a_job_can_go_where_webhooks_fill_it_in(server: Server) -> None:
    """They add to the spec of a job from before at each write, be it that of its last finalizer."""
    at = JOBS.path("default", "before")
    await server.create(QUEUES.path(), named("default"))
    await merge_patch(server, at, {"metadata": {"finalizers": ["example.com/held"]}})
    async with serve_webhooks(server, WEBHOOKS):
        assert (await server.request("DELETE", at)).status == 200
        await merge_patch(server, at, {"metadata": {"finalizers": []}})
        assert (await server.request("GET", at)).status == 404


async def test_the_root_queue_is_fixed_and_may_be_relabelled(server: Server) -> None:
    await server.create(QUEUES.path(), named("root", capability={"cpu": "4"}))
    same = named("root", capability={"cpu": "4000m"}, annotations={"a": "b"}, priority=3)
    assert (await replace(server, same)).status == 200
    for body in (named("root", capability={"cpu": 5}), named("root"), named("root", deserved={})):
        response = await replace(server, body)
        assert "guarantee) cannot be modified" in response.body["message"]
    moved = named("root", capability={"cpu": "4"}, parent="other")
    assert "spec.parent: queue root has no parent" in (await replace(server, moved)).body["message"]


@pytest.mark.parametrize("name", ["root", "default"])
async def test_two_queues_stay(server: Server, name: str) -> None:
    await server.create(QUEUES.path(), named(name))
    response = await server.request("DELETE", QUEUES.path(name=name))
    assert (response.status, response.body["reason"]) == (422, "Invalid")
    assert f"metadata.name: `{name}` queue can not be deleted" in response.body["message"]


# -- with other queues


async def wait_denied(server: Server, body: Json, text: str) -> None:
    """A policy sees other objects by the API server's cache, which may be stale."""

    async def is_denied() -> bool:
        return text in await denial_message(server, body)

    await wait_until_true(is_denied)


async def test_a_queue_permits_no_longer_limit_than_its_maximum(server: Server) -> None:
    maximum = annotated(named("q"), max_time_limit="1h30m")
    await server.create(QUEUES.path(), maximum)
    await wait_denied(server, annotated(whole(queue="q"), time_limit="91m"), "at most 1h30m")
    for fitting in (annotated(whole(queue="q"), time_limit="5400s"), whole(queue="q")):
        assert await denial_message(server, fitting) == ""


async def refusal(server: Server, method: str, path: str, body: Json) -> str:
    """Return why a write is denied that is not carried out; empty if it is admitted."""
    content_type = MERGE if method == "PATCH" else "application/json"
    response = await server.request(method, f"{path}?dryRun=All", body, content_type=content_type)
    assert response.status in (200, 201, 422), response.body
    return str(response.body["message"]) if response.status == 422 else ""


def in_queue(kind: Resource, limit: str = "", seconds: int = 0) -> Json:
    """A job, or a PodGroup, in the queue *q*."""
    deadline = {"activeDeadlineSeconds": seconds} if seconds else {}
    container = {"name": "pytorch", "image": "busybox"}
    pods = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    if kind == BATCH_JOBS:
        queue_of_pods = {"annotations": {"scheduling.volcano.sh/queue-name": "q"}}
        pods["spec"] |= {"schedulerName": "volcano"}
        spec: Json = {"template": pods | {"metadata": queue_of_pods}, **deadline}
    elif kind == PYTORCH_JOBS:
        policy = {"schedulingPolicy": {"queue": "q"}, **deadline}
        replicas = {"Worker": {"replicas": 1, "template": pods}}
        spec = {"runPolicy": policy, "pytorchReplicaSpecs": replicas}
    else:
        spec = {"queue": "q"} | ({"minMember": 1} if kind == PODGROUPS else whole()["spec"])
        spec["queue"] = "q"
    annotations = {"batholith.io/time-limit": limit} if limit else {}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": "limited", "annotations": annotations},
        "spec": spec,
    }


@pytest.mark.parametrize("kind", [JOBS, BATCH_JOBS, PYTORCH_JOBS, PODGROUPS])
async def test_the_maximum_of_a_queue_holds_for_jobs_of_all_kinds(
    server: Server, kind: Resource
) -> None:
    await server.create(QUEUES.path(), annotated(named("q"), max_time_limit="1h30m"))
    path = kind.path("default")

    async def is_denied() -> bool:
        body = in_queue(kind, "91m")
        return "queue `q` permits at most 1h30m" in await refusal(server, "POST", path, body)

    await wait_until_true(is_denied)
    assert await refusal(server, "POST", path, in_queue(kind, "90m")) == ""
    assert await refusal(server, "POST", path, in_queue(kind)) == ""
    if kind == PODGROUPS:
        return
    await server.create(path, in_queue(kind, "90m"))
    path = kind.path("default", "limited")
    for limit, text in (("2h", "permits at most 1h30m"), (None, "permits at most"), ("1h", "")):
        patch = {"metadata": {"annotations": {"batholith.io/time-limit": limit}}}
        found = await refusal(server, "PATCH", path, patch)
        assert (text in found, bool(found)) == (True, bool(text)), found


@pytest.mark.parametrize("kind", [BATCH_JOBS, PYTORCH_JOBS])
async def test_the_maximum_of_a_queue_holds_for_deadlines(server: Server, kind: Resource) -> None:
    await server.create(QUEUES.path(), annotated(named("q"), max_time_limit="90m"))
    path = kind.path("default")
    text = "activeDeadlineSeconds: Invalid value: 5401: queue `q` permits at most 90m"

    async def is_denied() -> bool:
        return text in await refusal(server, "POST", path, in_queue(kind, seconds=5401))

    await wait_until_true(is_denied)
    assert await refusal(server, "POST", path, in_queue(kind, seconds=5400)) == ""
    assert await refusal(server, "POST", path, in_queue(kind, "1h", seconds=5401)) == ""


async def test_a_queue_that_is_closed_takes_nothing(server: Server) -> None:
    await server.create(QUEUES.path(), named("q"))
    group = {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"queue": "q"}}
    for body in (whole(queue="q"), group):
        assert await denial_message(server, body) == ""
    await merge_patch(server, QUEUES.path(name="q") + "/status", {"status": {"state": "Closed"}})
    for what, body in (("job", whole(queue="q")), ("PodGroup", group)):
        reported = (
            f"spec.queue: can only submit {what} to queue with state `Open`, queue `q` status is"
        )
        await wait_denied(server, body, f"{reported} `Closed`")
    await merge_patch(server, QUEUES.path(name="q") + "/status", {"status": {"state": "Open"}})

    async def is_taken() -> bool:
        return await denial_message(server, whole(queue="q")) == ""

    await wait_until_true(is_taken)


async def test_a_queue_with_children_takes_no_jobs_and_stays(server: Server) -> None:
    await server.create(QUEUES.path(), named("q", capability={"cpu": 4}))
    await server.create(QUEUES.path(), named("child", parent="q", capability={"cpu": "2"}))
    reported = "spec.queue: can only submit job to leaf queue, queue `q` has child queue child"
    await wait_denied(server, whole(queue="q"), reported)
    group = {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"queue": "q"}}
    reported = "spec.queue: can only submit PodGroup to leaf queue, queue `q` has child queue child"
    await wait_denied(server, group, reported)
    response = await server.request("DELETE", QUEUES.path(name="q"))
    assert "queue q can not be deleted because it has child queue child" in response.body["message"]
    await wait_denied(
        server,
        named("other", parent="q", capability={"cpu": 5}),
        "spec.capability: queue other capability[cpu]=5 exceeds its ancestor's capability=4",
    )
    less = await replace(server, named("q", capability={"cpu": "1500m"}))
    assert (
        "capability[cpu]=1500m is smaller than its descendants' max capability=2"
        in less.body["message"]
    )
    circle = await replace(server, named("q", parent="child"))
    assert "queue q cannot have parent child, its descendant" in circle.body["message"]
    assert (await server.request("DELETE", QUEUES.path(name="child"))).status == 200

    async def may_go() -> bool:
        return (await server.request("DELETE", QUEUES.path(name="q"))).status == 200

    await wait_until_true(may_go)


async def test_a_path_of_another_queue_is_no_leaf(server: Server) -> None:
    def at(name: str, path: str) -> Json:
        weights = "/".join("1" for _ in path.split("/"))
        notes = {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}
        return named(name, annotations=notes)

    await server.create(QUEUES.path(), at("a", "root/x/y"))
    reported = (
        "root/x is not allowed to be in the sub path of root/x/y of queue a: a path ends at a leaf"
    )
    await wait_denied(server, at("b", "root/x"), reported)
    reported = "root/x/y/z is not allowed to be in the sub path of root/x/y of queue a"
    await wait_denied(server, at("b", "root/x/y/z"), reported)
    assert await denial_message(server, at("b", "root/xy")) == ""


# -- pods


def pod(scheduler: str = "volcano", **annotations: str) -> Json:
    notes = {f"volcano.sh/jdb-{key.replace('_', '-')}": value for key, value in annotations.items()}
    spec = {"schedulerName": scheduler, "containers": [{"name": "main", "image": "busybox"}]}
    return {"kind": "Pod", "metadata": {"name": "p", "annotations": notes}, "spec": spec}


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "0%", "100%", "5%0", "1.5", "50%%"])
async def test_a_pod_with_a_wrong_amount(server: Server, value: str) -> None:
    """A policy returns the message of the function."""
    body = pod(min_available=value)
    with pytest.raises(DeniedError) as denied:
        admit(body)
    assert f"metadata.annotations: {denied.value}" in await denial_message(server, body)


async def test_other_pods(server: Server) -> None:
    for body in (
        pod(),
        pod(min_available="1"),
        pod(max_unavailable="99%"),
        pod("x", min_available="x"),
    ):
        assert await denial_message(server, body) == ""
        admit(body)
    both = pod(min_available="1", max_unavailable="1")
    assert "not allow configure multiple annotations" in await denial_message(server, both)


# -- with webhooks, and under load


async def test_where_both_are_there_the_policy_speaks_first(server: Server) -> None:
    await server.create(QUEUES.path(), named("default"))
    async with serve_webhooks(server, WEBHOOKS):
        body = whole(task("t"), task("t"))
        assert "duplicated task name t" in await denial_message(server, body)
        lost = await submit(server, whole(queue="nosuch"))
        assert lost.body["message"].startswith('admission webhook "validatejob.volcano.sh" denied')


async def test_no_job_is_refused_for_its_size(server: Server) -> None:
    """Not even where that many tasks cost more than the API server lets a rule cost."""
    for number in (100, 500, 2000):
        tasks = [task(f"t{index}", policies=[POLICY]) for index in range(number)]
        response = await submit(server, whole(*tasks))
        assert response.status == 201, response.body


async def test_rules_hold_for_jobs_of_a_hundred_tasks(server: Server) -> None:
    tasks = [task(f"t{index}", 2, policies=[POLICY]) for index in range(100)]
    tasks[50]["name"] = "t7"
    assert "spec.tasks[7]: duplicated task name t7" in await denial_message(server, whole(*tasks))
    tasks[50] |= {"name": "t50", "policies": [{"action": "AbortJob"}]}
    assert "spec.tasks[50].policies: either event" in await denial_message(server, whole(*tasks))


# -- phrases that clients match on


async def test_policies_say_the_phrases_that_clients_match_on(server: Server) -> None:
    cases = {
        phrase: case
        for phrase, case in CASES.items()
        if not case.not_by_servers and not case.not_by_policies
    }
    await create_queues(server, CASES.values())

    def is_stale(phrase: str, message: str) -> bool:
        """The API server checks against queues as its cache shows them."""
        case = cases[phrase]
        return bool(case.existing_queues) and filled(phrase, case.values) not in message

    messages = await denials(server, cases, eventually_consistent=is_stale)
    wrong = {
        phrase: text
        for phrase, text in messages.items()
        if filled(phrase, cases[phrase].values) not in text or BY_A_POLICY not in text
    }
    assert wrong == {}


async def test_what_policies_cannot_say_they_do_not_say(server: Server) -> None:
    """The reasons given in the table of cases hold."""
    cases = {phrase: case for phrase, case in CASES.items() if case.not_by_policies}
    await create_queues(server, CASES.values())
    result = await denials(server, cases)
    for phrase, text in result.items():
        assert filled(phrase, cases[phrase].values) not in text
