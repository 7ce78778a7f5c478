"""The queue that a namespace names for what names none."""

from ..model.admission import Json, Lookup, Review
from ..model.names import DEFAULT_QUEUE, NAMESPACES
from .decoding import part

NAMESPACE_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of a namespace: the queue of its jobs and PodGroups that name none."""


def redirect(obj: Json, review: Review, lookup: Lookup) -> Json:
    """*obj*, in its namespace's queue if it would be in the default queue.

    The schema writes the default queue where none is named, so that is no wish. Later it means:
    as it is.
    """
    spec = part(obj, "spec")
    if spec.get("queue", DEFAULT_QUEUE) != DEFAULT_QUEUE:
        return obj
    namespace = lookup.get(NAMESPACES, "", review.namespace)
    theirs = part(part(namespace, "metadata"), "annotations").get(NAMESPACE_QUEUE)
    if not theirs:
        return obj
    queue = part(review.old, "spec").get("queue") or theirs
    return obj | {"spec": spec | {"queue": queue}}
