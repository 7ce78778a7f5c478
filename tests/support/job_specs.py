"""Random specs of jobs, as admission would let them pass."""

from typing import Any

from hypothesis import strategies as st
from support.jobs import TEMPLATE

Object = dict[str, Any]

ACTIONS = st.sampled_from(
    [
        "AbortJob",
        "CompleteJob",
        "RestartJob",
        "RestartPartition",
        "RestartPod",
        "RestartPod",
        "RestartTask",
        "TerminateJob",
    ]
)
EVENTS = [
    "*",
    "PodEvicted",
    "PodEvicted",
    "PodFailed",
    "PodFailed",
    "PodPending",
    "TaskCompleted",
    "TaskFailed",
    "Unknown",
]
CAUSES: st.SearchStrategy[Object] = st.one_of(
    st.sampled_from(EVENTS).map(lambda event: {"event": event}),
    st.lists(st.sampled_from(EVENTS[1:]), min_size=2, max_size=3, unique=True).map(
        lambda events: {"events": events}
    ),
    st.just({"exitCode": 3}),
)
TIMEOUTS = st.sampled_from([{}, {}, {"timeout": "10s"}, {"timeout": "40s"}])
POLICIES = st.lists(
    st.builds(lambda action, cause, timeout: {"action": action, **cause, **timeout},
              ACTIONS, CAUSES, TIMEOUTS),
    max_size=2,
)  # fmt: skip
TASKS = st.sampled_from([("a",), ("a", "b"), ("a", "b"), ("a", "a-b"), ("a", "a-b", "b")])
"""Names that may be taken for each other: task ``a-b`` of ``j``, and ``b`` of ``j-a``."""

_KEYS = ["--ssh-private-key=private", "--ssh-public-key=public"]
_TRAINING = {"svc": [], "ssh": _KEYS, "env": []}
PLUGINS: st.SearchStrategy[dict[str, list[str]]] = st.sampled_from(
    [
        {},
        {},
        {"svc": []},
        {"svc": ["--disable-network-policy=true"], "env": []},
        {"ssh": _KEYS, "env": []},
        {**_TRAINING, "pytorch": ["--master=a", "--worker=b"]},
        {**_TRAINING, "tensorflow": ["--ps=a", "--worker=b"]},
        {**_TRAINING, "mpi": ["--master=a", "--worker=b"]},
    ]
)
_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
VOLUMES: st.SearchStrategy[list[Object]] = st.sampled_from(
    [
        [],
        [],
        [],
        [{"mountPath": "/a", "volumeClaimName": "data"}],
        [{"mountPath": "/b", "volumeClaim": _CLAIM}],
        [
            {"mountPath": "/a", "volumeClaimName": "data"},
            {"mountPath": "/b", "volumeClaim": _CLAIM},
        ],
    ]
)


@st.composite
def _tasks(draw: st.DrawFn) -> list[Object]:
    tasks: list[Object] = []
    for name in draw(TASKS):
        replicas = draw(st.integers(1, 3))
        task: Object = {
            "name": name,
            "replicas": replicas,
            "minAvailable": draw(st.sampled_from([replicas, replicas, 1])),
            "template": TEMPLATE,
            "policies": draw(POLICIES),
            "maxRetry": draw(st.sampled_from([3, 3, 1])),
        }
        if draw(st.booleans()) and tasks:
            before: list[str] = [one["name"] for one in tasks]
            task["dependsOn"] = {"name": before, "iteration": draw(st.sampled_from(["any", "all"]))}
        if draw(st.integers(0, 3)) == 0:
            task["partitionPolicy"] = {"totalPartitions": replicas, "partitionSize": 1}
        tasks.append(task)
    return tasks


@st.composite
def mostly_single(draw: st.DrawFn) -> Object:
    """The spec of a job; three of four have a single pod."""
    spec: Object = draw(specs())
    if draw(st.integers(0, 3)):
        task = spec["tasks"][0]
        kept = {key: task[key] for key in task if key not in ("dependsOn", "partitionPolicy")}
        tasks = [{**kept, "replicas": 1, "minAvailable": 1}]
        spec |= {"tasks": tasks, "minAvailable": 1, "plugins": {}, "volumes": []}
    return spec


@st.composite
def specs(draw: st.DrawFn) -> Object:
    """The spec of a job."""
    tasks = draw(_tasks())
    spec: Object = {
        "minAvailable": sum(task["minAvailable"] for task in tasks),
        "maxRetry": draw(st.sampled_from([3, 3, 2, 1])),
        "queue": "default",
        "schedulerName": "volcano",
        "tasks": tasks,
        "policies": draw(POLICIES) + draw(POLICIES),
        "suspend": draw(st.sampled_from([False, False, False, False, True])),
        "plugins": draw(PLUGINS),
        "volumes": draw(VOLUMES),
    }
    if any("dependsOn" in task for task in tasks):
        spec["minAvailable"] = 1
    if draw(st.integers(0, 3)) == 0:
        spec["minSuccess"] = 1
    if draw(st.integers(0, 3)) == 0:
        spec["ttlSecondsAfterFinished"] = draw(st.sampled_from([0, 30]))
    if draw(st.integers(0, 3)) == 0:
        spec["priorityClassName"] = "high"
    return spec
