"""A write under review, and the responses of webhooks that it has so far."""

from typing import TYPE_CHECKING

import msgspec

from ..http.auth import User
from ..http.requests import Json, ObjectPath
from ..kinds.info import KindInfo

if TYPE_CHECKING:
    from .responses import WebhookResponses


class AdmissionAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """A write under review."""

    operation: str
    """CREATE, UPDATE, DELETE or CONNECT."""

    kind: KindInfo
    namespace: str
    name: str
    old_object: Json | None
    user: User
    object_path: ObjectPath
    """Of the request; *name* may be generated."""

    is_name_generated: bool = False
    """Whether *name* was generated for this write: rules and reviews do not see it."""

    warnings: list[str] | None = None
    """Receives warnings of fields without effect."""

    dry_run: bool = False

    options: Json | None = None
    """The options of the request, e.g. CreateOptions, as reviews contain them."""

    responses: "WebhookResponses | None" = None
    """The responses of webhooks; ``None`` for writes of the server's own controllers, which are not
    reviewed by webhooks."""

    @property
    def review_namespace(self) -> str:
        """Namespace in rules and reviews: that of a Namespace is its own name."""
        resource = self.kind.resource
        if resource.plural == "namespaces" and not resource.group:
            return self.name
        return self.namespace
