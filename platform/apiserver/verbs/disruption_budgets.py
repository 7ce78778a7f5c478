"""Disruption budgets: whether a pod may be evicted, and what that costs its budget.

The numbers in a budget's status are those of `controllers.disruptions`; each eviction only takes
one from what is left, as kube-apiserver does.
"""

import msgspec

from ...model.meta import LabelSelector
from ...model.selectors import Selector, from_label_selector
from ..errors.status import StatusError
from ..http.requests import Json, ObjectPath
from ..kinds.info import KindInfo
from ..storage.stored_objects import StoredObject
from .writes import Writer, WriteRequest, now

_UNGUARDED_PHASES = ("Pending", "Succeeded", "Failed")
"""Of pods that are evicted whatever their budget says."""

_RETRY_SECONDS = 10

ALLOWED, SYNC_FAILED = "DisruptionAllowed", "SyncFailed"
"""The condition of a budget, and its reason where the pods cannot be counted."""


def consume_disruption(writer: Writer, kind: KindInfo, pod: StoredObject, *, dry_run: bool) -> None:
    """Take the eviction of *pod* from the budget that it is under, if there is one.

    Raises:
        StatusError: 429 the budget keeps the pod; 500 it is under several budgets.
    """
    content = pod.parse()
    if pod.deleting or (content.get("status") or {}).get("phase", "Pending") in _UNGUARDED_PHASES:
        return
    shelf = writer.store.resource_store(kind)
    found = [each for each in shelf.ordered(pod.namespace) if selector_of(each).matches(pod.labels)]
    if not found:
        return
    if len(found) > 1:
        text = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support."
        )
        raise StatusError(500, "", text)  # a real server gives no reason either
    # As the next write finds it: another eviction may have spent it and wait for the disk still.
    latest = shelf.latest(*found[0].key)
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
    """What says which pods are under *budget*."""
    wanted = (budget.parse().get("spec") or {}).get("selector")
    return from_label_selector(None if wanted is None else msgspec.convert(wanted, LabelSelector))


def _is_evictable_unready(pod: Json, budget: Json) -> bool:
    """Say whether a pod is not ready anyway and does not count, for enough others are."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any((each["type"], each["status"]) == ("Ready", "True") for each in conditions):
        return False
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    wanted = status.get("desiredHealthy", 0)
    return bool(0 < wanted <= status.get("currentHealthy", 0))


def check_disruption_allowed(budget: Json) -> None:
    """See whether one more pod may go.

    Raises:
        StatusError: 429, none may for now.
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
    """The budget with one disruption less."""
    status: Json = budget.get("status") or {}
    left = status["disruptionsAllowed"] - 1
    gone = {**(status.get("disruptedPods") or {}), pod: now()}
    changed = {**status, "disruptionsAllowed": left, "disruptedPods": gone}
    if not left:
        changed = with_condition(changed, "InsufficientPods")
    return {**budget, "status": changed}


def with_condition(status: Json, reason: str, message: str = "") -> Json:
    """The status of a budget with what it says about disruptions; SufficientPods allows them."""
    value = "True" if reason == "SufficientPods" else "False"
    held = status.get("conditions") or ()
    before: Json = next((each for each in held if each["type"] == ALLOWED), {})
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
    others = [each for each in held if each["type"] != ALLOWED]
    return {**status, "conditions": [*others, changed]}
