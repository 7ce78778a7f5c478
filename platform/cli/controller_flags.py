"""Flags of ``batholith controllers``, and their validation."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..model.job_size import MAX_PODS
from . import controller_selection, featuregate
from .flag_groups import FlagError, MaxPodsPerJob

if TYPE_CHECKING:
    from ..training_ctrl.settings import TrainingSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFlags:
    """Enabled controllers and their settings."""

    controllers: Annotated[
        list[str],
        typer.Option(
            help="Comma-separated: * for all that are on by default, NAME or +NAME on, -NAME off; "
            "may be repeated. Names: "
            f"{', '.join(controller_selection.CONTROLLERS)}; off by default: "
            f"{', '.join(controller_selection.OFF_BY_DEFAULT)}. "
            "Volcano's other controllers are accepted and ignored."
        ),
    ] = (controller_selection.DEFAULT,)  # type: ignore[assignment]  # typer converts it to a list
    shards: Annotated[
        int,
        typer.Option(
            help="Shards of jobs, queues and PodGroups that the replicas divide among themselves; "
            "1: a single leader. The same for all replicas.",
        ),
    ] = 1
    worker_threads: Annotated[int, typer.Option(min=1, help="Workers of the job controller.")] = 64
    worker_threads_for_cronjob: Annotated[
        int, typer.Option(min=1, help="Workers of the controller of Volcano's CronJobs.")
    ] = 64
    worker_threads_for_jobflow: Annotated[
        int, typer.Option(min=1, help="Workers each of the JobFlow and JobTemplate controllers.")
    ] = 5
    worker_threads_for_podgroup: Annotated[
        int, typer.Option(min=1, help="Workers of the PodGroup controller.")
    ] = 5
    worker_threads_for_queue: Annotated[
        int, typer.Option(min=1, help="Workers of the queue controller.")
    ] = 5
    max_requeue_num: Annotated[
        int,
        typer.Option(
            help="Retries after which a queue is dropped for a minute, and a rejected Command for "
            "good; negative means no limit. Jobs have no limit."
        ),
    ] = 15
    reconcile_timeout: Annotated[
        str,
        typer.Option(
            help="Timeout of one reconcile of a job, queue or PodGroup, after which it is retried."
        ),
    ] = "5m"
    default_queue: Annotated[
        str, typer.Option(help="Created if missing, like root; must match the scheduler's.")
    ] = "default"
    scheduler_name: Annotated[
        list[str],
        typer.Option(help="Create PodGroups for pods of this scheduler; may be repeated."),
    ] = ("volcano",)  # type: ignore[assignment]  # typer converts it to a list
    inherit_owner_annotations: Annotated[
        bool,
        typer.Option(help="Inherit minMember and annotations of PodGroups from the pods' owners."),
    ] = True
    groupers: Annotated[
        str,
        typer.Option(
            help="Comma-separated kinds whose pods are gangs as their owner has it: annotation, "
            "jobset, leaderworkerset, ray, spark, mpijob, argo, or * for all. Each needs the right "
            "to read its kind."
        ),
    ] = "annotation"
    ttl_waits_for_history: Annotated[
        bool,
        typer.Option(
            "--ttl-waits-for-history",
            help="Delete jobs whose TTL has expired only after the recorder of the history has "
            "annotated them, or ten minutes later. Only where it runs: batholith api "
            "--record-history.",
        ),
    ] = False
    podgroups: Annotated[
        Literal["all", "gangs"],
        typer.Option(
            help="Which Volcano jobs get PodGroups: all, or only those of more than one pod. The "
            "pod of any other job describes its PodGroup to Batholith's scheduler."
        ),
    ] = "all"
    gang_provider: Annotated[
        Literal["volcano", "native"],
        typer.Option(
            help="PodGroups of Volcano's jobs: volcano, or native for those of Kubernetes itself "
            "(scheduling.k8s.io), by which kube-scheduler starts the pods of a job together."
        ),
    ] = "volcano"
    place_at_creation: Annotated[
        bool,
        typer.Option(
            help="Create pods of gangs that fit with their node, if the scheduler plans them; it "
            "needs the flag, too."
        ),
    ] = True
    max_pods_per_job: MaxPodsPerJob = MAX_PODS
    feature_gates: Annotated[
        str, typer.Option(help="Name=true,…; validated, but without effect.")
    ] = ""

    @property
    def selection(self) -> str:
        """The list of controllers, without repetitions of the flag."""
        return ",".join(self.controllers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """Controllers of batch/v1: Jobs and CronJobs."""

    manage_all_jobs: Annotated[
        bool,
        typer.Option(
            "--manage-all-jobs",
            help="Reconcile all Jobs of batch/v1, not only those whose spec.managedBy is "
            "batholith.io/job-controller, and delete those whose TTL has expired. Only where "
            "kube-controller-manager does not run.",
        ),
    ] = False
    concurrent_job_syncs: Annotated[
        int, typer.Option(min=1, help="Workers of the controller of batch/v1 Jobs.")
    ] = 5
    concurrent_cron_job_syncs: Annotated[
        int, typer.Option(min=1, help="Workers of the controller of batch/v1 CronJobs.")
    ] = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags:
    """Controller of Kubeflow's training jobs; the flags are those of its training operator."""

    enable_scheme: Annotated[
        list[str],
        typer.Option(help="Kind of training jobs to reconcile, all without; may be repeated."),
    ] = ()  # type: ignore[assignment]  # typer converts it to a list
    controller_threads: Annotated[
        int, typer.Option(min=1, help="Workers for each kind of training jobs.")
    ] = 1
    gang_scheduler_name: Annotated[
        str,
        typer.Option(
            help="Scheduler of the gangs of training jobs, each with a PodGroup: volcano, or one "
            "with the coscheduling plugin of Kubernetes; empty for no gangs."
        ),
    ] = ""
    pytorch_init_container_image: Annotated[
        str,
        typer.Option(help="Image of the init container that waits for the master; empty for none."),
    ] = "alpine:3.10"
    pytorch_init_container_max_tries: Annotated[
        int, typer.Option(min=1, help="Attempts of that init container.")
    ] = 100
    pytorch_init_container_template_file: Annotated[
        Path | None, typer.Option(help="YAML list of init containers to use instead.")
    ] = None
    mpi_kubectl_delivery_image: Annotated[
        str, typer.Option(help="Image of the init container with the launcher's kubectl.")
    ] = "kubeflow/kubectl-delivery:latest"
    force_beside_training_operator: Annotated[
        bool,
        typer.Option(
            "--force-beside-training-operator",
            help="Start the controller of training jobs even if a Deployment of Kubeflow's "
            "training operator exists.",
        ),
    ] = False


_JOBSET = "jobset"
"""The grouper of the pods of JobSets, which TrainJobs have, too."""


def reconcile_timeout(flags: ControllerFlags) -> float:
    """Seconds of ``--reconcile-timeout``.

    Raises:
        DurationError: it is not a positive duration.
    """
    from ..model.durations import DurationError, parse

    try:
        seconds = parse(flags.reconcile_timeout).total_seconds()
    except DurationError as error:
        raise DurationError(f"--reconcile-timeout: {error}") from None
    if seconds <= 0:
        raise DurationError(f"--reconcile-timeout={flags.reconcile_timeout}: must be more than 0")
    return seconds


def validate(flags: ControllerFlags, batch: BatchFlags, training: TrainingFlags) -> Collection[str]:
    """Check the flags; return the enabled controllers.

    Raises:
        OSError, ValueError: a flag is invalid; the text names it.
    """
    enabled = controller_selection.select(flags.selection)
    reconcile_timeout(flags)
    groupers = parse_groupers(flags.groupers)
    _reject_flags_of_disabled_controllers(enabled, batch, training)
    if controller_selection.TRAINING in enabled:
        training_settings(training)
    for gate in featuregate.ineffective_gates(flags.feature_gates):
        log.warning("feature gate without effect", extra={"gate": gate})
    for name in controller_selection.unsupported(flags.selection):
        log.warning("unsupported controller ignored", extra={"controller": name})
    for name in (controller_selection.JOBSET_SUSPENSION, controller_selection.TRAINJOB_SUSPENSION):
        if name in enabled and _JOBSET not in groupers:
            text = "pods of resumed jobs do not start together: their grouper is not enabled"
            log.warning(text, extra={"controller": name, "missing": f"--groupers={_JOBSET}"})
    return enabled


def _reject_flags_of_disabled_controllers(
    enabled: Collection[str], batch: BatchFlags, training: TrainingFlags
) -> None:
    """Check that each flag with another value than its default belongs to an enabled controller.

    Raises:
        FlagError: one would have no effect.
    """
    owners = {
        "manage_all_jobs": (batch, controller_selection.BATCH_JOB),
        "concurrent_job_syncs": (batch, controller_selection.BATCH_JOB),
        "concurrent_cron_job_syncs": (batch, controller_selection.BATCH_CRON_JOB),
        **{each.name: (training, controller_selection.TRAINING) for each in fields(training)},
    }
    defaults = {each.name: each.default for each in (*fields(batch), *fields(training))}
    for name, (group, owner) in owners.items():
        value = getattr(group, name)
        given = tuple(value) if isinstance(value, list) else value
        if given != defaults[name] and owner not in enabled:
            flag = f"--{name.replace('_', '-')}"
            raise FlagError(f"{flag} has no effect without --controllers=*,{owner}")


def parse_groupers(text: str) -> Sequence[str]:
    """Return the groupers that ``--groupers`` names.

    Raises:
        FlagError: one is unknown.
    """
    from ..podgroup_ctrl.groupers.registry import GROUPERS

    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*GROUPERS, "*")]
    if unknown:
        raise FlagError(f"--groupers: {unknown[0]!r} is none of {', '.join(GROUPERS)}, *")
    return [*GROUPERS] if "*" in names else names


def training_settings(flags: TrainingFlags) -> "TrainingSettings":
    """Return the settings of the controller of training jobs that *flags* give.

    Raises:
        OSError: the template file cannot be read.
        ValueError: a kind is unknown, or the template malformed.
    """
    import yaml

    from ..training_ctrl.controller import select_frameworks
    from ..training_ctrl.frameworks import FRAMEWORKS
    from ..training_ctrl.frameworks._pytorch_init import init_containers
    from ..training_ctrl.frameworks.base import PodSettings
    from ..training_ctrl.settings import TrainingSettings

    file = flags.pytorch_init_container_template_file
    pods = PodSettings(
        pytorch_init_image=flags.pytorch_init_container_image,
        pytorch_init_tries=flags.pytorch_init_container_max_tries,
        pytorch_init_template=file.read_text() if file is not None else "",
        mpi_kubectl_delivery_image=flags.mpi_kubectl_delivery_image,
    )
    try:
        containers = init_containers("address", pods)
    except yaml.YAMLError as error:
        raise FlagError(f"--pytorch-init-container-template-file={file}: {error}") from None
    if not isinstance(containers, list):
        raise FlagError(f"--pytorch-init-container-template-file={file}: not a list of containers")
    select_frameworks(FRAMEWORKS, flags.enable_scheme)
    return TrainingSettings(
        kinds=tuple(flags.enable_scheme),
        workers=flags.controller_threads,
        gang_scheduler_name=flags.gang_scheduler_name,
        pods=pods,
    )
