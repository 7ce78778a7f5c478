"""The claims that pods mount: a pod is not placed before all of them are bound."""

from .core_types import Claim
from .gangs import Task

_UNBOUND = (
    'persistentvolumeclaim "{}" is not bound; delayed binding (WaitForFirstConsumer) is not '
    "supported yet"
)


class ClaimBook:
    """Claims as the last events left them, and the tasks that mount them."""

    def __init__(self) -> None:
        """Start empty."""
        self._claims: dict[str, Claim] = {}
        self._takers: dict[str, set[str]] = {}
        """Uids of tasks by ``namespace/name`` of the claim."""

    def note(self, old: Claim | None, new: Claim | None) -> frozenset[str]:
        """Take in a claim that came, changed or went; returns the tasks that this may help."""
        known = new or old
        if known is None:
            return frozenset()
        key = known.metadata.key
        if new is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = new
        same = old is not None and new is not None and _says(old) == _says(new)
        return frozenset() if same else frozenset(self._takers.get(key, ()))

    def add(self, task: Task) -> None:
        """A pod came."""
        for name, _ in task.claims:
            self._takers.setdefault(f"{task.namespace}/{name}", set()).add(task.uid)

    def remove(self, task: Task) -> None:
        """A pod went."""
        for name, _ in task.claims:
            key = f"{task.namespace}/{name}"
            takers = self._takers.get(key, set())
            takers.discard(task.uid)
            if not takers:
                self._takers.pop(key, None)

    def problem(self, task: Task) -> str:
        """Which claim keeps *task* from being placed, and why; empty if none does."""
        for name, own in task.claims:
            claim = self._claims.get(f"{task.namespace}/{name}")
            if claim is None:
                return f'persistentvolumeclaim "{name}" not found'
            if own and all(each.uid != task.uid for each in claim.metadata.owner_references):
                return f'persistentvolumeclaim "{name}" was not made for pod "{task.name}"'
            if text := _problem_of(claim):
                return text
        return ""


def _problem_of(claim: Claim) -> str:
    name = claim.metadata.name
    if claim.metadata.deletion_timestamp:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if claim.status.phase == "Lost":
        return f'persistentvolumeclaim "{name}" has lost its volume "{claim.spec.volume_name}"'
    if claim.status.phase != "Bound" or not claim.spec.volume_name:
        return _UNBOUND.format(name)
    return ""


def _says(claim: Claim) -> tuple[object, ...]:
    return claim.metadata.uid, claim.metadata.owner_references, _problem_of(claim)
