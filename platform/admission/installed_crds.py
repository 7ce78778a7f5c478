"""Warnings about changes of the custom resource definitions that the embedded cluster installs."""

from collections.abc import Collection

from ..model.admission import AdmissionRequest, ObjectReader, Webhook
from ..model.names import CRDS


def webhook(restored: Collection[str]) -> Webhook:
    """Return a webhook that warns of changes of the definitions *restored* at the next start."""

    def warn(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
        obj, old = request.object or {}, request.old_object
        name = obj.get("metadata", {}).get("name", "")
        if name not in restored or old is None or obj.get("spec") == old.get("spec"):
            return []
        return [
            f"custom resource definition {name!r} belongs to Batholith: its controllers need their "
            "own version, which the next start of this cluster restores"
        ]

    return Webhook(
        name="installedcrds.batholith.io",
        path="/customresourcedefinitions/validate",
        resource=CRDS,
        operations=frozenset(("UPDATE",)),
        warn=warn,
    )
