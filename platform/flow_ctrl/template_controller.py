"""JobTemplate controller: lists in the status of a template the Jobs created from it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource
from ..machinery.clock import Clock
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Controller, Sync
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


class TemplateView(msgspec.Struct, frozen=True):
    """A template and the names of the Jobs created from it."""

    template: JobTemplate
    jobs: tuple[str, ...]


class SetStatus(msgspec.Struct, frozen=True):
    """Write the status of the template by a merge patch."""

    patch: dict[str, Any]


class JobTemplateController(Controller[TemplateView, SetStatus]):
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
        super().__init__("jobtemplate", settings or FlowSettings(), clock=clock)
        templates = templates or Informer(client, JOBTEMPLATES, JobTemplate)
        self._templates = WriteThroughCache(
            client, JOBTEMPLATES, JobTemplate, templates, clock=self.clock
        )
        self._jobs = Informer(
            client,
            JOBS,
            TemplateJob,
            label_selector=CREATED_BY_JOB_TEMPLATE,
            indexes={_TEMPLATE: _template_keys},
        )
        self.sources = [
            KindSource(templates, self._on_template),
            KindSource(self._jobs, self._on_job),
        ]
        self.keep(self._templates)

    def _on_template(self, old: JobTemplate | None, new: JobTemplate | None) -> None:
        if new is not None:
            self.queue.add(new.metadata.key)

    def _on_job(self, old: TemplateJob | None, new: TemplateJob | None) -> None:
        before, after = (set(_template_keys(job)) if job else set() for job in (old, new))
        for key in before ^ after:
            self.queue.add(key)

    async def observe(self, sync: Sync) -> TemplateView | None:
        """Return the template and its Jobs."""
        template = self._templates.get(sync.key)
        if template is None or template.metadata.deletion_timestamp is not None:
            return None
        names = sorted(job.metadata.name for job in self._jobs.by_index(_TEMPLATE, sync.key))
        return TemplateView(template, tuple(names))

    def decide(self, view: TemplateView) -> list[SetStatus]:
        """Write the status if the Jobs in it differ."""
        status = JobTemplateStatus(job_depends_on_list=view.jobs)
        if status == view.template.status:
            return []
        return [SetStatus(msgspec.to_builtins(status) or {"jobDependsOnList": None})]

    async def execute(self, sync: Sync, view: TemplateView, effect: SetStatus) -> None:
        """Write the status."""
        await self._templates.patch_status(view.template.metadata, effect.patch)


def _template_keys(job: TemplateJob) -> Iterator[str]:
    """Yield the key of the Job's template: the annotation has names too long for the label."""
    meta = job.metadata
    created_by = meta.annotations.get(CREATED_BY_JOB_TEMPLATE) or meta.labels.get(
        CREATED_BY_JOB_TEMPLATE, ""
    )
    namespace, _, name = created_by.partition(".")
    if name and namespace == meta.namespace:
        yield f"{namespace}/{name}"
