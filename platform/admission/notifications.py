"""Annotations that ask for notifications of jobs."""

from collections.abc import Iterator, Mapping

from ..model.admission import AdmissionRequest, nested_object
from ..model.field_errors import quote
from ..model.names import NOTIFY
from ..model.notification_destinations import NotificationRules
from ..model.notifications import NONE, errors_of, url_error


def notify_errors(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the annotations of a job."""
    for name, value, text in errors_of(annotations):
        yield f"metadata.annotations[{name}]: Invalid value: {quote(value)}: {text}"


def notify_warnings(request: AdmissionRequest, rules: NotificationRules) -> list[str]:
    """Return why the URL that a write adds to a job or queue would not be notified."""
    url, before = _url(request.object), _url(request.old_object)
    if not isinstance(url, str) or url in (NONE, before) or not rules.is_known or url_error(url):
        return []
    text = rules.error_of(url)
    return [f"metadata.annotations[{NOTIFY}]: nothing will be sent: {text}"] if text else []


def _url(obj: object) -> object:
    return nested_object(nested_object(obj, "metadata"), "annotations").get(NOTIFY)
