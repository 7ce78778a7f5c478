"""What each verb does on each kind of path: the middle between HTTP and the store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from ..builtin.unenforced import kind_warning
from ..errors.status import (
    StatusError,
    bad_request,
    method_not_allowed,
    no_such_path,
    not_offered,
)
from ..http.auth import Authenticator
from ..http.bodies import (
    decode_ahead,
    decode_body,
    duplicate_fields,
    media_type,
    section,
    without_yaml,
)
from ..http.negotiation import accepted
from ..http.offload import LARGE_YAML
from ..http.requests import JSON, Request, Response, Target
from ..http.reviews import review
from ..http.routes import Place
from ..kinds.info import KindInfo
from . import deletes, scale
from .deletes import Deleter
from .options import check_timeout, delete_options, read_options, write_options
from .patch_bodies import check_media, patch_size, read_patch
from .pod_subresources import PodParts
from .reads import Reader
from .render import Renderer
from .writes import Call, Change, Writer, Written, check_body, prepare_body

CREATE, UPDATE, PATCH = "CreateOptions", "UpdateOptions", "PatchOptions"
Handler = Callable[[Request, KindInfo, Place], Awaitable[Response]]
_NOT_OFFERED = {
    "pods": frozenset({"attach", "ephemeralcontainers", "exec", "portforward", "proxy", "resize"}),
    "nodes": frozenset({"proxy"}),
    "serviceaccounts": frozenset({"token"}),
    "services": frozenset({"proxy"}),
    "certificatesigningrequests": frozenset({"approval"}),
}
"""Parts that a whole Kubernetes has, by the kind that they are parts of."""

_REVIEWS = ("authentication.k8s.io", "authorization.k8s.io")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """Answers requests about objects."""

    reader: Reader
    writer: Writer
    deleter: Deleter
    pods: PodParts
    known: Authenticator

    async def answer(self, request: Request, kind: KindInfo, place: Place) -> Response:
        """Do what *request* asks of *place*.

        Raises:
            StatusError: it is refused.
        """
        target = place.target
        if not (place.watch or request.flag("watch") or target.subresource == "log"):
            check_timeout(request.query)
        if target.namespace and not kind.resource.namespaced:
            raise no_such_path()
        if len(request.body) > LARGE_YAML:
            await _read_ahead(request, kind, target)
        if target.subresource:
            return await self._part(request, kind, place)
        table: dict[str, Handler]
        if target.name:
            table = {
                "GET": self._get,
                "PUT": self._update,
                "PATCH": self._patch,
                "DELETE": self._delete,
                "POST": self._misplaced,
            }
        else:
            table = {
                "GET": self._list,
                "POST": self._create,
                "DELETE": self._delete_all,
                "PUT": self._nameless,
            }
        handler = table.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise method_not_allowed(kind.resource if kind.custom else None)
        return await handler(request, kind, place)

    async def _get(self, request: Request, kind: KindInfo, place: Place) -> Response:
        if "get" not in kind.verbs:
            raise method_not_allowed(kind.resource)
        return await self.reader.get(request, kind, place.target)

    async def _list(self, request: Request, kind: KindInfo, place: Place) -> Response:
        if "list" not in kind.verbs:
            raise method_not_allowed(kind.resource)
        if place.watch or request.flag("watch"):
            return await self.reader.watch(request, kind, place.target)
        return await self.reader.collection(request, kind, place.target)

    async def _create(self, request: Request, kind: KindInfo, place: Place) -> Response:
        if kind.resource.group in _REVIEWS:
            return self._review(request, kind, place)
        if kind.resource.plural == "bindings" and not kind.resource.group:
            return await self.pods.bind(self._call(request, kind, place, CREATE), request)
        if kind.resource.namespaced and not place.target.namespace:
            raise method_not_allowed(kind.resource)
        call = self._call(request, kind, place, CREATE)
        renderer = _renderer(request, kind)
        written = await self.writer.decide(
            call,
            lambda: self.writer.plan_create(call, _body(request, call)),
            size=len(request.body),
        )
        return renderer.one(await written.settled(), status=201)

    async def _update(self, request: Request, kind: KindInfo, place: Place) -> Response:
        call = self._call(request, kind, place, UPDATE)
        renderer = _renderer(request, kind)
        written = await self.writer.decide(
            call,
            lambda: self.writer.plan_update(call, _body(request, call)),
            size=len(request.body),
        )
        return renderer.one(await written.settled())

    async def _patch(self, request: Request, kind: KindInfo, place: Place) -> Response:
        check_media(request, kind)
        call = self._call(request, kind, place, PATCH)
        renderer = _renderer(request, kind)
        written = await self._patched(request, call, read_patch)
        return renderer.one(await written.settled())

    async def _patched(
        self, request: Request, call: Call, read: Callable[[Request, KindInfo], Change]
    ) -> Written:
        return await self.writer.decide(
            call,
            lambda: self.writer.plan_patch(call, read(request, call.kind)),
            size=patch_size(request),
        )

    async def _delete(self, request: Request, kind: KindInfo, place: Place) -> Response:
        options = delete_options(request)
        call = Call(kind=kind, target=place.target, user=request.user)
        renderer = _renderer(request, kind)
        written = self.deleter.delete(call, options)
        data = await written.settled()
        if written.removed and not kind.delete_returns_object:
            status = deletes.deletion_status(call, written)
            return Response(body=msgspec.json.encode(status) + b"\n")
        return renderer.one(data)

    async def _delete_all(self, request: Request, kind: KindInfo, place: Place) -> Response:
        if "deletecollection" not in kind.verbs:
            raise method_not_allowed(kind.resource)
        options = delete_options(request)
        reading = read_options(request, kind, place.target, watch=False)
        call = Call(kind=kind, target=place.target, user=request.user)
        renderer = _renderer(request, kind)
        entries = await self.deleter.delete_collection(
            call, reading.selection, options, limit=reading.limit
        )
        metadata = {"resourceVersion": str(self.writer.registry.committed_rv)}
        return renderer.many([entry.data for entry in entries], metadata)

    async def _misplaced(self, request: Request, kind: KindInfo, place: Place) -> Response:
        if not kind.custom:
            raise method_not_allowed()
        call = Call(kind=kind, target=place.target, user=request.user)
        check_body(call, decode_body(request, kind=kind))
        raise method_not_allowed(kind.resource)

    async def _nameless(self, request: Request, kind: KindInfo, place: Place) -> Response:
        raise bad_request("name must be provided") if kind.custom else method_not_allowed()

    async def _part(self, request: Request, kind: KindInfo, place: Place) -> Response:
        part = place.target.subresource
        if part not in kind.subresources:
            if not kind.custom and part in _NOT_OFFERED.get(kind.resource.plural, ()):
                raise not_offered(kind.resource, part)
            raise no_such_path(kind.resource, place.target.name) if kind.custom else no_such_path()
        if part == "status":
            table = {"GET": self._get, "PUT": self._update, "PATCH": self._patch}
            if request.method not in table:
                raise method_not_allowed(kind.resource)
            return await table[request.method](request, kind, place)
        if part == "scale":
            return await self._scale(request, kind, place)
        call = self._call(request, kind, place, CREATE)
        if part == "finalize" and request.method == "PUT":
            return await self._finalize(request, call)
        if part == "log" and request.method == "GET":
            return await self.pods.log(call, request)
        if part == "binding" and request.method == "POST":
            return await self.pods.bind(call, request)
        if part == "eviction" and request.method == "POST":
            return await self.pods.evict(call, request)
        raise method_not_allowed(kind.resource)

    async def _scale(self, request: Request, kind: KindInfo, place: Place) -> Response:
        if request.method not in ("GET", "PUT", "PATCH"):
            raise method_not_allowed(kind.resource)
        call = self._call(request, kind, place, UPDATE)
        if request.method == "GET":
            entry = self.writer.registry.shelf(kind).get(*call.key)
            if entry is None:
                self.writer.current(call)
                raise StatusError(409, "Conflict", "the object is being created")
            return Response(body=scale.show(kind, entry.parse()))
        if warning := kind_warning(kind.resource):
            request.warnings.append(warning)
        if request.method == "PUT":
            change = scale.put(kind, decode_body(request))
            written = self.writer.patch(call, change)
        else:
            check_media(request, kind)
            written = await self._patched(request, call, scale.read_patch)
        data = await written.settled()
        return Response(body=scale.show(kind, msgspec.json.decode(data)))

    async def _finalize(self, request: Request, call: Call) -> Response:
        wanted = section(decode_body(request), "spec").get("finalizers") or []
        if not isinstance(wanted, list):
            raise bad_request("spec.finalizers is no list")

        def change(namespace: dict[str, object]) -> dict[str, object]:
            return {**namespace, "spec": {"finalizers": wanted}}

        written = self.writer.put(call, change)
        return Renderer(kind=call.kind).one(await written.settled())

    def _review(self, request: Request, kind: KindInfo, place: Place) -> Response:
        call = self._call(request, kind, place, CREATE)
        obj = decode_body(request, kind=kind)
        metadata = check_body(call, obj)
        prepare_body(call, obj)
        metadata.pop("namespace", None)
        reviewed = review(
            kind.resource,
            obj,
            namespace=place.target.namespace,
            asking=request.user,
            known=self.known,
        )
        return Response(status=201, body=msgspec.json.encode(reviewed) + b"\n")

    def _call(self, request: Request, kind: KindInfo, place: Place, options: str) -> Call:
        return Call(
            kind=kind,
            target=place.target,
            user=request.user,
            options=write_options(request, options),
            warnings=request.warnings,
        )


async def _read_ahead(request: Request, kind: KindInfo, target: Target) -> None:
    """Read a large body where that holds nobody up."""
    await without_yaml(request)
    if request.method in ("POST", "PUT"):
        own = target.subresource in ("", "status")
        await decode_ahead(request, kind=kind if own else None)
    elif request.method == "DELETE":
        await decode_ahead(request)


def _renderer(request: Request, kind: KindInfo) -> Renderer:
    """How the answer will look; a form that we cannot produce is refused before the write."""
    form = accepted(request.headers.get("accept", ""))
    renderer = Renderer(kind=kind, form=form, include=request.query.get("includeObject", ""))
    renderer.check()
    return renderer


def _body(request: Request, call: Call) -> dict[str, object]:
    """The object that is sent; fields that it has twice are refused or told, as unknown ones."""
    obj = decode_body(request, kind=call.kind)
    checked = call.options.strict or (call.options.warn and call.kind.custom)
    if not checked or media_type(request) != JSON or not request.query.get("fieldValidation"):
        return obj
    doubled = [f'duplicate field "{path}"' for path in duplicate_fields(request.body)]
    if doubled and call.options.strict:
        resource = call.kind.resource
        text = (
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: strict decoding error: {', '.join(doubled)}"
        )
        raise bad_request(text)
    request.warnings.extend(doubled)
    return obj
