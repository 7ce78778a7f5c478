"""The steps from one certificate to the next."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from batholith.admission.serving.cert_rotation import (
    Bundle,
    Facts,
    Lifetimes,
    begin,
    next_step,
    prepare,
)

HOSTS = ("batholith-admission.volcano-system.svc",)
LIFETIMES = Lifetimes(lasts=timedelta(days=10), renew=timedelta(days=4), settle=60, retire=600)
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 24 * 3600


def facts(
    *,
    days: float = 0,
    spread_for: float = -1,
    served_for: float = 0,
    hosts: tuple[str, ...] = HOSTS,
) -> Facts:
    now = START + timedelta(days=days)
    return Facts(now=now, hosts=hosts, spread_for=spread_for, served_for=served_for)


def authorities(bundle: Bundle) -> int:
    return len(x509.load_pem_x509_certificates(bundle.trusted))


@pytest.fixture(scope="module")
def first() -> Bundle:
    return begin(facts(), LIFETIMES)


@pytest.fixture(scope="module")
def prepared(first: Bundle) -> Bundle:
    return prepare(first, facts(days=7), LIFETIMES)


def test_the_first_is_sound_and_names_its_hosts(first: Bundle) -> None:
    assert first.sound
    certificate = x509.load_pem_x509_certificate(first.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == list(HOSTS)
    assert next_step(first, facts(), LIFETIMES) == (None, 6 * DAY)


def test_it_is_left_alone_until_little_is_left_of_it(first: Bundle) -> None:
    assert next_step(first, facts(days=5.5), LIFETIMES) == (None, DAY / 2)


def test_the_next_is_trusted_before_it_is_served(first: Bundle) -> None:
    step, _ = next_step(first, facts(days=6), LIFETIMES)
    assert step is not None
    assert step.sound
    assert (step.certificate, step.key) == (first.certificate, first.key)
    assert step.trusted.startswith(first.trusted)
    assert authorities(step) == 2


@pytest.mark.parametrize(("spread_for", "pause"), [(-1, 60), (0, 60), (59, 1)])
def test_it_is_not_served_before_all_have_heard_of_it(
    prepared: Bundle, spread_for: float, pause: float
) -> None:
    assert next_step(prepared, facts(days=7, spread_for=spread_for), LIFETIMES) == (None, pause)


def test_then_it_is_served_and_the_former_is_still_trusted(prepared: Bundle) -> None:
    step, _ = next_step(prepared, facts(days=7, spread_for=60), LIFETIMES)
    assert step is not None
    assert (step.certificate, step.key) == (prepared.next_certificate, prepared.next_key)
    assert step.trusted == prepared.trusted
    assert step.data()["next.key"] is None, "nothing lies ready any more"
    assert step.sound


def test_the_former_authority_goes_when_the_last_replica_has_changed(prepared: Bundle) -> None:
    served, _ = next_step(prepared, facts(days=7, spread_for=60), LIFETIMES)
    assert served is not None
    assert next_step(served, facts(days=7, served_for=599), LIFETIMES) == (None, 1)
    last, _ = next_step(served, facts(days=7, served_for=600), LIFETIMES)
    assert last is not None
    assert (authorities(last), last.sound, last.certificate) == (1, True, served.certificate)
    assert next_step(last, facts(days=7, served_for=601), LIFETIMES) == (None, 6 * DAY)


def test_another_name_needs_another_certificate(first: Bundle) -> None:
    step, _ = next_step(first, facts(hosts=("other.ns.svc",)), LIFETIMES)
    assert step is not None
    assert step.next_certificate


def test_one_that_has_run_out_is_replaced_too(first: Bundle) -> None:
    step, _ = next_step(first, facts(days=11), LIFETIMES)
    assert step is not None
    assert step.sound


def test_what_is_stored_is_what_is_read(prepared: Bundle) -> None:
    stored = {name: value for name, value in prepared.data().items() if value is not None}
    assert Bundle.read(stored) == prepared


def test_keys_are_not_shown(prepared: Bundle) -> None:
    assert b"PRIVATE" not in repr(prepared).encode()


@pytest.mark.parametrize("field", ["trusted", "certificate", "key", "next_certificate", "next_key"])
def test_damage_is_noticed(prepared: Bundle, field: str) -> None:
    assert not replace(prepared, **{field: b"nonsense"}).sound


def test_a_stranger_among_the_certificates_is_noticed(first: Bundle, prepared: Bundle) -> None:
    stranger = begin(facts(), LIFETIMES)
    assert not replace(first, certificate=stranger.certificate).sound, "another key"
    assert not replace(first, trusted=stranger.trusted).sound, "nobody vouches for it"
    assert not replace(prepared, trusted=first.trusted).sound, "nor for the next"
