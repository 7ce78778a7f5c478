"""Where we differ from the recordings on purpose, and why; told to users in docs/differences.md."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

LEFT_OUT = {
    **dict.fromkeys(("cronjob", "cronjob-refused"), "CronJobs are not there yet"),
    **dict.fromkeys(
        ("jobflow", "jobflow-delete", "jobflow-fails", "jobflow-refused"),
        "JobFlows are not there yet",
    ),
    **dict.fromkeys(("preempt", "reclaim"), "the scheduler takes nothing from others yet"),
}  # fmt: skip
"""Recorded scenarios that are not replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """One difference that stays."""

    what: str
    """What we do; a line of the table in docs/differences.md."""

    scenarios: tuple[str, ...]
    """Names, or patterns of names, of recordings."""

    places: tuple[str, ...]
    """Patterns of places in a life."""

    def covers(self, scenario: str, place: str) -> bool:
        """Whether a difference at *place* is this one."""
        return _matches(scenario, self.scenarios) and _matches(place, self.places)


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


ALLOWED = (
    Allowed(
        what="Which pods run of those that do not all fit is chance.",
        scenarios=("gang-elastic-partly",),
        places=("/final/pods/j-t-*", "/pods/j-t-*"),
    ),
    Allowed(
        what="Resuming a job uses up none of its retries.",
        scenarios=("command-abort-resume",),
        places=("/final/jobs/j/retryCount", "/made/Pod/?/*/volcano.sh/job-retry-count"),
    ),
    Allowed(
        what="A PodGroup that somebody deletes is made again.",
        scenarios=("podgroup-deleted",),
        places=("/groups/*", "/final/groups/*"),
    ),
    Allowed(
        what=(
            "A PodGroup short of a member is Unknown at once"
            " and Running once the missing pods are placed."
        ),
        scenarios=(
            "pod-deleted-no-policy",
            "policy-podevicted-restartpod",
            "policy-podevicted-restarttask",
            "policy-podfailed-restart*",
            "policy-unknown",
            "scale-up-min",
            "unknown-no-policy",
        ),
        places=("/groups/*",),
    ),
    Allowed(
        what="A policy for JobUnknown acts when the PodGroup has been Unknown for a second.",
        scenarios=("policy-unknown",),
        places=("/events/Job/+PodGroupPending",),
    ),
    Allowed(
        what="The PodGroup of a restarted job waits for admission like any other.",
        scenarios=("command-restartjob",),
        places=("/groups/*",),
    ),
    Allowed(
        what="A PodGroup whose pods are only on their way is not called unschedulable.",
        scenarios=("policy-podevicted-restart*", "policy-podfailed-restart*"),
        places=(
            "/events/Job/-PodGroupPending",
            "/events/Pod/-FailedScheduling",
            "/events/PodGroup/-Unschedulable",
            "/final/groups/*/conditions*",
        ),
    ),
    Allowed(
        what="A job whose retries are used up fails at once and keeps its last pods.",
        scenarios=("policy-podfailed-restartpod", "policy-podfailed-restarttask"),
        places=(
            "/final/jobs/j/counts",
            "/final/jobs/j/tasks",
            "/final/pods/j-bad-0",
            "/made/Pod",
            "/pods/j-bad-0",
        ),
    ),
    Allowed(
        what="A gang that its queue does not admit is told why.",
        scenarios=("command-abort-pending", "gang-too-big", "queue-capability"),
        places=("/events/Job/+PodGroupPending", "/final/groups/*/conditions"),
    ),
    Allowed(
        what="A plugin's argument that is not known is complained about.",
        scenarios=("plugin-ssh-no-root",),
        places=("/events/Job/+PluginError",),
    ),
    Allowed(
        what="The script by which PyTorch's workers wait is another one, and is always served.",
        scenarios=("plugin-pytorch-wait", "*pytorch*"),
        places=("/made/Pod/?/spec/initContainers/0/*",),
    ),
    Allowed(
        what="A task keeps the `replicas: 0` that was written.",
        scenarios=("zero-replicas",),
        places=("*/spec/tasks/0/replicas",),
    ),
    Allowed(
        what="Pods that are waited for are not made again and again.",
        scenarios=("policy-pending-timeout",),
        places=("/made/Pod", "/pods/*"),
    ),
    Allowed(
        what="Claims are bound to folders that the agent keeps.",
        scenarios=("volumes-claim", "volumes-name"),
        places=("/events/*", "/final/*", "/groups/*", "/jobs/*", "/pods/*", "*/finalizers"),
    ),
    Allowed(
        what="The scheduler sees a gang start at once, not a second later.",
        scenarios=("*",),
        places=("/events/PodGroup/+Scheduled",),
    ),
    Allowed(
        what="A pod that ended by itself is kept, even if the job ended in the same moment.",
        scenarios=("*-job-tensorflow-dist-mnist", "*mpi-example", "*tf-*", "kubecon2019-horovod*"),
        places=("/pods/*",),
    ),
    Allowed(
        what="A policy is carried out even if all other pods have ended in the same moment.",
        scenarios=("paddlepaddle*",),
        places=("/jobs/*",),
    ),
    Allowed(
        what="The scheduler sees a gang end at once, not a second later.",
        scenarios=("task-min-available",),
        places=("/events/PodGroup/+Unschedulable",),
    ),
    Allowed(
        what="An annotation in a pod template that has no effect is complained about.",
        scenarios=("batch-job", "deployment-template"),
        places=("/events/Pod/+GroupMinMemberIgnored",),
    ),
    Allowed(
        what="A gang whose pods are not all there is said to lack pods, not resources.",
        scenarios=("statefulset",),
        places=("/final/groups/*/conditions/0/2",),
    ),
    Allowed(
        what="What plugins make beside the pods has the label `volcano.sh/job-name`.",
        scenarios=("*",),
        places=tuple(
            f"/made/{kind}/?/metadata/labels"
            for kind in ("ConfigMap", "NetworkPolicy", "Secret", "Service")
        ),
    ),
    Allowed(
        what="Host names that will not resolve are complained about.",
        scenarios=("task-fields",),
        places=("/events/Job/+PluginError",),
    ),
)
