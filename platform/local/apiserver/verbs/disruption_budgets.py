"""Disruption budgets: check and count evictions.

`controllers.disruptions` computes the numbers in a budget's status; each eviction decrements the
allowed disruptions, as in kube-apiserver.
"""

import msgspec

from ....model.meta import LabelSelector
from ....model.selectors import Selector, from_label_selector
from ..current_time import now
from ..errors.status import StatusError
from ..http.requests import Json, ObjectPath
from ..kinds.info import KindInfo
from ..storage.stored_objects import StoredObject
from .write_requests import WriteRequest
from .writes import Writer

_UNGUARDED_PHASES = ("Pending", "Succeeded", "Failed")
"""Phases of pods that may be evicted regardless of their budget."""

_RETRY_SECONDS = 10

ALLOWED, SYNC_FAILED = "DisruptionAllowed", "SyncFailed"
"""Condition of a budget, and its reason if the pods cannot be counted."""


def consume_disruption(writer: Writer, kind: KindInfo, pod: StoredObject, *, dry_run: bool) -> None:
    """Count the eviction of *pod* against its budget, if any.

    Raises:
        StatusError: 429, the budget forbids it; 500, several budgets select the pod.
    """
    content = pod.parse()
    if pod.deleting or (content.get("status") or {}).get("phase", "Pending") in _UNGUARDED_PHASES:
        return
    resource_store = writer.store.resource_store(kind)
    found = [
        each
        for each in resource_store.ordered(pod.namespace)
        if selector_of(each).matches(pod.labels)
    ]
    if not found:
        return
    if len(found) > 1:
        text = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support."
        )
        raise StatusError(500, "", text)  # kube-apiserver sets no reason either
    # Read the latest state: another eviction may be waiting for the disk.
    latest = resource_store.latest(*found[0].key)
    if latest is None:
        return
    budget = latest.parse()
    if _is_evictable_unready(content, budget):
        return
    check_disruption_allowed(budget)
    if not dry_run:
        target = ObjectPath(namespace=pod.namespace, name=found[0].name)
        writer.update_unchecked(
            WriteRequest(kind=kind, object_path=target),
            lambda old: _with_disrupted_pod(old, pod.name),
        )


def selector_of(budget: StoredObject) -> Selector:
    """Return the selector of the pods under *budget*."""
    given = (budget.parse().get("spec") or {}).get("selector")
    return from_label_selector(None if given is None else msgspec.convert(given, LabelSelector))


def _is_evictable_unready(pod: Json, budget: Json) -> bool:
    """Return whether a pod does not count: it is not ready, and enough others are healthy."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any((each["type"], each["status"]) == ("Ready", "True") for each in conditions):
        return False
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    desired = status.get("desiredHealthy", 0)
    return bool(0 < desired <= status.get("currentHealthy", 0))


def check_disruption_allowed(budget: Json) -> None:
    """Check that one more disruption is allowed.

    Raises:
        StatusError: 429, none is allowed now.
    """
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        text = f"The disruption budget {name} is still being processed by the server."
        raise _eviction_denied(text, retryAfterSeconds=_RETRY_SECONDS)
    if status.get("disruptionsAllowed", 0) <= 0:
        for each in status.get("conditions") or ():
            if (each["type"], each.get("reason")) == (ALLOWED, SYNC_FAILED):
                why = "does not allow evicting pods currently because it failed sync"
                raise _eviction_denied(
                    f"The disruption budget {name} {why}: {each.get('message', '')}"
                )
        needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        why = f"needs {needs} healthy pods and has {has}"
        if has > needs:
            why = "does not allow evicting pods"
        raise _eviction_denied(f"The disruption budget {name} {why} currently")


def _eviction_denied(cause: str, **details: object) -> StatusError:
    causes = [{"reason": "DisruptionBudget", "message": cause}]
    text = "Cannot evict pod as it would violate the pod's disruption budget."
    return StatusError(429, "TooManyRequests", text, details={"causes": causes, **details})


def _with_disrupted_pod(budget: Json, pod: str) -> Json:
    """Return the budget with one allowed disruption less."""
    status: Json = budget.get("status") or {}
    left = status["disruptionsAllowed"] - 1
    disrupted = {**(status.get("disruptedPods") or {}), pod: now()}
    changed = {**status, "disruptionsAllowed": left, "disruptedPods": disrupted}
    if not left:
        changed = with_condition(changed, "InsufficientPods")
    return {**budget, "status": changed}


def with_condition(status: Json, reason: str, message: str = "") -> Json:
    """Return *status* with the DisruptionAllowed condition; SufficientPods allows disruptions."""
    value = "True" if reason == "SufficientPods" else "False"
    conditions = status.get("conditions") or ()
    before: Json = next((each for each in conditions if each["type"] == ALLOWED), {})
    changed = {
        "type": ALLOWED,
        "status": value,
        "observedGeneration": status.get("observedGeneration", 0),
        "lastTransitionTime": now(),
        "reason": reason,
        "message": message,
    }
    if before.get("status") == value:
        changed["lastTransitionTime"] = before.get("lastTransitionTime") or now()
    others = [each for each in conditions if each["type"] != ALLOWED]
    return {**status, "conditions": [*others, changed]}
