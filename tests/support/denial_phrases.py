"""Denial phrases that clients match on, and for each an object that is denied with it.

The phrases are those of `data/denial-phrases.jsonl`, whose ``%s``, ``%v`` and ``%d`` are
replaced by names, values and numbers.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.admission import container, cronjob, hypernode, job, member, queue, task

from batholith.admission import AdmissionSettings

Json = dict[str, Any]

DATA = Path(__file__).parents[1] / "data" / "denial-phrases.jsonl"
SETTINGS = AdmissionSettings(queue_allocated_pods_check=True)

BY_SCHEMA = "the definition's schema denies it first, with its own message"
COUNTS = "a policy sees the other queues one at a time, and cannot count or add them up"
MISSING = "a policy sees the queues that there are, not that one is missing"
STATUS = "status is a sub-resource, which neither webhooks nor policies are asked about"
DATABASE = "CEL has no database of time zones"
NAMES = "the API server denies the name first, with its own message"
PATTERNS = "CEL cannot compile a pattern without failing"
OPTIONAL = "the rule is off unless --enable-queue-allocated-pods-check is set"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialCase:
    """A write that is refused with a phrase."""

    values: tuple[object, ...] = ()
    """Values for the phrase's ``%s``."""
    new: Json | None = None
    """What is written; ``None`` for a deletion."""
    old: Json | None = None
    """What is changed or deleted."""
    existing_queues: tuple[Json, ...] = ()
    """Queues that are there."""
    not_by_servers: str = ""
    """Why neither webhooks nor policies return it."""
    not_by_policies: str = ""
    """Why CEL cannot return it."""


def phrases() -> list[str]:
    """The phrases of all kinds that there are."""
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    return [row["phrase"] for row in rows]


def filled(phrase: str, values: tuple[object, ...]) -> str:
    """*phrase* with *values* instead of its verbs."""
    left = iter(values)

    def fill(verb: re.Match[str]) -> str:
        value = str(next(left))
        return json.dumps(value) if verb[0] == "%q" else value

    text = re.sub(r"%[svdq]", fill, phrase)
    assert not list(left), phrase
    return text


BOTH_TIERS = {"mode": "soft", "highestTierAllowed": 1, "highestTierName": "rack"}
FAILED = {"event": "PodFailed", "action": "RestartJob"}


def _policies(*policies: Json) -> DenialCase:
    return DenialCase(new=job(policies=list(policies)))


def _volumes(*volumes: Json) -> Json:
    return job(volumes=list(volumes))


def _parts(replicas: int = 6, total: int = 3, size: int = 2, **more: Any) -> Json:
    least = more.pop("minAvailable", None)
    policy = {"totalPartitions": total, "partitionSize": size, **more}
    fields = {} if least is None else {"minAvailable": least}
    return job(task("t", replicas, partitionPolicy=policy, **fields))


def _group(**spec: Any) -> Json:
    meta = {"name": "g", "namespace": "ns"}
    api = "scheduling.volcano.sh/v1beta1"
    return {"apiVersion": api, "kind": "PodGroup", "metadata": meta, "spec": spec}


def _flow(**targets: list[str]) -> Json:
    flows = [{"name": name, "dependsOn": {"targets": its}} for name, its in targets.items()]
    meta = {"name": "f", "namespace": "ns"}
    api = "flow.volcano.sh/v1alpha1"
    return {"apiVersion": api, "kind": "JobFlow", "metadata": meta, "spec": {"flows": flows}}


def _pod(**annotations: str) -> Json:
    given = {f"volcano.sh/jdb-{key.replace('_', '-')}": each for key, each in annotations.items()}
    meta = {"name": "p", "namespace": "ns", "annotations": given}
    spec = {"schedulerName": "volcano", "containers": [container()]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _busy_queue(name: str, **spec: Any) -> Json:
    body = queue(name, parent="root", **spec)
    return body | {"status": {"state": "Open", "allocated": {"pods": "2"}}}


def _path(path: str, weights: str) -> Json:
    return {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}


_HIERARCHY = ("volcano.sh/hierarchy", "volcano.sh/hierarchy-weights")
_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_PINNED = {
    "initContainers": [container(name="first", resources={"requests": {"cpu": "1500m"}})],
    "containers": [container(resources={"requests": {"cpu": "1"}})],
}
_SUBGROUP = {"name": "s", "networkTopology": BOTH_TIERS}

JOBS: dict[str, DenialCase] = {
    "No task specified in job spec": DenialCase(
        new={**job(), "spec": {"queue": "default"}},
    ),
    "duplicated task name": DenialCase(new=job(task("t"), task("t"))),
    "job 'minAvailable' must not be greater than total replicas": DenialCase(
        new=job(minAvailable=2)
    ),
    "job 'minAvailable' must be >= 0": DenialCase(
        new=job(minAvailable=-1), not_by_servers=BY_SCHEMA
    ),
    "'replicas' must be >= 0 in task: %s": DenialCase(
        values=("t",), new=job(task("t", -1)), not_by_servers=BY_SCHEMA
    ),
    "'minAvailable' must be >= 0 in task: %s": DenialCase(
        values=("t",), new=job(task("t", minAvailable=-1)), not_by_servers=BY_SCHEMA
    ),
    "'minAvailable' must be <= 'replicas' in task: %s": DenialCase(
        values=("t",), new=job(task("t", 1, minAvailable=2))
    ),
    "must not specify event and exitCode simultaneously": _policies(FAILED | {"exitCode": 1}),
    "either event and exitCode should be specified": _policies({"action": "AbortJob"}),
    "0 is not a valid error code": _policies({"exitCode": 0, "action": "AbortJob"}),
    "duplicate exitCode %v": DenialCase(
        values=(3,), new=job(policies=[{"exitCode": 3, "action": "AbortJob"}] * 2)
    ),
    "duplicate event %v  across different policy": DenialCase(
        values=("PodFailed",), new=job(policies=[FAILED, FAILED])
    ),
    "if there's * here, no other policy should be here": _policies(
        {"event": "*", "action": "AbortJob"}, FAILED
    ),
    "invalid policy event": _policies({"event": "OutOfSync", "action": "AbortJob"}),
    "invalid policy action": _policies({"event": "PodFailed", "action": "SyncJob"}),
    " mountPath is required;": DenialCase(
        new=_volumes({"volumeClaimName": "c", "mountPath": ""}), not_by_servers=BY_SCHEMA
    ),
    " duplicated mountPath: %s;": DenialCase(
        values=("/a",), new=_volumes(*({"mountPath": "/a", "volumeClaimName": it} for it in "bc"))
    ),
    " either VolumeClaim or VolumeClaimName must be specified;": DenialCase(
        new=_volumes({"mountPath": "/a"})
    ),
    "conflict: If you want to use an existing PVC, just specify VolumeClaimName.": DenialCase(
        new=_volumes({"mountPath": "/a", "volumeClaimName": "c", "volumeClaim": _CLAIM})
    ),
    "invalid VolumeClaimName %s : %v": DenialCase(
        values=("A_b", "[a lowercase RFC 1123 subdomain"),
        new=_volumes({"mountPath": "/a", "volumeClaimName": "A_b"}),
    ),
    "'TotalPartitions' must be greater than 0 in task: %s, job: %s": DenialCase(
        values=("t", "j"), new=_parts(total=0), not_by_servers=BY_SCHEMA
    ),
    "'PartitionSize' must be greater than 0 in task: %s, job: %s": DenialCase(
        values=("t", "j"), new=_parts(size=0), not_by_servers=BY_SCHEMA
    ),
    "'Replicas' are not equal to TotalPartitions*PartitionSize in task: %s, job: %s": DenialCase(
        values=("t", "j"), new=_parts(5)
    ),
    "'MinAvailable' is not equal to MinPartitions*PartitionSize in task: %s, job: %s": DenialCase(
        values=("t", "j"), new=_parts(minAvailable=3, minPartitions=1)
    ),
    "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology"
    " simultaneously": DenialCase(new=job(networkTopology=BOTH_TIERS)),
    "the cpu request isn't an integer in spec.task[%d] container[%d].": DenialCase(
        values=(1, 1), new=job(task("a"), task("b", topologyPolicy="restricted", pod=_PINNED))
    ),
    "unable to find job plugin: %s": DenialCase(
        values=("nosuch",), new=job(plugins={"nosuch": []})
    ),
    "unable to find job queue: %v": DenialCase(
        values=('queue.scheduling.volcano.sh "nosuch" not found',),
        new=job(queue="nosuch"),
        not_by_policies=MISSING,
    ),
    "can only submit job to queue with state `Open`, queue `%s` status is `%s`": DenialCase(
        values=("shut", "Closed"),
        new=job(queue="shut"),
        existing_queues=(queue("shut", state="Closed", parent="root"),),
    ),
    "can only submit job to leaf queue, queue `%s` has %d child queues": DenialCase(
        values=("trunk", 2),
        new=job(queue="trunk"),
        existing_queues=(
            queue("trunk"),
            queue("one", parent="trunk"),
            queue("two", parent="trunk"),
        ),
        not_by_policies=COUNTS,
    ),
    "spec.task[%d].": DenialCase(
        values=(1,), new=job(task("a"), task("b", pod={"restartPolicy": "Sometimes"}))
    ),
    "job updates may not add or remove tasks": DenialCase(
        old=job(task("a"), task("b"), minAvailable=1), new=job(task("a"), minAvailable=1)
    ),
    "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec`"
    " and `PriorityClassName`": DenialCase(old=job(), new=job(maxRetry=7)),
}
QUEUES: dict[str, DenialCase] = {
    "%s must have the same length with %s": DenialCase(
        values=_HIERARCHY, new=queue("q", annotations=_path("root/a", "1"))
    ),
    "%s in the %s is invalid number: %v": DenialCase(
        values=("x", "1/x", '"x"'), new=queue("q", annotations=_path("root/a", "1/x"))
    ),
    "%s in the %s must be larger than 0": DenialCase(
        values=("0", "1/0"), new=queue("q", annotations=_path("root/a", "1/0"))
    ),
    "%s is not allowed to be in the sub path of %s of queue %s": DenialCase(
        values=("root/sci", "root/sci/dev", "dev"),
        new=queue("q", annotations=_path("root/sci", "1/1")),
        existing_queues=(queue("dev", annotations=_path("root/sci/dev", "1/1/1")),),
    ),
    "queue state must be in %v": DenialCase(
        values=("[Open Closed]",), new=queue("q", state="Ajar"), not_by_servers=STATUS
    ),
    "queue %s cannot use itself as parent": DenialCase(values=("q",), new=queue("q", parent="q")),
    "parent queue %s not found": DenialCase(
        values=("nosuch",), new=queue("q", parent="nosuch"), not_by_policies=MISSING
    ),
    "queue %s exceeds the maximum allowed depth of %d": DenialCase(
        values=("q", 5),
        new=queue("q", parent="d5"),
        existing_queues=(queue("d1"), *(queue(f"d{n}", parent=f"d{n - 1}") for n in range(2, 6))),
        not_by_policies=COUNTS,
    ),
    "queue %s cannot be the parent queue of queue %s because it has allocated Pods: %d": DenialCase(
        values=("busy", "q", 2),
        new=queue("q", parent="busy"),
        existing_queues=(_busy_queue("busy"),),
        not_by_policies=COUNTS,
    ),
    "deserved[%s] must be >= guarantee[%s]=%s": DenialCase(
        values=("cpu", "cpu", "2"), new=queue("q", guarantee={"resource": {"cpu": "2"}})
    ),
    "deserved[%s]=%s must be >= guarantee[%s]=%s": DenialCase(
        values=("cpu", "1", "cpu", "2"),
        new=queue("q", deserved={"cpu": "1"}, guarantee={"resource": {"cpu": "2"}}),
    ),
    "queue %s capability[%s]=%v exceeds its ancestor's capability=%v": DenialCase(
        values=("q", "cpu", "8", "4"),
        new=queue("q", parent="small", capability={"cpu": "8"}),
        existing_queues=(queue("small", capability={"cpu": "4"}),),
    ),
    "queue %s capability[%s]=%v is smaller than its descendants' max capability=%v": DenialCase(
        values=("wide", "cpu", "2", "3"),
        old=queue("wide", capability={"cpu": "4"}),
        new=queue("wide", capability={"cpu": "2"}),
        existing_queues=(
            queue("wide", capability={"cpu": "4"}),
            queue("inner", parent="wide", capability={"cpu": "3"}),
        ),
    ),
    "sum of children's deserved (%s) exceeds parent's deserved limit (%s)": DenialCase(
        values=("cpu 5", "cpu 4"),
        new=queue("q", parent="rich", deserved={"cpu": "2"}),
        existing_queues=(
            queue("rich", deserved={"cpu": "4"}),
            queue("heir", parent="rich", deserved={"cpu": "3"}),
        ),
        not_by_policies=COUNTS,
    ),
    "sum of children's guarantee (%s) exceeds parent's guarantee limit (%s)": DenialCase(
        values=("cpu 5", "cpu 4"),
        new=queue("q", parent="sure", deserved={"cpu": "2"}, guarantee={"resource": {"cpu": "2"}}),
        existing_queues=(
            queue("sure", deserved={"cpu": "9"}, guarantee={"resource": {"cpu": "4"}}),
            queue(
                "kin", parent="sure", deserved={"cpu": "3"}, guarantee={"resource": {"cpu": "3"}}
            ),
        ),
        not_by_policies=COUNTS,
    ),
    "root queue's resource attributes (capability, deserved, guarantee) "
    "cannot be modified": DenialCase(
        old=queue("root"),
        new=queue("root", capability={"cpu": "1"}),
        existing_queues=(queue("root"),),
    ),
    "`%s` queue can not be deleted": DenialCase(
        values=("default",),
        old=queue("default"),
        existing_queues=(queue("default", parent="root"),),
    ),
    "queue %s can not be deleted because it has %d child queues: %s": DenialCase(
        values=("family", 2, "son, tot"),
        old=queue("family"),
        existing_queues=(
            queue("family"),
            queue("son", parent="family"),
            queue("tot", parent="family"),
        ),
        not_by_policies=COUNTS,
    ),
    "queue %s cannot be deleted because it has allocated Pods: %d": DenialCase(
        values=("full", 2),
        old=_busy_queue("full"),
        existing_queues=(_busy_queue("full"),),
        not_by_policies=OPTIONAL,
    ),
}
OTHERS: dict[str, DenialCase] = {
    "jobflow Flow is not DAG": DenialCase(new=_flow(a=["b"], b=["a"])),
    "vertex is not defined": DenialCase(new=_flow(a=["z"])),
    "unable to find queue: %s": DenialCase(
        values=('queue.scheduling.volcano.sh "nosuch" not found',),
        new=_group(queue="nosuch"),
        not_by_policies=MISSING,
    ),
    "can only submit PodGroup to queue with state `Open`, queue `%s` status is `%s`": DenialCase(
        values=("shut", "Closed"),
        new=_group(queue="shut"),
        existing_queues=(queue("shut", state="Closed", parent="root"),),
    ),
    "in subGroupPolicy '%s': must not specify 'highestTierAllowed' and 'highestTierName' in"
    " networkTopology simultaneously.": DenialCase(
        values=("s",), new=_group(queue="default", subGroupPolicy=[_SUBGROUP])
    ),
    "invalid value <%q> for %v, it must be a positive integer": DenialCase(
        values=("0", "volcano.sh/jdb-min-available"), new=_pod(min_available="0")
    ),
    "it must be a valid percentage which between 1% ~ 99%": DenialCase(
        new=_pod(min_available="100%")
    ),
    "invalid type: neither int nor percentage for %v": DenialCase(
        values=("volcano.sh/jdb-max-unavailable",), new=_pod(max_unavailable="few")
    ),
    "not allow configure multiple annotations <%v> at same time": DenialCase(
        values=("[volcano.sh/jdb-min-available volcano.sh/jdb-max-unavailable]",),
        new=_pod(min_available="1", max_unavailable="1"),
    ),
}
CRONJOBS: dict[str, DenialCase] = {
    "schedule is not a valid cron expression": DenialCase(new=cronjob("nonsense")),
    " schedule is required, but got empty": DenialCase(new=cronjob("")),
    " schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone"
    " field": DenialCase(new=cronjob("TZ=UTC * * * * *")),
    " timeZone must be nil or non-empty string, got empty string": DenialCase(
        new=cronjob(timeZone="")
    ),
    " timeZone can't be Local, and must be defined in https://www.iana.org/time-zones": DenialCase(
        new=cronjob(timeZone="local")
    ),
    " unknown timeZone": DenialCase(new=cronjob(timeZone="Nowhere/City"), not_by_policies=DATABASE),
    " invalid timeZone": DenialCase(new=cronjob(timeZone="../etc/passwd")),
    "cronJob name must be no more than %d characters to accommodate job name suffix"
    " (max %d total)": DenialCase(values=(52, 63), new=cronjob(name="c" * 53)),
    "invalid cronJob name %q: %v": DenialCase(
        values=("c_", "name"), new=cronjob(name="c_"), not_by_servers=NAMES
    ),
}
HYPERNODES: dict[str, DenialCase] = {
    "member regexMatch pattern is invalid: %v": DenialCase(
        values=("missing",),
        new=hypernode("h", member(regexMatch={"pattern": "a("})),
        not_by_policies=PATTERNS,
    ),
    "member must have at least one member": DenialCase(new=hypernode("h")),
}
CASES = JOBS | QUEUES | OTHERS | CRONJOBS | HYPERNODES
"""By phrase, as the table has it."""
