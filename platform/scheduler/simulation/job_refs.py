"""The job of a gang, for programs that do not know gangs."""

from ...model.names import PODGROUPS, PODS
from ...model.scheduler_questions import JobRef
from ..state.gangs.gang import Gang

MAX_NAME = 253
"""Characters of names and kinds: users may write owner references of any length."""


def job_of(gang: Gang) -> JobRef:
    """Return the job of *gang*."""
    owner = None if gang.podgroup is None else gang.podgroup.metadata.controller
    if owner is not None:
        texts = (each[:MAX_NAME] for each in (owner.api_version, owner.kind, owner.name))
        return JobRef(gang.namespace, *texts)
    if gang.single:
        name = next((task.name for task in gang.tasks.values()), "")
        return JobRef(gang.namespace, PODS.api_version, PODS.kind, name)
    return JobRef(gang.namespace, PODGROUPS.api_version, PODGROUPS.kind, gang.name)
