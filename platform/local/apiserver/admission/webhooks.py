"""The webhooks of MutatingWebhookConfigurations and ValidatingWebhookConfigurations.

Pure: a webhook whose response is not known yet is not called here, see :mod:`.responses`.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ....machinery.cel.environment import CompileError, EvaluationError
from ....model.selectors import SelectorError
from ..authorization.authorizer import Authorizer
from ..errors.status import bad_request, forbidden, internal
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..kinds.patches import PatchError, json_patch
from .attributes import AdmissionAttributes
from .conditions import Conditions, in_kind, subject_in
from .matching import Match, NamespaceReader, is_exempt
from .mutations import as_mutations_see, finish
from .responses import WebhookCall, WebhookNeededError
from .reviews import (
    REVIEW_VERSIONS,
    InvalidResponseError,
    PatchDecodeError,
    ReviewResult,
    read_response,
    rejection,
    review_request,
)

log = logging.getLogger(__name__)

MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
_DEFAULT_TIMEOUT = 10


class Hook(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One webhook."""

    uid: str
    """Identifies it and its content."""

    name: str
    match: Match
    conditions: Conditions
    client_config: Json
    timeout: int
    """Seconds."""

    version: str
    """Of its AdmissionReviews; empty: it accepts none that the server knows."""

    ignores_failures: bool
    dry_run_safe: bool
    reinvoked: bool

    def failed(self, why: str) -> None:
        """Fail the write, unless the webhook's failures are ignored.

        Raises:
            StatusError: 500.
        """
        text = f'failed calling webhook "{self.name}": {why}'
        if self.ignores_failures:
            log.warning("%s; ignored, by its failurePolicy", text)
            return
        error = internal(text)
        error.details = {"causes": [{"message": text}]}
        raise error


class Reinvocation(NamedTuple):
    """Webhooks that are called again after all have been called."""

    after_webhooks: Sequence[Hook]
    """If only webhooks have changed the object."""

    after_others: Sequence[Hook]
    """If anything else has changed it since."""


class _Invocation(NamedTuple):
    hook: Hook
    kind: KindInfo


class Webhooks:
    """All webhooks that are configured, in their order."""

    def __init__(
        self,
        *,
        namespace: NamespaceReader,
        equivalents: Callable[[KindInfo], Sequence[KindInfo]],
        authorizer: Authorizer,
    ) -> None:
        self._authorizer = authorizer
        self._namespace = namespace
        self._equivalents = equivalents
        self.mutating: tuple[Hook, ...] = ()
        self.validating: tuple[Hook, ...] = ()

    def configure(self, kind: str, configurations: Sequence[Json]) -> None:
        """Replace all configurations of *kind*."""
        ordered = sorted(configurations, key=lambda each: str(each["metadata"]["name"]))
        hooks = tuple(hook for each in ordered for hook in _hooks(each, self._authorizer))
        if kind == MUTATING:
            self.mutating = hooks
        else:
            self.validating = hooks

    def mutate(self, attributes: AdmissionAttributes, obj: Json) -> tuple[Json, "Reinvocation"]:
        """Return *obj* as mutating webhooks change it, and which of them are called again.

        Raises:
            WebhookNeededError: a webhook must be called first.
            StatusError: a webhook denies the write, or cannot be called.
        """
        again: list[Hook] = []
        reinvocable: list[Hook] = []
        for hook in self.mutating:
            changed = self._mutate_by(hook, attributes, obj)
            if changed is None:
                continue
            if changed != obj:
                again = list(reinvocable)
                obj = changed
            if hook.reinvoked:
                reinvocable.append(hook)
        return obj, Reinvocation(tuple(again), tuple(reinvocable))

    def mutate_again(
        self, attributes: AdmissionAttributes, obj: Json, hooks: Sequence[Hook]
    ) -> Json:
        """Return *obj* as some webhooks change it, which were called for the write before.

        Raises:
            WebhookNeededError: a webhook must be called first.
            StatusError: a webhook denies the write, or cannot be called.
        """
        for hook in hooks:
            obj = self._mutate_by(hook, attributes, obj) or obj
        return obj

    def _mutate_by(self, hook: Hook, attributes: AdmissionAttributes, obj: Json) -> Json | None:
        """Return *obj* as *hook* changes it; ``None`` if it does not apply."""
        kind = self._kind_for(hook, attributes, obj)
        if kind is None:
            return None
        shown = as_mutations_see(attributes, obj)
        response = self._results(attributes, [_Invocation(hook, kind)], shown, mutating=True)[0]
        if response is None:
            return obj
        if attributes.warnings is not None:
            attributes.warnings.extend(response.warnings)
        if not response.allowed:
            raise rejection(hook.name, response.result)
        if not response.patch:
            return obj
        return _patched(attributes, kind, obj, response.patch)

    def validate(self, attributes: AdmissionAttributes, obj: Json | None) -> None:
        """Let validating webhooks check a write.

        Raises:
            WebhookNeededError: webhooks must be called first.
            StatusError: a webhook denies the write, or cannot be called.
        """
        if is_exempt(attributes.kind.resource):
            return
        found = []
        for hook in self.validating:
            kind = self._kind_for(hook, attributes, obj)
            if kind is not None:
                found.append(_Invocation(hook, kind))
        if not found:
            return
        responses = self._results(attributes, found, obj, mutating=False)
        for invocation, response in zip(found, responses, strict=True):
            if response is None:
                continue
            if attributes.warnings is not None:
                attributes.warnings.extend(response.warnings)
            if not response.allowed:
                raise rejection(invocation.hook.name, response.result)

    def _kind_for(
        self, hook: Hook, attributes: AdmissionAttributes, obj: Json | None
    ) -> KindInfo | None:
        kind = hook.match.resource_for(
            attributes,
            obj,
            equivalents=self._equivalents(attributes.kind),
            namespace=self._namespace,
        )
        if kind is None:
            return None
        try:
            holds = hook.conditions.match(subject_in(kind, attributes, obj))
        except (CompileError, EvaluationError) as error:
            if hook.ignores_failures:
                log.warning("match conditions of %s: %s", hook.name, error)
                return None
            raise forbidden(attributes.kind.resource, attributes.name, str(error)) from error
        return kind if holds else None

    def _results(
        self,
        attributes: AdmissionAttributes,
        invocations: Sequence[_Invocation],
        obj: Json | None,
        *,
        mutating: bool,
    ) -> list[ReviewResult | None]:
        """Return the result of each webhook; ``None``: it failed, and its failures are ignored."""
        responses = attributes.responses
        if responses is None:
            raise internal("a write of the server itself is not reviewed by webhooks")
        missing: list[WebhookCall] = []
        found: list[ReviewResult | None] = []
        for hook, kind in invocations:
            if attributes.dry_run and not hook.dry_run_safe:
                raise bad_request(f'admission webhook "{hook.name}" does not support dry run')
            if not hook.version:
                hook.failed(
                    "could not create admission objects: webhook does not accept known "
                    "AdmissionReview versions (v1, v1beta1)"
                )
                found.append(None)
                continue
            shown, old = in_kind(kind, attributes, obj, attributes.old_object)
            request = review_request(attributes, kind, shown, old)
            key = hashlib.sha256(msgspec.json.encode(request, order="sorted")).digest()
            response = responses.find(hook, key)
            if response is None:
                missing.append(WebhookCall(hook, request, key))
            elif response.response is None:
                hook.failed(response.error)
                found.append(None)
            else:
                found.append(_read(hook, response.response, mutating=mutating))
        if missing:
            new = attributes.operation == "CREATE" and obj is not None
            created = obj["metadata"] if new and obj is not None and not mutating else None
            raise WebhookNeededError(missing, created)
        return found


def _read(hook: Hook, response: Json, *, mutating: bool) -> ReviewResult | None:
    try:
        return read_response(response, mutating=mutating, strict=hook.version == "v1")
    except InvalidResponseError as error:
        hook.failed(f"received invalid webhook response: {error}")
    except PatchDecodeError as error:
        hook.failed(f"received undecodable patch in webhook response: {error}")
    return None


def _hooks(configuration: Json, authorizer: Authorizer) -> Iterator[Hook]:
    """Yield the webhooks of one configuration."""
    mutating = configuration["kind"] == MUTATING
    metadata = configuration["metadata"]
    for index, each in enumerate(configuration.get("webhooks") or ()):
        versions = each.get("admissionReviewVersions") or ()
        version = next((name for name in versions if name in REVIEW_VERSIONS), "")
        try:
            match = Match(each, each.get("rules") or ())
        except (SelectorError, msgspec.ValidationError):
            # Only a configuration that an older version has stored.
            log.exception("webhook %s has an invalid selector and is not called", each.get("name"))
            continue
        yield Hook(
            uid=f"{metadata['uid']}/{metadata.get('generation', 0)}/{index}",
            name=str(each.get("name", "")),
            match=match,
            conditions=Conditions(each.get("matchConditions") or (), authorizer),
            client_config=each.get("clientConfig") or {},
            timeout=each.get("timeoutSeconds") or _DEFAULT_TIMEOUT,
            version=version,
            ignores_failures=each.get("failurePolicy") == "Ignore",
            dry_run_safe=each.get("sideEffects") in ("None", "NoneOnDryRun"),
            reinvoked=mutating and each.get("reinvocationPolicy") == "IfNeeded",
        )


def _patched(
    attributes: AdmissionAttributes, kind: KindInfo, obj: Json, patch: list[dict[str, Any]]
) -> Json:
    """Return *obj* as a webhook patches it, which saw it in *kind*."""
    seen = in_kind(kind, attributes, as_mutations_see(attributes, obj))[0]
    try:
        changed: Json = json_patch(seen, patch)
    except PatchError as error:
        raise internal(str(error)) from error
    return finish(attributes, kind, changed, obj, by="a webhook")
