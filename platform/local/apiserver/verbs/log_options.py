"""Options of a request for a container's log, validated as kube-apiserver does."""

import re
from collections.abc import Mapping

from ....model import times
from ....model.names import Resource
from ..errors import fields
from ..errors.status import bad_request, invalid
from ..http.requests import Request

_OPTIONS = Resource("", "v1", "pods", "PodLogOptions")
_MINIMUM = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}
_INT64 = 1 << 63
_STREAMS = ("All", "Stdout", "Stderr")


def log_parameters(request: Request, pod: str) -> Mapping[str, str]:
    """Return the parameters of the request to the agent.

    Raises:
        StatusError: 400, a value cannot be parsed; 422, an option is invalid.
    """
    query = request.query
    found = {
        name: "true" for name in ("follow", "previous", "timestamps") if request.bool_param(name)
    }
    numbers = {name: _integer(query[name]) for name in _MINIMUM if name in query}
    errors = []
    for name, number in numbers.items():
        if number < _MINIMUM[name]:
            limit = "greater than or equal to 0" if _MINIMUM[name] == 0 else "greater than 0"
            errors.append(fields.invalid(name, number, f"must be {limit}"))
    if since := query.get("sinceTime", ""):
        try:
            times.parse(since)
        except ValueError:
            raise bad_request(f'parsing time "{since}": not an RFC 3339 timestamp') from None
        found["sinceTime"] = since
        if "sinceSeconds" in numbers:
            text = "at most one of `sinceTime` or `sinceSeconds` may be specified"
            errors.append(fields.forbidden("[]", text))
    if stream := query.get("stream", ""):
        found["stream"] = stream
        if stream not in _STREAMS:
            errors.append(fields.not_supported("stream", stream, sorted(_STREAMS)))
    if errors:
        raise invalid(_OPTIONS, pod, errors)
    return found | {name: str(number) for name, number in numbers.items()}


def _integer(text: str) -> int:
    """Parse a number as Go does; raise StatusError 400."""
    problem = "invalid syntax"
    if re.fullmatch("[+-]?[0-9]+", text, re.ASCII) is not None:
        if len(text) < 30 and -_INT64 <= int(text) < _INT64:
            return int(text)
        problem = "value out of range"
    raise bad_request(f'strconv.ParseInt: parsing "{text}": {problem}')
