"""Handlers of object requests, by verb and path: between HTTP and the store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from ..authorization.authorizer import Authorizer
from ..authorization.reviews import review
from ..authorization.rules import Attributes
from ..errors.status import (
    StatusError,
    bad_request,
    forbidden,
    method_not_allowed,
    not_acceptable,
    path_not_found,
)
from ..http import yaml_process
from ..http.auth import Authenticator
from ..http.bodies import (
    convert_large_yaml,
    decode_ahead,
    decode_body,
    get_object,
    may_repeat_fields,
    media_type,
)
from ..http.negotiation import ACCEPTED, negotiate
from ..http.offload import YAML_OFFLOAD_THRESHOLD
from ..http.requests import Json, ObjectPath, Request, Response
from ..http.routes import RequestInfo
from ..kinds.info import KindInfo
from ..media_types import APPLY_PATCH, JSON, YAML
from ..storage.stored_objects import encode, with_managed_fields
from . import deletes, scale
from .applies import check_duplicates, convert_large_config, decode_config, plan_apply
from .computed import ComputedReader
from .connections import review_connection
from .deletes import Deleter
from .http_proxy import PROXY, HttpProxy
from .options import delete_options, read_options, write_options
from .patch_bodies import (
    check_content_type,
    mentions_managed_fields,
    patch_problems,
    patch_size,
    read_patch,
)
from .planned_writes import PlannedWrite, WriteResult
from .pod_subresources import PodSubresources
from .reads import Reader
from .render import Renderer, renderer_for
from .stream_proxy import STREAMS
from .token_requests import TokenRequests
from .write_requests import WriteRequest, check_body, names_object, prepare_body, unnamed
from .writes import UpdateFunc, Writer

CREATE, UPDATE, PATCH = "CreateOptions", "UpdateOptions", "PatchOptions"
Handler = Callable[[Request, KindInfo, RequestInfo], Awaitable[Response]]
_REVIEW_GROUPS = ("authentication.k8s.io", "authorization.k8s.io")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """Handles requests for objects."""

    reader: Reader
    writer: Writer
    deleter: Deleter
    pods: PodSubresources
    proxy: HttpProxy
    token_requests: TokenRequests
    computed: ComputedReader
    authenticator: Authenticator
    authorizer: Authorizer

    async def handle(self, request: Request, kind: KindInfo, request_info: RequestInfo) -> Response:
        """Handle *request* for the resource or object in *request_info*.

        Raises:
            StatusError: it is rejected.
        """
        target = request_info.object_path
        if target.namespace and not kind.resource.namespaced:
            raise path_not_found()
        if kind.computed:
            return await self.computed.handle(request, kind, request_info)
        if len(request.body) > YAML_OFFLOAD_THRESHOLD and target.subresource != PROXY:
            await _decode_large_body(request, kind, target)
        if target.subresource:
            return await self._subresource(request, kind, request_info)
        table: dict[str, Handler]
        if target.name:
            table = {
                "GET": self._get,
                "PUT": self._update,
                "PATCH": self._patch,
                "DELETE": self._delete,
                "POST": self._post_to_object,
            }
        else:
            table = {
                "GET": self._list,
                "POST": self._create,
                "DELETE": self._delete_collection,
                "PUT": self._write_to_collection,
                "PATCH": self._write_to_collection,
            }
        handler = table.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise method_not_allowed(kind.resource if kind.custom else None)
        return await handler(request, kind, request_info)

    async def _get(self, request: Request, kind: KindInfo, request_info: RequestInfo) -> Response:
        if "get" not in kind.verbs:
            raise method_not_allowed(kind.resource)
        return await self.reader.get(request, kind, request_info.object_path)

    async def _list(self, request: Request, kind: KindInfo, request_info: RequestInfo) -> Response:
        if "list" not in kind.verbs:
            raise method_not_allowed(kind.resource)
        if request_info.watch or request.bool_param("watch"):
            return await self.reader.watch(request, kind, request_info.object_path)
        return await self.reader.list_objects(request, kind, request_info.object_path)

    async def _create(
        self, request: Request, kind: KindInfo, request_info: RequestInfo
    ) -> Response:
        if kind.resource.group in _REVIEW_GROUPS:
            return self._review(request, kind, request_info)
        if kind.resource.plural == "bindings" and not kind.resource.group:
            return await self.pods.bind(
                self._write_request(request, kind, request_info, CREATE), request
            )
        if kind.resource.namespaced and not request_info.object_path.namespace:
            raise method_not_allowed(kind.resource)
        call = self._write_request(request, kind, request_info, CREATE)
        renderer = _renderer(request, kind)
        written = await self.writer.plan_and_execute(
            call,
            lambda: self.writer.plan_create(*_decoded(request, call)),
            size=len(request.body),
        )
        return await self._written(renderer, written, status=201)

    async def _update(
        self, request: Request, kind: KindInfo, request_info: RequestInfo
    ) -> Response:
        call = self._write_request(request, kind, request_info, UPDATE)
        renderer = _renderer(request, kind)
        written = await self.writer.plan_and_execute(
            call,
            lambda: self.writer.plan_update(*_decoded(request, call)),
            size=len(request.body),
        )
        return await self._written(renderer, written)

    async def _patch(self, request: Request, kind: KindInfo, request_info: RequestInfo) -> Response:
        if "patch" not in kind.verbs:
            raise path_not_found()
        check_content_type(request, kind)
        call = self._write_request(request, kind, request_info, PATCH)
        renderer = _renderer(request, kind)
        if media_type(request) == APPLY_PATCH:
            applied = await self._apply(request, call)
            return await self._written(renderer, applied, status=201 if applied.created else 200)
        written = await self._write_patch(request, call, read_patch)
        return await self._written(renderer, written)

    async def _apply(self, request: Request, write_request: WriteRequest) -> WriteResult:
        def check_create() -> None:
            resource, path = write_request.kind.resource, write_request.object_path
            attributes = Attributes(
                "create", resource.group, resource.plural, "", path.name, path.namespace
            )
            self.authorizer.check(request.user, attributes)

        def plan() -> PlannedWrite:
            config = decode_config(request.body)
            planned = plan_apply(self.writer, write_request, config, check_create)
            check_duplicates(request, write_request.options)
            return planned

        await convert_large_config(request)
        return await self.writer.plan_and_execute(write_request, plan, size=len(request.body))

    async def _write_patch(
        self,
        request: Request,
        write_request: WriteRequest,
        read_body: Callable[[Request, KindInfo], UpdateFunc],
    ) -> WriteResult:
        def plan() -> PlannedWrite:
            change, checked = read_body(request, write_request.kind), write_request
            if checked.options.strict or checked.options.warn:
                problems = patch_problems(request)
                checked = msgspec.structs.replace(checked, body_problems=problems)
            return self.writer.plan_patch(checked, change, full=mentions_managed_fields(request))

        return await self.writer.plan_and_execute(write_request, plan, size=patch_size(request))

    async def _delete(
        self, request: Request, kind: KindInfo, request_info: RequestInfo
    ) -> Response:
        options = delete_options(request)
        request.warnings.extend(deletes.propagation_warnings(kind, options))
        call = WriteRequest(
            kind=kind,
            object_path=request_info.object_path,
            user=request.user,
            warnings=request.warnings,
            responses=self.writer.admission.dynamic.new_responses(kind),
        )
        renderer = _renderer(request, kind)
        written = await self.deleter.delete_reviewed(call, options)
        if written.removed and not kind.delete_returns_object:
            await written.committed()
            status = deletes.deletion_status(call, written)
            return Response(body=msgspec.json.encode(status) + b"\n")
        # As kube-apiserver: 202 for the older form of the policy alone.
        pending = options.orphan_dependents is False and not written.removed
        return await self._written(renderer, written, status=202 if pending else 200)

    async def _delete_collection(
        self, request: Request, kind: KindInfo, request_info: RequestInfo
    ) -> Response:
        if "deletecollection" not in kind.verbs:
            raise method_not_allowed(kind.resource)
        reading = read_options(request, kind, request_info.object_path, watch=False)
        options = delete_options(request)
        request.warnings.extend(deletes.propagation_warnings(kind, options))
        call = WriteRequest(
            kind=kind,
            object_path=request_info.object_path,
            user=request.user,
            responses=self.writer.admission.dynamic.new_responses(kind),
        )
        renderer = _renderer(request, kind)
        entries = await self.deleter.delete_collection(
            call, reading.selection, options, limit=reading.limit
        )
        metadata = {"resourceVersion": str(self.writer.store.committed_rv)}
        return renderer.render_list(entries, metadata)

    async def _post_to_object(
        self, request: Request, kind: KindInfo, request_info: RequestInfo
    ) -> Response:
        if not kind.custom:
            raise method_not_allowed()
        call = WriteRequest(kind=kind, object_path=request_info.object_path, user=request.user)
        check_body(call, decode_body(request, kind=kind))
        raise method_not_allowed(kind.resource)

    async def _write_to_collection(
        self, request: Request, kind: KindInfo, request_info: RequestInfo
    ) -> Response:
        raise bad_request("name must be provided") if kind.custom else method_not_allowed()

    async def _subresource(
        self, request: Request, kind: KindInfo, request_info: RequestInfo
    ) -> Response:
        subresource = request_info.object_path.subresource
        if subresource not in kind.subresources:
            raise (
                path_not_found(kind.resource, request_info.object_path.name)
                if kind.custom
                else path_not_found()
            )
        if kind.writes_status(subresource) or kind.subresources[subresource].strategy is not None:
            table = {"GET": self._get, "PUT": self._update, "PATCH": self._patch}
            if request.method not in table:
                raise method_not_allowed(kind.resource)
            return await table[request.method](request, kind, request_info)
        others = {"scale": self._scale, PROXY: self._proxy, **dict.fromkeys(STREAMS, self._stream)}
        if subresource in others:
            return await others[subresource](request, kind, request_info)
        call = self._write_request(request, kind, request_info, CREATE)
        if subresource == "finalize" and request.method == "PUT":
            return await self._finalize(request, call)
        if subresource == "log" and request.method == "GET":
            return await self.pods.log(call, request)
        creations = {
            "binding": self.pods.bind,
            "eviction": self.pods.evict,
            "token": self.token_requests.create,
        }
        if subresource in creations and request.method == "POST":
            return await creations[subresource](call, request)
        raise method_not_allowed(kind.resource)

    async def _stream(
        self, request: Request, kind: KindInfo, request_info: RequestInfo
    ) -> Response:
        if request.method not in ("GET", "POST"):
            raise method_not_allowed(kind.resource)
        # As kube-apiserver: a WebSocket begins with GET, and must not need fewer rights than POST.
        path = request_info.object_path
        attributes = Attributes(
            "create", "", kind.resource.plural, path.subresource, path.name, path.namespace
        )
        decision = self.authorizer.authorize(request.user, attributes)
        if not decision.allowed:
            raise forbidden(kind.resource, path.name, decision.reason)
        await review_connection(self.writer.admission.dynamic, request, kind, request_info)
        call = WriteRequest(kind=kind, object_path=path, user=request.user)
        return await self.pods.stream(call, request)

    async def _proxy(self, request: Request, kind: KindInfo, request_info: RequestInfo) -> Response:
        await review_connection(self.writer.admission.dynamic, request, kind, request_info)
        call = WriteRequest(kind=kind, object_path=request_info.object_path, user=request.user)
        return await self.proxy.forward(call, request)

    async def _scale(self, request: Request, kind: KindInfo, request_info: RequestInfo) -> Response:
        if request.method not in ("GET", "PUT", "PATCH"):
            raise method_not_allowed(kind.resource)
        options = PATCH if request.method == "PATCH" else UPDATE
        call = self._write_request(request, kind, request_info, options)
        if request.method == "GET":
            entry = self.writer.store.resource_store(kind).get(*call.key)
            if entry is None:
                self.writer.get_latest(call)
                raise StatusError(409, "Conflict", "the object is being created")
            (shown,) = await self.writer.converter.in_version_of(kind, [entry])
            return Response(body=scale.get_scale(kind, shown.parse()))
        if request.method == "PUT":
            body = decode_body(request)
            change = scale.update_scale(kind, body)
            if not names_object(body):
                raise unnamed(request_info.object_path.name)
            written = await self.writer.plan_and_execute(
                call, lambda: self.writer.plan_patch(call, change), size=len(request.body)
            )
        else:
            check_content_type(request, kind)
            if media_type(request) == APPLY_PATCH:
                written = await self._apply(request, call)
            else:
                written = await self._write_patch(request, call, scale.patch_scale)
        data = await self._written_data(kind, written)
        return Response(body=scale.get_scale(kind, msgspec.json.decode(data)))

    async def _finalize(self, request: Request, write_request: WriteRequest) -> Response:
        wanted = get_object(decode_body(request), "spec").get("finalizers") or []
        if not isinstance(wanted, list):
            raise bad_request("spec.finalizers is no list")

        def change(namespace: dict[str, object]) -> dict[str, object]:
            return {**namespace, "spec": {"finalizers": wanted}}

        written = self.writer.update_unchecked(write_request, change)
        return await self._written(_renderer(request, write_request.kind), written)

    def _review(self, request: Request, kind: KindInfo, request_info: RequestInfo) -> Response:
        renderer = _renderer(request, kind)
        if renderer.output_format.as_kind == "Table":
            raise not_acceptable(ACCEPTED)
        call = self._write_request(request, kind, request_info, CREATE)
        obj = decode_body(request, kind=kind)
        sent = obj.get("metadata")
        is_namespace_sent = isinstance(sent, dict) and bool(sent.get("namespace"))
        metadata = check_body(call, obj)
        prepare_body(call, obj)
        if not kind.resource.namespaced or not is_namespace_sent:
            metadata.pop("namespace", None)
        reviewed = review(
            kind.resource,
            obj,
            namespace=request_info.object_path.namespace,
            user=request.user,
            authenticator=self.authenticator,
            authorizer=self.authorizer,
        )
        return renderer.render_object(encode(reviewed), status=201)

    async def _written(
        self, renderer: Renderer, written: WriteResult, *, status: int = 200
    ) -> Response:
        """Return the response to a write, once it is on disk."""
        data = await self._written_data(renderer.kind, written)
        if renderer.managed_fields:
            data = with_managed_fields(data, written.managed)
        return renderer.render_object(data, status=status)

    async def _written_data(self, kind: KindInfo, written: WriteResult) -> bytes:
        """Return a written object in the version of *kind*, once it is on disk."""
        data, entry = await written.committed(), written.entry
        if entry is None:
            return await self.writer.converter.data_in_version_of(kind, data)
        return (await self.writer.converter.in_version_of(kind, [entry]))[0].data

    def _write_request(
        self, request: Request, kind: KindInfo, request_info: RequestInfo, options: str
    ) -> WriteRequest:
        return WriteRequest(
            kind=kind,
            object_path=request_info.object_path,
            user=request.user,
            options=write_options(request, options),
            warnings=request.warnings,
            responses=self.writer.admission.dynamic.new_responses(kind),
        )


async def _decode_large_body(request: Request, kind: KindInfo, object_path: ObjectPath) -> None:
    """Decode a large body off the event loop."""
    await convert_large_yaml(request)
    if request.method in ("POST", "PUT"):
        own = object_path.subresource in ("", "status")
        await decode_ahead(request, kind=kind if own else None)
    elif request.method == "DELETE":
        await decode_ahead(request)


def _renderer(request: Request, kind: KindInfo) -> Renderer:
    """Negotiate the response format; an unsupported one is rejected before the write."""
    form = negotiate(request.headers.get("accept", ""))
    renderer = renderer_for(request, kind, form)
    renderer.check()
    return renderer


def _decoded(request: Request, write_request: WriteRequest) -> tuple[WriteRequest, Json]:
    """Return the object in the body, and the write with the body if it has duplicate fields."""
    obj = decode_body(request, kind=write_request.kind)
    options = write_request.options
    if not (options.strict or options.warn):
        return write_request, obj
    media = media_type(request)
    if media == JSON and may_repeat_fields(request.body, obj):
        write_request = msgspec.structs.replace(write_request, checked_body=request.body)
    elif media == YAML and (lines := tuple(yaml_process.duplicate_keys(request.body))):
        if options.strict:
            lines = ("\n  ".join(("yaml: unmarshal errors:", *lines)),)
        write_request = msgspec.structs.replace(write_request, body_problems=lines)
    return write_request, obj
