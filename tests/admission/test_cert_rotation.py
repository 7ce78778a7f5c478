"""The steps from one certificate to the next."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from batholith.admission.serving.cert_rotation import (
    CertBundle,
    RotationFacts,
    RotationPolicy,
    initial_bundle,
    next_step,
    prepare_next,
)

HOSTS = ("batholith-admission.volcano-system.svc",)
LIFETIMES = RotationPolicy(
    validity=timedelta(days=10),
    renew_before=timedelta(days=4),
    propagation_delay=60,
    old_ca_retention=600,
)
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 24 * 3600


def facts(
    *,
    days: float = 0,
    spread_for: float = -1,
    served_for: float = 0,
    hosts: tuple[str, ...] = HOSTS,
) -> RotationFacts:
    now = START + timedelta(days=days)
    return RotationFacts(now=now, hosts=hosts, propagated_for=spread_for, served_for=served_for)


def authorities(bundle: CertBundle) -> int:
    return len(x509.load_pem_x509_certificates(bundle.ca_bundle))


@pytest.fixture(scope="module")
def first() -> CertBundle:
    return initial_bundle(facts(), LIFETIMES)


@pytest.fixture(scope="module")
def prepared(first: CertBundle) -> CertBundle:
    return prepare_next(first, facts(days=7), LIFETIMES)


def test_the_first_is_sound_and_names_its_hosts(first: CertBundle) -> None:
    assert first.is_valid
    certificate = x509.load_pem_x509_certificate(first.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == list(HOSTS)
    assert next_step(first, facts(), LIFETIMES) == (None, 6 * DAY)


def test_it_is_left_alone_until_little_is_left_of_it(first: CertBundle) -> None:
    assert next_step(first, facts(days=5.5), LIFETIMES) == (None, DAY / 2)


def test_the_next_is_trusted_before_it_is_served(first: CertBundle) -> None:
    step, _ = next_step(first, facts(days=6), LIFETIMES)
    assert step is not None
    assert step.is_valid
    assert (step.certificate, step.key) == (first.certificate, first.key)
    assert step.ca_bundle.startswith(first.ca_bundle)
    assert authorities(step) == 2


@pytest.mark.parametrize(("spread_for", "pause"), [(-1, 60), (0, 60), (59, 1)])
def test_it_is_not_served_before_all_have_heard_of_it(
    prepared: CertBundle, spread_for: float, pause: float
) -> None:
    assert next_step(prepared, facts(days=7, spread_for=spread_for), LIFETIMES) == (None, pause)


def test_then_it_is_served_and_the_former_is_still_trusted(prepared: CertBundle) -> None:
    step, _ = next_step(prepared, facts(days=7, spread_for=60), LIFETIMES)
    assert step is not None
    assert (step.certificate, step.key) == (prepared.next_certificate, prepared.next_key)
    assert step.ca_bundle == prepared.ca_bundle
    assert step.to_secret_data()["next.key"] is None, "nothing lies ready any more"
    assert step.is_valid


def test_the_former_authority_goes_when_the_last_replica_has_changed(prepared: CertBundle) -> None:
    served, _ = next_step(prepared, facts(days=7, spread_for=60), LIFETIMES)
    assert served is not None
    assert next_step(served, facts(days=7, served_for=599), LIFETIMES) == (None, 1)
    last, _ = next_step(served, facts(days=7, served_for=600), LIFETIMES)
    assert last is not None
    assert (authorities(last), last.is_valid, last.certificate) == (1, True, served.certificate)
    assert next_step(last, facts(days=7, served_for=601), LIFETIMES) == (None, 6 * DAY)


def test_another_name_needs_another_certificate(first: CertBundle) -> None:
    step, _ = next_step(first, facts(hosts=("other.ns.svc",)), LIFETIMES)
    assert step is not None
    assert step.next_certificate


def test_one_that_has_run_out_is_replaced_too(first: CertBundle) -> None:
    step, _ = next_step(first, facts(days=11), LIFETIMES)
    assert step is not None
    assert step.is_valid


def test_what_is_stored_is_what_is_read(prepared: CertBundle) -> None:
    stored = {name: value for name, value in prepared.to_secret_data().items() if value is not None}
    assert CertBundle.from_secret_data(stored) == prepared


def test_keys_are_not_shown(prepared: CertBundle) -> None:
    assert b"PRIVATE" not in repr(prepared).encode()


@pytest.mark.parametrize("field", ["trusted", "certificate", "key", "next_certificate", "next_key"])
def test_damage_is_noticed(prepared: CertBundle, field: str) -> None:
    assert not replace(prepared, **{field: b"nonsense"}).is_valid


def test_a_stranger_among_the_certificates_is_noticed(
    first: CertBundle, prepared: CertBundle
) -> None:
    stranger = initial_bundle(facts(), LIFETIMES)
    assert not replace(first, certificate=stranger.certificate).is_valid, "another key"
    assert not replace(first, ca_bundle=stranger.ca_bundle).is_valid, "nobody vouches for it"
    assert not replace(prepared, ca_bundle=first.ca_bundle).is_valid, "nor for the next"
