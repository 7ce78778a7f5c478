"""Intended differences from the recordings, with reasons; documented in docs/differences.md."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

LEFT_OUT: dict[str, str] = {}
"""Recorded scenarios that are not replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedDifference:
    """One difference that stays."""

    reason: str
    """What we do; a line of the table in docs/differences.md."""

    scenarios: tuple[str, ...]
    """Names, or patterns of names, of recordings."""

    paths: tuple[str, ...]
    """Patterns of paths in a scenario result."""

    embedded_only: bool = False
    """Whether there is none on a real API server."""

    def covers(self, scenario: str, path: str, *, embedded: bool) -> bool:
        """Whether a difference at *path* is this one."""
        return (
            (embedded or not self.embedded_only)
            and _matches(scenario, self.scenarios)
            and _matches(path, self.paths)
        )


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


ALLOWED = (
    AllowedDifference(
        reason="Which pods run, if not all fit, is not deterministic.",
        scenarios=("gang-elastic-partly", "preempt", "reclaim"),
        paths=(
            *(f"/final/pods/{job}-t-*" for job in ("j", "low", "one")),
            *(f"/pods/{job}-t-*" for job in ("j", "low", "one")),
        ),
    ),
    AllowedDifference(
        reason="Resuming a job uses up none of its retries.",
        scenarios=("command-abort-resume",),
        paths=("/final/jobs/j/retryCount", "/made/Pod/?/*/volcano.sh/job-retry-count"),
    ),
    AllowedDifference(
        reason="`status.controlledResources` names the last Command that changed the job's phase.",
        scenarios=("command-*",),
        paths=("/final/jobs/*/marks",),
    ),
    AllowedDifference(
        reason="The annotation `batholith.io/why` of a PodGroup explains why it waits.",
        scenarios=("*",),
        paths=("/final/groups/*/annotations/batholith.io/why",),
    ),
    AllowedDifference(
        reason="The annotation `batholith.io/running-estimate` of a PodGroup is `runningEstimate`"
        " of its job, which Volcano ignores.",
        scenarios=("labels-annotations",),
        paths=(
            "/final/groups/*/annotations/batholith.io/running-estimate",
            "/made/PodGroup/*/batholith.io/running-estimate",
        ),
    ),
    AllowedDifference(
        reason="A deleted PodGroup is re-created.",
        scenarios=("podgroup-deleted",),
        paths=("/groups/*", "/final/groups/*"),
    ),
    AllowedDifference(
        reason=(
            "A PodGroup with a missing member is Unknown at once"
            " and Running once the missing pods are bound."
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
        paths=("/groups/*",),
    ),
    AllowedDifference(
        reason="A policy for JobUnknown fires when the PodGroup has been Unknown for a second.",
        scenarios=("policy-unknown",),
        paths=("/events/Job/+PodGroupPending",),
    ),
    AllowedDifference(
        reason="The PodGroup of a restarted job waits for admission like any other.",
        scenarios=("command-restartjob",),
        paths=("/groups/*",),
    ),
    AllowedDifference(
        reason="A PodGroup whose pods are being created is not reported as unschedulable.",
        scenarios=("policy-podevicted-restart*", "policy-podfailed-restart*"),
        paths=(
            "/events/Job/-PodGroupPending",
            "/events/Pod/-FailedScheduling",
            "/events/PodGroup/-Unschedulable",
            "/final/groups/*/conditions*",
        ),
    ),
    AllowedDifference(
        reason="A job whose retries are used up fails at once and keeps its last pods.",
        scenarios=("policy-podfailed-restartpod", "policy-podfailed-restarttask"),
        paths=(
            "/final/jobs/j/counts",
            "/final/jobs/j/tasks",
            "/final/pods/j-bad-0",
            "/made/Pod",
            "/pods/j-bad-0",
        ),
    ),
    AllowedDifference(
        reason="A gang that its queue does not admit reports the reason.",
        scenarios=("command-abort-pending", "gang-too-big", "queue-capability"),
        paths=("/events/Job/+PodGroupPending", "/final/groups/*/conditions"),
    ),
    AllowedDifference(
        reason="A plugin's unknown argument causes a warning.",
        scenarios=("plugin-ssh-no-root",),
        paths=("/events/Job/+PluginError",),
    ),
    AllowedDifference(
        reason="PyTorch's workers wait with another script, which always has `svc`'s variables.",
        scenarios=("plugin-pytorch-wait", "*pytorch*"),
        paths=("/made/Pod/?/spec/initContainers/0/*",),
    ),
    AllowedDifference(
        reason="A task keeps the `replicas: 0` that was written.",
        scenarios=("zero-replicas",),
        paths=("*/spec/tasks/0/replicas",),
    ),
    AllowedDifference(
        reason="Pods with a PodPending policy are not re-created repeatedly.",
        scenarios=("policy-pending-timeout",),
        paths=("/made/Pod", "/pods/*"),
    ),
    AllowedDifference(
        reason="Claims are bound to directories that the agent manages.",
        scenarios=("volumes-claim", "volumes-name"),
        embedded_only=True,
        paths=("/events/*", "/final/*", "/groups/*", "/jobs/*", "/pods/*", "*/finalizers"),
    ),
    AllowedDifference(
        reason="The scheduler sees a gang start at once, not a second later.",
        scenarios=("*",),
        paths=("/events/PodGroup/+Scheduled",),
    ),
    AllowedDifference(
        reason="A finished pod is kept, even if the job ended in the same moment.",
        scenarios=("*-job-tensorflow-dist-mnist", "*mpi-example", "*tf-*", "kubecon2019-horovod*"),
        paths=("/pods/*",),
    ),
    AllowedDifference(
        reason="A policy is executed even if all other pods have ended in the same moment.",
        scenarios=("paddlepaddle*",),
        paths=("/jobs/*", "/pods/*"),  # it ends pods that would end a moment later
    ),
    AllowedDifference(
        reason="The scheduler sees a gang end at once, not a second later.",
        scenarios=("task-min-available",),
        paths=("/events/PodGroup/+Unschedulable",),
    ),
    AllowedDifference(
        reason="An annotation in a pod template that has no effect causes a warning.",
        scenarios=("batch-job", "deployment-template"),
        paths=("/events/Pod/+GroupMinMemberIgnored",),
    ),
    AllowedDifference(
        reason="A gang whose pods do not all exist reports missing pods, not missing resources.",
        scenarios=("statefulset",),
        paths=("/final/groups/*/conditions/0/2",),
    ),
    AllowedDifference(
        reason="Objects that plugins create have the label `volcano.sh/job-name`.",
        scenarios=("*",),
        paths=tuple(
            f"/made/{kind}/?/metadata/labels"
            for kind in ("ConfigMap", "NetworkPolicy", "Secret", "Service")
        ),
    ),
    AllowedDifference(
        reason="A JobFlow without its templates is Pending, with an event, until they are created.",
        scenarios=("jobflow--JobFlow",),
        paths=("/flows/phases/test",),
    ),
    AllowedDifference(
        reason="The status of a JobTemplate lists no deleted Jobs.",
        scenarios=("jobflow-delete",),
        paths=("/flows/templates/*",),
    ),
    AllowedDifference(
        reason="Host names that will not resolve cause a warning.",
        scenarios=("task-fields",),
        paths=("/events/Job/+PluginError",),
    ),
    AllowedDifference(
        reason="A claim without a class gets the default class.",
        scenarios=("volumes-*",),
        paths=("/made/PersistentVolumeClaim/?/spec/storageClassName",),
        embedded_only=True,
    ),
)
