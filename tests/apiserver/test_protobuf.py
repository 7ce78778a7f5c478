"""Request bodies in protobuf: recorded ones, and messages encoded by the test."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.http.protobuf import ProtobufError, decode
from batholith.local.apiserver.kinds import go_types

CAN_I = (
    b'k8s\x00\n2\n\x17authorization.k8s.io/v1\x12\x17SelfSubjectAccessReview\x12?\n\x10\n\x00\x12'
    b'\x00\x1a\x00"\x00*\x002\x008\x00B\x00\x12!\n\x1f\n\x07default\x12\x06create\x1a\x00"\x00*'
    b'\x04pods2\x00:\x00\x1a\x08\x08\x00\x12\x00\x1a\x00 \x00\x1a\x00"\x00'
)  # fmt: skip


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def unknown(api_version: str, kind: str, raw: bytes) -> bytes:
    types = field(1, api_version) + field(2, kind)
    return b"k8s\x00" + field(1, types) + field(2, raw) + field(3, "") + field(4, "")


def test_a_recorded_review_of_kubectl() -> None:
    assert decode(CAN_I) == {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": {
            "resourceAttributes": {"namespace": "default", "verb": "create", "resource": "pods"}
        },
        "status": {},
    }


def test_pointers_keep_zeros_and_inlined_messages_are_merged() -> None:
    volume = field(1, "v") + field(2, field(2, b""))
    limits = field(1, "cpu") + field(2, field(1, "500m"))
    probe = field(1, field(2, field(2, field(1, 1) + field(3, "http")))) + field(4, 10)
    container = (
        field(1, "c") + field(2, "") + field(8, field(1, limits)) + field(10, probe) + field(16, 0)
    )
    spec = field(1, volume) + field(2, container) + field(4, 0) + field(11, 0) + field(25, -7)
    metadata = field(1, "p") + field(8, b"") + field(9, field(1, 1_700_000_000))
    assert decode(unknown("v1", "Pod", field(1, metadata) + field(2, spec))) == {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "deletionTimestamp": "2023-11-14T22:13:20Z"},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                {
                    "name": "c",
                    "resources": {"limits": {"cpu": "500m"}},
                    "livenessProbe": {
                        "httpGet": {"port": "http"},
                        "periodSeconds": 10,
                    },
                }
            ],
            "terminationGracePeriodSeconds": 0,
            "priority": -7,
        },
    }


def test_secrets_are_encoded_in_base64_and_leases_with_microseconds() -> None:
    secret = field(2, field(1, "k") + field(2, b"\x00\xff"))
    assert decode(unknown("v1", "Secret", secret))["data"] == {"k": "AP8="}
    renewed = field(4, field(1, 1_700_000_000) + field(2, 123_456_000))
    lease = decode(unknown("coordination.k8s.io/v1", "Lease", field(2, renewed)))
    assert lease["spec"] == {"renewTime": "2023-11-14T22:13:20.123456Z"}
    early = field(3, field(1, -62_135_596_798 % 2**64))
    lease = decode(unknown("coordination.k8s.io/v1", "Lease", field(2, early)))
    assert lease["spec"] == {"acquireTime": "0001-01-01T00:00:02.000000Z"}


def test_options_are_known_under_any_version() -> None:
    options = decode(unknown("batch/v1", "DeleteOptions", field(1, 0) + field(4, "Background")))
    assert options["gracePeriodSeconds"] == 0
    assert options["propagationPolicy"] == "Background"


def test_every_served_kind_can_be_decoded() -> None:
    for kind in BUILT_IN:
        resource = kind.resource
        assert go_types.message_name(resource.api_version, resource.kind), resource
        assert decode(unknown(resource.api_version, resource.kind, b""))["kind"] == resource.kind


def test_every_type_of_the_table_is_known() -> None:
    known = go_types.SCALARS | go_types.SPECIAL | go_types.messages().keys()
    used = {entry.type for fields in go_types.messages().values() for entry in fields}
    assert {name for name in used - known if not name.endswith(".ExtraValue")} == set()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        CAN_I[:40],
        unknown("v1", "Nope", b""),
        unknown("v1", "Pod", b"\x0a\xff"),
        unknown("v1", "Pod", b"\x0b"),
        unknown("v1", "Pod", field(1, field(1, b"\xff\xfe"))),
        unknown("v1", "Pod", field(1, 7)),
        unknown("v1", "Pod", b"\xff" * 20),
    ],
)
def test_malformed_bodies_are_rejected(body: bytes) -> None:
    with pytest.raises(ProtobufError):
        decode(body)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_rejected_without_an_internal_error(noise: bytes) -> None:
    try:
        decoded: dict[str, Any] = decode(unknown("v1", "Pod", noise))
    except ProtobufError:
        return
    assert decoded["kind"] == "Pod"


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_keep_their_sign(number: int) -> None:
    pod = decode(unknown("v1", "Pod", field(2, field(4, number))))
    assert pod["spec"]["terminationGracePeriodSeconds"] == number
