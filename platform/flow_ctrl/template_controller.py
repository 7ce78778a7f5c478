"""JobTemplate controller: lists in the status of a template the Jobs created from it."""

import asyncio
from collections.abc import Iterator

import msgspec

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..kube.informer.informer import Informer, KindSource
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import ShardedQueue, WorkerSettings, requeue_on_conflict, run_workers
from ..machinery.lifecycle import Source, run_controller
from ..machinery.status_writer import ApiStatusWriter
from ..model.base import ApiStruct
from ..model.flow import JobTemplate, JobTemplateStatus
from ..model.meta import ObjectMeta
from ..model.names import CREATED_BY_JOB_TEMPLATE, JOBS, JOBTEMPLATES
from .settings import FlowSettings

_TEMPLATE = "template"
"""Index of Jobs by the key of their template."""


class TemplateJob(ApiStruct, frozen=True):
    """The metadata of a Job."""

    metadata: ObjectMeta = ObjectMeta()


class JobTemplateController:
    """Controller of JobTemplates; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: FlowSettings | None = None,
        clock: Clock | None = None,
        templates: Informer[JobTemplate] | None = None,
    ) -> None:
        """*templates*: informer of all JobTemplates; may be used and run by several controllers."""
        self._settings = settings or FlowSettings()
        self._workqueue = ShardedQueue(
            name="jobtemplate",
            shards=self._settings.workers,
            clock=clock if clock is not None else SystemClock(),
            metrics=self._settings.work_metrics,
        )
        self._templates = (
            Informer(client, JOBTEMPLATES, JobTemplate) if templates is None else templates
        )
        self._jobs = Informer(
            client,
            JOBS,
            TemplateJob,
            label_selector=CREATED_BY_JOB_TEMPLATE,
            indexes={_TEMPLATE: _template_keys},
        )
        self._status = ApiStatusWriter(client, JOBTEMPLATES, JobTemplate)

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers and run the workers until cancelled, as `run_controller` does.

        When cancelled, it finishes keys in processing and queued, and writes nothing after that.
        """
        sources: list[Source] = [
            KindSource(self._templates, self._on_template),
            KindSource(self._jobs, self._on_job),
        ]
        await run_controller(sources, self._run_workers, ready=ready, elected=elected)

    async def _run_workers(self) -> None:
        settings = WorkerSettings(timeout=self._settings.reconcile_timeout)
        await run_workers(self._workqueue, self._reconcile, settings=settings)

    def _on_template(self, old: JobTemplate | None, new: JobTemplate | None) -> None:
        if new is not None:
            self._workqueue.add(new.metadata.key)

    def _on_job(self, old: TemplateJob | None, new: TemplateJob | None) -> None:
        before, after = (set(_template_keys(job)) if job else set() for job in (old, new))
        for key in before ^ after:
            self._workqueue.add(key)

    async def _reconcile(self, key: str) -> None:
        template = self._templates.get(key)
        if template is None or template.metadata.deletion_timestamp is not None:
            return
        names = sorted(job.metadata.name for job in self._jobs.by_index(_TEMPLATE, key))
        status = JobTemplateStatus(job_depends_on_list=tuple(names))
        if status == template.status:
            return
        patch = msgspec.to_builtins(status) or {"jobDependsOnList": None}
        try:
            with requeue_on_conflict("JobTemplate"):
                await self._status.write(template.metadata, patch)
        except NotFoundError:
            return


def _template_keys(job: TemplateJob) -> Iterator[str]:
    """Yield the key of the Job's template: the annotation has names too long for the label."""
    meta = job.metadata
    created_by = meta.annotations.get(CREATED_BY_JOB_TEMPLATE) or meta.labels.get(
        CREATED_BY_JOB_TEMPLATE, ""
    )
    namespace, _, name = created_by.partition(".")
    if name and namespace == meta.namespace:
        yield f"{namespace}/{name}"
