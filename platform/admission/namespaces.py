"""Default queue of a namespace."""

from ..model.admission import AdmissionRequest, Json, ObjectReader, nested_object
from ..model.names import DEFAULT_QUEUE, NAMESPACES, PODGROUP_QUEUE


def set_namespace_queue(obj: Json, request: AdmissionRequest, reader: ObjectReader) -> Json:
    """Return *obj* with its namespace's queue instead of ``default``.

    The schema defaults the field, so ``default`` may mean unset. On update it means: unchanged.
    """
    spec = nested_object(obj, "spec")
    if spec.get("queue", DEFAULT_QUEUE) != DEFAULT_QUEUE:
        return obj
    namespace = reader.get(NAMESPACES, "", request.namespace)
    annotations = nested_object(nested_object(namespace, "metadata"), "annotations")
    default = annotations.get(PODGROUP_QUEUE)
    if not default:
        return obj
    queue = nested_object(request.old_object, "spec").get("queue") or default
    return obj | {"spec": spec | {"queue": queue}}
