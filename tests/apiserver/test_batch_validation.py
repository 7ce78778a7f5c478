"""Rules for batch Jobs beyond what is compared with kube-apiserver."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_writes import (
    COMPLETE,
    FAILED,
    STARTED,
    conditions,
    cron,
    indexed,
    job,
    on_condition,
)

from batholith.local.apiserver.builtin.index_intervals import (
    IntervalError,
    count_indexes,
    first_overlap,
)
from batholith.local.apiserver.builtin.job_status import validate_job_status
from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.builtin.template_warnings import template_warnings
from batholith.local.apiserver.kinds.info import KindInfo
from batholith.model.names import BATCH_CRONJOBS, BATCH_JOBS, Resource

Json = dict[str, Any]


def kind_of(resource: Resource) -> KindInfo:
    return next(kind for kind in BUILT_IN if kind.resource == resource)


JOB, CRON_JOB = kind_of(BATCH_JOBS), kind_of(BATCH_CRONJOBS)


def text_of(indexes: set[int]) -> str:
    """Intervals of indexes, each as long as possible."""
    starts = sorted(each for each in indexes if each - 1 not in indexes)
    pieces = []
    for start in starts:
        end = start
        while end + 1 in indexes:
            end += 1
        pieces.append(str(start) if end == start else f"{start}-{end}")
    return ",".join(pieces)


INDEXES = st.sets(st.integers(0, 40))


@given(INDEXES, INDEXES)
def test_indexes_are_counted_and_the_first_common_one_is_found(
    indexes: set[int], others: set[int]
) -> None:
    assert count_indexes(text_of(indexes), 41) == len(indexes)
    overlap = first_overlap(text_of(indexes), text_of(others), 41)
    assert overlap == min(indexes & others, default=None)


@given(INDEXES.filter(bool))
def test_indexes_from_the_completions_on_are_rejected(indexes: set[int]) -> None:
    with pytest.raises(IntervalError, match="too large index"):
        count_indexes(text_of(indexes), max(indexes))


@given(st.text(alphabet="0123,-+ x", max_size=12), st.text(alphabet="0123,-", max_size=12))
def test_any_text_is_counted_or_rejected(text: str, other: str) -> None:
    try:
        assert count_indexes(text, 1000) >= 0
    except IntervalError as error:
        assert str(error)
    first_overlap(text, other, 1000)


def test_many_indexes_are_compared_in_one_pass() -> None:
    text = ",".join(str(each) for each in range(0, 400_000, 4))
    other = ",".join(str(each) for each in range(2, 400_000, 4))
    assert count_indexes(text, 400_000) == 100_000
    assert first_overlap(text, other, 400_000) is None


# -- statuses

STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "active": st.integers(0, 1),
        "failed": st.integers(0, 2),
        "succeeded": st.integers(0, 2),
        "ready": st.integers(0, 1),
        "terminating": st.integers(0, 1),
        "startTime": st.sampled_from(["2024-01-01T00:00:00Z", "2024-01-01T00:00:01Z"]),
        "completionTime": st.sampled_from(["2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"]),
        "completedIndexes": st.sampled_from(["", "0", "0-1", "9", "x"]),
        "failedIndexes": st.sampled_from(["", "1", "2", "9"]),
        "uncountedTerminatedPods": st.sampled_from(
            [{}, {"failed": ["a"]}, {"succeeded": ["", ""]}]
        ),
        "conditions": st.lists(
            st.sampled_from(["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"]),
            unique=True,
        ).map(lambda names: conditions(*names)["conditions"]),
    },
)
SPECS = st.sampled_from([job(), job(suspend=True), indexed(), indexed(backoffLimitPerIndex=1)])


@given(SPECS, STATUSES)
def test_a_status_may_be_written_again_unless_it_is_invalid_by_itself(
    spec: Json, status: Json
) -> None:
    """Rules for changes do not keep a controller from writing what is there already."""
    stored = {"spec": spec, "status": status}
    always = ("must not be empty", "Duplicate value", "SuccessCriteriaMet=True and")
    errors = [error.detail for error in validate_job_status(stored, stored)]
    assert [text for text in errors if not any(each in text for each in always)] == []


@given(SPECS, STATUSES, STATUSES)
def test_a_finished_job_stays_finished(spec: Json, before: Json, after: Json) -> None:
    old, new = {"spec": spec, "status": before}, {"spec": spec, "status": after}
    if validate_job_status(new, old):
        return
    held, kept = (
        {each["type"] for each in status.get("conditions", ())} for status in (before, after)
    )
    assert held <= kept
    assert before.get("failed", 0) <= after.get("failed", 0)
    if "Complete" in kept - held:
        assert not kept & {"Failed", "FailureTarget"}
        assert after.get("active", 0) == after.get("terminating", 0) == 0


def test_a_status_write_is_accepted_although_the_spec_would_not_be_created() -> None:
    """An older version may have stored it, and its controller must be able to end the Job."""
    old = {"metadata": {"name": "j", "uid": "u"}, "spec": {"parallelism": -1}, "status": STARTED}
    assert JOB.validate_status({**old, "status": FAILED}, old) == []
    assert JOB.validate_status({**old, "status": COMPLETE}, old) == []


# -- warnings

PORTS = st.lists(
    st.fixed_dictionaries(
        {"containerPort": st.integers(80, 81), "protocol": st.just("TCP")},
        optional={"hostPort": st.integers(1, 2), "hostIP": st.sampled_from(["1.1.1.1", "1.1.1.2"])},
    ),
    max_size=6,
)


def conflicting_ports(ports: list[Json]) -> list[tuple[int, str, int]]:
    """Index, relation and index of the other port, by comparing all pairs."""
    found = []
    for index, port in enumerate(ports):
        for number, other in enumerate(ports[:index]):
            if port["containerPort"] != other["containerPort"]:
                continue
            hosts = [each.get("hostPort", 0) for each in (port, other)]
            addresses = [each.get("hostIP", "") for each in (port, other)]
            if hosts[0] == hosts[1] and addresses[0] == addresses[1]:
                found.append((index, "duplicate", number))
            elif 0 in hosts:
                found.append((index, "overlapping", number))
            elif hosts[0] == hosts[1] and addresses.count("") == 1:
                found.append((index, "dangerously ambiguous", number))
    return found


@given(PORTS)
def test_warnings_name_all_ports_in_conflict(ports: list[Json]) -> None:
    spec = {"containers": [{"name": "c", "ports": ports}]}
    texts = [text for text in template_warnings({"spec": spec}, "t") if "definition" in text]
    base = "t.spec.containers[0].ports"
    assert texts == [
        f"{base}[{index}]: {relation} port definition with {base}[{number}]"
        for index, relation, number in conflicting_ports(ports)
    ]


PATHS = st.lists(st.sampled_from(["a", "a/", "a/b", "a/b/c", "a-b", "ab", "b", "b/a"]), max_size=7)


@given(PATHS)
def test_warnings_name_all_files_in_conflict(paths: list[str]) -> None:
    items = [{"key": "k", "path": path} for path in paths]
    volume = {"name": "v", "configMap": {"name": "m", "items": items}}
    trimmed = [path.rstrip("/") for path in paths]
    assert template_warnings({"spec": {"volumes": [volume]}}, "t") == [
        f'volume "v" (ConfigMap "m"): overlapping paths: "{path}" with "{other}"'
        for index, path in enumerate(trimmed)
        for other in trimmed[:index]
        if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"ports": [{"containerPort": 80}] * 10_000}]},
        {"containers": [{"ports": [
            {"containerPort": 80, "hostPort": 1 + n % 9, "hostIP": f"10.0.{n % 250}.{n // 250}"}
            for n in range(10_000)]}]},
        {"volumes": [{"name": "v", "secret": {"items": [{"path": "a"}] * 10_000}}]},
        {"volumes": [{"name": "v", "secret": {
            "items": [{"path": f"a{n}"} for n in range(10_000)]}}]},
        {"volumes": [{"name": "v", "projected": {"sources": [
            {"secret": {"items": [{"path": "a/" * n + "b"}]}} for n in range(300)]}}]},
    ],
    ids=["equal ports", "distinct ports", "equal files", "distinct files", "nested files"],
)  # fmt: skip
def test_the_warnings_for_large_templates_are_limited(spec: Json) -> None:
    assert len(template_warnings({"spec": spec}, "t")) <= 50


# -- objects of older versions


def stored(kind: KindInfo, spec: Json, name: str) -> Json:
    metadata = {"name": name, "namespace": "n", "uid": "u"}
    obj = {"metadata": metadata, "kind": kind.resource.kind, "spec": spec}
    kind.prepare(obj)
    kind.before_create(obj)
    return obj


@pytest.mark.parametrize(
    ("kind", "spec"), [(JOB, job(parallelism=-1)), (CRON_JOB, cron("never"))], ids=["job", "cron"]
)
def test_finalizers_of_an_invalid_object_can_be_removed(kind: KindInfo, spec: Json) -> None:
    old = stored(kind, spec, "a")
    assert kind.validate(old) != []
    old["metadata"]["finalizers"] = ["a.io/b"]
    new = {**old, "metadata": {**old["metadata"], "finalizers": []}}
    assert kind.validate(new, old) == []


def test_a_cron_job_keeps_a_long_name_and_a_time_zone_in_its_schedule() -> None:
    """kube-apiserver, too, checks them only where they are new."""
    old = stored(CRON_JOB, cron("TZ=UTC 0 0 * * *"), "c" * 53)
    new = stored(CRON_JOB, cron("TZ=UTC 1 1 * * *"), "c" * 53)
    assert CRON_JOB.validate(new, old) == []
    assert CRON_JOB.warnings(new, old) == [
        "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see "
        "https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
    ]
    new["spec"]["timeZone"] = "UTC"
    (error,) = CRON_JOB.validate(new, old)
    assert "cannot use both timeZone field and TZ or CRON_TZ in schedule" in error.detail


def test_a_job_without_the_newer_labels_can_be_updated() -> None:
    old = stored(JOB, job(), "j")
    old["spec"]["selector"] = {"matchLabels": {"controller-uid": "u"}}
    labels = old["spec"]["template"]["metadata"]["labels"]
    del labels["batch.kubernetes.io/job-name"], labels["batch.kubernetes.io/controller-uid"]
    assert JOB.validate({**old, "spec": old["spec"] | {"parallelism": 2}}, old) == []


def test_a_job_without_the_newer_defaults_can_be_updated() -> None:
    old = stored(JOB, on_condition({"type": "DisruptionTarget"}), "j")
    new = {**copy.deepcopy(old), "metadata": {**old["metadata"], "labels": {"a": "b"}}}
    del old["spec"]["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"]
    JOB.before_update(new, old)
    assert JOB.validate(new, old) == []
    assert new["metadata"]["generation"] == 1


@pytest.mark.parametrize("suspend", [False, True])
def test_a_status_changes_no_spec_and_a_spec_no_status(suspend: bool) -> None:
    old = stored(JOB, job(suspend=suspend), "j") | {"status": STARTED}
    new = {**old, "metadata": dict(old["metadata"]), "spec": job(), "status": {"active": 1}}
    JOB.before_status_update(new, old)
    assert (new["spec"], new["status"]) == (old["spec"], {"active": 1})
    new = {**old, "metadata": dict(old["metadata"]), "status": {"active": 1}}
    new["spec"] = old["spec"] | {"parallelism": 9}
    JOB.before_update(new, old)
    assert new["status"] == STARTED
    assert new["metadata"]["generation"] == old["metadata"]["generation"] + 1
