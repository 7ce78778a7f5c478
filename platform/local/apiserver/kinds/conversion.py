"""Conversion of custom objects between versions, by the webhook that their definition names.

Writes are planned without an await, and reads render objects without one. A conversion that they
need and that is not available yet raises :class:`ConversionNeededError`: the caller asks the
webhook, which is what :mod:`..verbs.conversions` does, and plans again.
"""

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..errors.fields import FieldError
from .metadata import validate_annotations, validate_labels

Json = dict[str, Any]
Convert = Callable[[Json], Json]

REVIEW_VERSIONS = ("v1", "v1beta1")
"""Versions of ConversionReview that the server sends, as kube-apiserver."""

_TYPE_META = {"apiVersion", "kind"}
_MAX_KEPT = 8 * 1024 * 1024
"""Bytes of converted objects that are kept for writes to be planned again."""


class ConversionError(Exception):
    """An object cannot be converted; the text is what follows the name of the conversion."""


class ConversionNeededError(Exception):
    """A plan needs *data*, an object as JSON, in another version."""

    def __init__(self, webhook: "ConversionWebhook", data: bytes, api_version: str) -> None:
        super().__init__("a conversion webhook must be called")
        self.webhook = webhook
        self.data = data
        self.api_version = api_version


class ConversionWebhook:
    """The conversion webhook of one definition, and the latest objects that it has converted."""

    def __init__(self, config: Json) -> None:
        self.client_config: Json = config.get("clientConfig") or {}
        versions = config.get("conversionReviewVersions") or ()
        self.review_version = next((each for each in versions if each in REVIEW_VERSIONS), "")
        self.prune: dict[str, Callable[[Json], Any]] = {}
        """Removes unknown fields of an object, by the API versions that are served."""

        self._kept: dict[tuple[str, bytes], bytes] = {}
        self._size = 0

    def to(self, api_version: str) -> Convert:
        """Return the conversion of objects to a version.

        It raises :class:`ConversionNeededError` if the webhook has not converted the object.
        """

        def convert(obj: Json) -> Json:
            if obj["apiVersion"] == api_version:
                return obj
            if obj.keys() <= _TYPE_META:
                return {**obj, "apiVersion": api_version}
            data = msgspec.json.encode(obj)
            found = self._kept.get((api_version, _digest(data)))
            if found is None:
                raise ConversionNeededError(self, data, api_version)
            converted: Json = msgspec.json.decode(found)
            return converted

        return convert

    def keep(self, data: bytes, api_version: str, converted: bytes) -> None:
        """Keep a converted object for plans that need it; the oldest ones are dropped."""
        key = api_version, _digest(data)
        self._size += len(converted) - len(self._kept.pop(key, b""))
        self._kept[key] = converted
        while self._size > _MAX_KEPT and len(self._kept) > 1:
            self._size -= len(self._kept.pop(next(iter(self._kept))))

    def review(self, uid: str, objects: Sequence[Json], api_version: str) -> bytes:
        """Return the body that asks to convert *objects*.

        Raises:
            ConversionError: the webhook understands no version of the review.
        """
        if not self.review_version:
            raise ConversionError("no supported conversion review versions")
        request = {"uid": uid, "desiredAPIVersion": api_version, "objects": objects}
        head = {"kind": "ConversionReview", "apiVersion": self._review_api_version}
        return msgspec.json.encode({**head, "request": request})

    @property
    def _review_api_version(self) -> str:
        return f"apiextensions.k8s.io/{self.review_version}"

    def read(
        self, body: bytes, uid: str, originals: Sequence[Json], api_version: str
    ) -> list[Json]:
        """Return the objects in the response to a review, in the version that was asked for.

        Raises:
            ConversionError: they are not what was asked for, or the webhook reports a failure.
        """
        converted = self._read_response(body, uid)
        if len(converted) != len(originals):
            raise ConversionError(f"returned {len(converted)} objects, expected {len(originals)}")
        for index, (original, each) in enumerate(zip(originals, converted, strict=True)):
            where = "invalid object" if len(originals) == 1 else "invalid converted object"
            at = "" if len(originals) == 1 else f" at index {index}"
            if problem := _problem(original, each, api_version):
                raise ConversionError(f"returned {where}{at}: {problem}")
            _restore_metadata(original, each, f"in object at index {index}" if at else "")
            if api_version in self.prune:
                self.prune[api_version](each)
        return converted

    def _read_response(self, body: bytes, uid: str) -> list[Json]:
        try:
            review = msgspec.json.decode(body, type=_Review)
        except msgspec.DecodeError as error:
            raise ConversionError(f"failed: {error}") from error
        response = review.response
        found = review.api_version, review.kind
        if self.review_version == "v1" and found != (self._review_api_version, "ConversionReview"):
            raise ConversionError(
                f"failed: expected webhook response of {self._review_api_version}, "
                f"Kind=ConversionReview, got {review.api_version}, Kind={review.kind}"
            )
        if response is None:
            raise ConversionError("failed: no response provided")
        if self.review_version == "v1" and response.uid != uid:
            raise ConversionError(f'failed: expected response.uid="{uid}", got "{response.uid}"')
        if response.result.status != "Success":
            status = response.result.status
            text = f"response.result.status was '{status}', not 'Success'"
            raise ConversionError(f"failed: {response.result.message or text}")
        return response.converted_objects or []


class _Result(msgspec.Struct):
    status: str = ""
    message: str = ""


class _Response(msgspec.Struct, rename="camel"):
    uid: str = ""
    result: _Result = msgspec.field(default_factory=_Result)
    converted_objects: list[Json] | None = None


class _Review(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    response: _Response | None = None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _problem(original: Json, converted: Json, api_version: str) -> str:
    """Return what is wrong with a converted object, but for its labels and annotations."""
    if converted.get("apiVersion") != api_version:
        got = converted.get("apiVersion", "")
        return f"invalid groupVersion (expected {api_version}, received {got})"
    if converted.get("kind") != original["kind"]:
        got = converted.get("kind", "")
        return f"invalid kind (expected {original['kind']}, received {got})"
    before, after = original.get("metadata") or {}, converted.get("metadata")
    after = after if isinstance(after, dict) else {}
    for key, shown in (("name", "name"), ("namespace", "namespace"), ("uid", "UID")):
        expected, got = before.get(key) or "", after.get(key) or ""
        if expected != got:
            return f"must have the same {shown}: {expected} != {got}"
    return ""


def _restore_metadata(original: Json, converted: Json, where: str) -> None:
    """Give *converted* the metadata of the original, but keep its labels and annotations.

    Raises:
        ConversionError: they are invalid.
    """
    start = f"returned invalid metadata {where}".rstrip()
    if "metadata" not in converted:
        raise ConversionError(f"{start}: missing metadata in converted object")
    sent = converted["metadata"]
    if not isinstance(sent, dict):
        raise ConversionError(f"{start}: invalid metadata in converted object")
    metadata = copy.deepcopy(original.get("metadata") or {})
    for key, validate in _CHANGEABLE.items():
        value = sent.get(key)
        if value is None:
            metadata.pop(key, None)
            continue
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise ConversionError(f"{start}: metadata.{key} must be a map of strings")
        if value != metadata.get(key) and (errors := validate(value, f"metadata.{key}")):
            raise ConversionError(f"{start}: {', '.join(each.message for each in errors)}")
        metadata[key] = value
    converted["metadata"] = metadata


_CHANGEABLE: Mapping[str, Callable[[Any, str], list[FieldError]]] = {
    "labels": validate_labels,
    "annotations": validate_annotations,
}
"""Metadata that a webhook may change, and its validation."""
