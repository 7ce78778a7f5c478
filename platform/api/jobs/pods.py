"""The pods of a job, as the caller may read them."""

from dataclasses import dataclass

from ...kube.client.client import Client
from ...kube.errors import NotFoundError
from ...model.meta import ObjectMeta
from ...model.names import PODS
from ...model.validation import label_value_error
from ...wire.jobs import JobSummary
from ..problems import ProblemError
from .kinds import JobKind
from .pod_views import JobPod
from .summaries import is_final
from .views import CachedObject


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPage:
    """Some pods of a job."""

    pods: list[JobPod]
    continue_token: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class JobPods:
    """The pods of one job, read with the rights of *client*."""

    client: Client
    kind: JobKind
    job: CachedObject

    @property
    def meta(self) -> ObjectMeta:
        """Metadata of the job."""
        return self.job.metadata

    @property
    def selector(self) -> str:
        """Label selector of the pods, and maybe of others: see :meth:`owns`."""
        return str(self.kind.pod_selector(self.job))

    def owns(self, pod: JobPod) -> bool:
        """Return whether *pod* belongs to this job, not to an earlier one of its name."""
        return self.meta.owns(pod.metadata)

    def task_of(self, pod: JobPod) -> str:
        """Return the task of *pod*."""
        return self.kind.pod_position(pod.metadata).task

    async def read(self, *, limit: int = 0, continue_token: str = "") -> PodPage:
        """Read the pods in the order of their names: all, or a page of at most *limit*.

        Raises:
            GoneError: the continue token expired.
            BadRequestError: it is none.
        """
        if label_value_error(self.meta.name):
            # The label with the name would be invalid, so no pod can have it.
            return PodPage(pods=[], continue_token="", resource_version="")
        found = await self.client.list(
            PODS,
            namespace=self.meta.namespace,
            view=JobPod,
            label_selector=self.selector,
            limit=limit,
            continue_token=continue_token,
        )
        return PodPage(
            pods=[pod for pod in found.items if self.owns(pod)],
            continue_token=found.continue_token,
            resource_version=found.resource_version,
        )

    async def get(self, name: str) -> JobPod:
        """Return one pod of the job.

        Raises:
            ProblemError: 404, also for a pod of another job.
        """
        namespace = self.meta.namespace
        try:
            pod = await self.client.get(PODS, name, namespace=namespace, view=JobPod)
        except NotFoundError:
            pod = None
        if pod is None or not self.owns(pod):
            text = f"{self.kind.label} {self.meta.name!r} has no pod {name!r}"
            raise ProblemError(404, text)
        return pod

    async def is_job_finished(self) -> bool:
        """Return whether the job, which is read again, has finished or does not exist any more."""
        meta = self.meta
        try:
            job = await self.client.get(
                self.kind.resource, meta.name, namespace=meta.namespace, view=self.kind.view
            )
        except NotFoundError:
            return True
        return job.metadata.uid != meta.uid or is_final(self.kind.summarize(job).phase)

    def in_order(self, pods: list[JobPod]) -> list[JobPod]:
        """Return *pods* in the order of the tasks and their indexes."""
        tasks = {task.name: at for at, task in enumerate(self.summary().tasks)}

        def order(pod: JobPod) -> tuple[int, str, int, str]:
            found = self.kind.pod_position(pod.metadata)
            index = -1 if found.index is None else found.index
            return tasks.get(found.task, len(tasks)), found.task, index, pod.metadata.name

        return sorted(pods, key=order)

    def summary(self) -> JobSummary:
        """Return the summary of the job."""
        return self.kind.summarize(self.job)


async def read_job(client: Client, kind: JobKind, namespace: str, name: str) -> CachedObject:
    """Read a job with the rights of *client*.

    Raises:
        ProblemError: 404.
    """
    try:
        return await client.get(kind.resource, name, namespace=namespace, view=kind.view)
    except NotFoundError:
        text = f"{kind.label} {name!r} not found in namespace {namespace!r}"
        raise ProblemError(404, text) from None
