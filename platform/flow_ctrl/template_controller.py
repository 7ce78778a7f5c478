"""JobTemplate controller: lists in the status of a template the Jobs created from it."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource
from ..machinery.clock import Clock
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ..model.flow import JobTemplate, JobTemplateStatus
from ..model.meta import MetadataOnly
from ..model.names import CREATED_BY_JOB_TEMPLATE, JOBS, JOBTEMPLATES


@dataclass(frozen=True, slots=True)
class TemplateView:
    """A template and the status that its Jobs require."""

    template: JobTemplate
    desired: JobTemplateStatus


class JobTemplateController(Controller[TemplateView, JobTemplateStatus]):
    """Controller of JobTemplates; its only effect is to write a status."""

    def __init__(
        self,
        client: Client,
        *,
        settings: ControllerSettings | None = None,
        clock: Clock | None = None,
        templates: Informer[JobTemplate] | None = None,
    ) -> None:
        """*templates*: informer of all JobTemplates; may be used and run by several controllers."""
        super().__init__("jobtemplate", settings or ControllerSettings(), clock=clock)
        if templates is None:
            templates = Informer(client, JOBTEMPLATES, JobTemplate)
        indexes = {"template": _template_keys}
        self._jobs = Informer(
            client, JOBS, MetadataOnly, label_selector=CREATED_BY_JOB_TEMPLATE, indexes=indexes
        )
        self._templates = WriteThroughCache(
            client, JOBTEMPLATES, JobTemplate, templates, clock=self.clock
        )
        self.keep(self._templates)
        self.sources = [
            KindSource(templates, self._on_template),
            KindSource(self._jobs, self._on_job),
        ]

    def _on_template(self, old: JobTemplate | None, new: JobTemplate | None) -> None:
        if new is not None:
            self.queue.add(new.metadata.key)

    def _on_job(self, old: MetadataOnly | None, new: MetadataOnly | None) -> None:
        before, after = (set(_template_keys(job)) if job else set() for job in (old, new))
        for key in before ^ after:
            self.queue.add(key)

    async def observe(self, sync: Sync) -> TemplateView | None:
        """Return the template with its Jobs; None if it is deleted or being deleted."""
        template = self._templates.get(sync.key)
        if template is None or template.metadata.deletion_timestamp is not None:
            return None
        names = sorted(job.metadata.name for job in self._jobs.by_index("template", sync.key))
        return TemplateView(template, JobTemplateStatus(job_depends_on_list=tuple(names)))

    def decide(self, view: TemplateView) -> list[JobTemplateStatus]:
        """Write the status if it differs."""
        return [view.desired] if view.desired != view.template.status else []

    async def execute(self, sync: Sync, view: TemplateView, effect: JobTemplateStatus) -> None:
        """Write the status, unless the template was modified since it was observed."""
        patch = msgspec.to_builtins(effect) or {"jobDependsOnList": None}
        await self._templates.patch_status(view.template.metadata, patch)


def _template_keys(job: MetadataOnly) -> Iterator[str]:
    """Yield the key of the Job's template: the annotation has names too long for the label."""
    meta = job.metadata
    created_by = meta.annotations.get(CREATED_BY_JOB_TEMPLATE) or meta.labels.get(
        CREATED_BY_JOB_TEMPLATE, ""
    )
    namespace, _, name = created_by.partition(".")
    if name and namespace == meta.namespace:
        yield f"{namespace}/{name}"
