"""The queue that a namespace names for what names none."""

from ..model.admission import AdmissionRequest, Json, ObjectReader
from ..model.names import DEFAULT_QUEUE, NAMESPACES
from .decoding import nested_object

NAMESPACE_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of a namespace: the queue of its jobs and PodGroups that name none."""


def set_namespace_queue(obj: Json, request: AdmissionRequest, reader: ObjectReader) -> Json:
    """*obj*, in its namespace's queue if it would be in the default queue.

    The schema writes the default queue where none is named, so that is no wish. Later it means:
    as it is.
    """
    spec = nested_object(obj, "spec")
    if spec.get("queue", DEFAULT_QUEUE) != DEFAULT_QUEUE:
        return obj
    namespace = reader.get(NAMESPACES, "", request.namespace)
    theirs = nested_object(nested_object(namespace, "metadata"), "annotations").get(NAMESPACE_QUEUE)
    if not theirs:
        return obj
    queue = nested_object(request.old_object, "spec").get("queue") or theirs
    return obj | {"spec": spec | {"queue": queue}}
