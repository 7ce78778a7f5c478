"""Fields of Jobs and pods that the controller reads, and the names that it shares with Kubernetes.

A pod of another kind of controller keeps only its identity: on a cluster with many such pods their
labels and status would be most of the controller's memory.
"""

from enum import StrEnum
from typing import Final

import msgspec

from ..model.base import ApiStruct
from ..model.meta import Condition, LabelSelector, ObjectMeta
from ..model.names import BATCH_JOBS

TRACKING_FINALIZER: Final = "batch.kubernetes.io/job-tracking"
"""Keeps a pod until it is counted in the status of its Job."""
INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
INDEX_IGNORED_FAILURES: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
CONTROLLER_UID_LABELS: Final = ("batch.kubernetes.io/controller-uid", "controller-uid")
"""Labels that the API server adds to the template unless the selector is manual."""
INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"

BUILT_IN_CONTROLLER: Final = "kubernetes.io/job-controller"
OUR_CONTROLLER: Final = "batholith.io/job-controller"

UNLIMITED: Final = 2**31 - 1


class CompletionMode(StrEnum):
    """``spec.completionMode``."""

    NON_INDEXED = "NonIndexed"
    INDEXED = "Indexed"


class PolicyAction(StrEnum):
    """Action of a rule of the pod failure policy."""

    FAIL_JOB = "FailJob"
    FAIL_INDEX = "FailIndex"
    IGNORE = "Ignore"
    COUNT = "Count"


class OnExitCodes(ApiStruct, frozen=True):
    """Exit codes that a rule matches."""

    container_name: str | None = None
    operator: str = ""
    values: tuple[int, ...] = ()


class ConditionPattern(ApiStruct, frozen=True):
    """Pod condition that a rule matches."""

    type: str = ""
    status: str = "True"


class FailureRule(ApiStruct, frozen=True):
    """Rule of the pod failure policy."""

    action: str = ""
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: tuple[ConditionPattern, ...] | None = None


class PodFailurePolicy(ApiStruct, frozen=True):
    """``spec.podFailurePolicy``."""

    rules: tuple[FailureRule, ...] = ()


class SuccessRule(ApiStruct, frozen=True):
    """Rule of the success policy."""

    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(ApiStruct, frozen=True):
    """``spec.successPolicy``."""

    rules: tuple[SuccessRule, ...] = ()


class JobSpec(ApiStruct, frozen=True):
    """``spec`` of a Job, with the defaults for a Job that was stored without them."""

    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = CompletionMode.NON_INDEXED
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    selector: LabelSelector | None = None
    manual_selector: bool = False
    template: msgspec.Raw = msgspec.Raw(b"{}")
    ttl_seconds_after_finished: int | None = None
    suspend: bool = False
    pod_replacement_policy: str | None = None
    managed_by: str | None = None

    @property
    def failure_limit(self) -> int:
        """The backoff limit or its default."""
        if self.backoff_limit is not None:
            return self.backoff_limit
        return 6 if self.backoff_limit_per_index is None else UNLIMITED


class UncountedPods(ApiStruct, frozen=True):
    """Uids of terminated pods that are not in the counters yet."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of pods."""
        return len(self.succeeded) + len(self.failed)


class JobStatus(ApiStruct, frozen=True):
    """``status`` of a Job."""

    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    failed_indexes: str | None = None
    uncounted_terminated_pods: UncountedPods | None = None


class Job(ApiStruct, frozen=True):
    """A Job of batch/v1."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def is_indexed(self) -> bool:
        """Whether each pod has a completion index."""
        return self.spec.completion_mode == CompletionMode.INDEXED

    @property
    def completions(self) -> int:
        """Completions of an Indexed Job, which has always set them."""
        return self.spec.completions or 0

    @property
    def replaces_only_failed(self) -> bool:
        """Whether a terminating pod is replaced only once it has failed."""
        spec = self.spec
        return spec.pod_replacement_policy == "Failed" or spec.pod_failure_policy is not None

    @property
    def selects_own_uid(self) -> bool:
        """Whether the selector is a generated one: no pod of another Job can match it."""
        labels = self.spec.selector.match_labels if self.spec.selector is not None else {}
        return any(labels.get(label) == self.metadata.uid for label in CONTROLLER_UID_LABELS)

    @property
    def is_being_deleted(self) -> bool:
        """Whether the Job has a deletion timestamp."""
        return self.metadata.deletion_timestamp is not None


class Terminated(ApiStruct, frozen=True):
    """Terminated state of a container."""

    exit_code: int = 0
    finished_at: str | None = None


class ContainerState(ApiStruct, frozen=True):
    """State of a container, as far as the controller reads it."""

    terminated: Terminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """Status of a container."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()


class InitContainer(ApiStruct, frozen=True):
    """Init container; a sidecar restarts always."""

    name: str = ""
    restart_policy: str = ""


class PodSpec(ApiStruct, frozen=True):
    """``spec`` of a pod."""

    node_name: str = ""
    init_containers: tuple[InitContainer, ...] = ()


class PodStatus(ApiStruct, frozen=True):
    """``status`` of a pod."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiStruct, frozen=True):
    """A pod; one that another kind of controller owns keeps only its identity."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def __post_init__(self) -> None:
        """Drop what is never read."""
        owner = self.metadata.controller
        if owner is None or (owner.api_version, owner.kind) == _JOB_KIND:
            return
        reduced = self.reduced()
        for field in ("metadata", "spec", "status"):
            msgspec.structs.force_setattr(self, field, getattr(reduced, field))

    def reduced(self) -> "Pod":
        """Return the pod with its identity and controller only."""
        meta, owner = self.metadata, self.metadata.controller
        return _ReducedPod(
            metadata=ObjectMeta(
                name=meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
                owner_references=() if owner is None else (owner,),
            )
        )


class _ReducedPod(Pod, frozen=True):
    """A pod that is not reduced again."""

    def __post_init__(self) -> None:
        """Do nothing."""


_JOB_KIND = (BATCH_JOBS.api_version, BATCH_JOBS.kind)


def owning_job(meta: ObjectMeta) -> tuple[str, str] | None:
    """Return the name and uid of the Job that controls an object, if one does."""
    owner = meta.controller
    if owner is None or (owner.api_version, owner.kind) != _JOB_KIND:
        return None
    return owner.name, owner.uid
