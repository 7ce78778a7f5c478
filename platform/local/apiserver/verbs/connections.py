"""Admission of connections to pods, Services and nodes: exec, attach, port-forward and proxy."""

from urllib.parse import parse_qsl

from ..admission.attributes import AdmissionAttributes
from ..admission.dynamic import DynamicAdmission
from ..admission.responses import WebhookNeededError
from ..http.requests import Json, Request
from ..http.routes import RequestInfo
from ..kinds.info import KindInfo

_FLAGS = ("stdin", "stdout", "stderr", "tty")


async def review_connection(
    dynamic: DynamicAdmission, request: Request, kind: KindInfo, request_info: RequestInfo
) -> None:
    """Let policies and validating webhooks check a connection.

    Raises:
        StatusError: one denies it, or a webhook cannot be called.
    """
    if not dynamic.is_configured:
        return
    path, responses = request_info.object_path, dynamic.new_responses(kind)
    attributes = AdmissionAttributes(
        operation="CONNECT",
        kind=kind,
        namespace=path.namespace,
        name=path.name,
        old_object=None,
        user=request.user,
        object_path=path,
        warnings=request.warnings,
        responses=responses,
    )
    options = _options(request, kind.subresources[path.subresource].kind)
    while True:
        try:
            dynamic.validate(attributes, options)
        except WebhookNeededError as needed:
            if responses is None:
                raise
            await dynamic.ask(responses, needed)
        else:
            return


def _options(request: Request, kind: str) -> Json:
    """Return the parameters of a connection as the object of their kind."""
    found: Json = {"kind": kind, "apiVersion": "v1"}
    if kind.endswith("ProxyOptions"):
        _, _, path = request.path.partition("/proxy")
        return found | {"path": path or "/"}
    parameters = parse_qsl(request.raw_query.decode("latin-1"))
    if kind == "PodPortForwardOptions":
        ports = [port for name, value in parameters if name == "ports" for port in value.split(",")]
        return found | {"ports": [int(port) for port in ports if port.isdecimal()]}
    found |= {name: True for name in _FLAGS if request.bool_param(name)}
    if container := request.query.get("container"):
        found["container"] = container
    if command := [value for name, value in parameters if name == "command"]:
        found["command"] = command
    return found
