"""The steps from one certificate to the next."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from batholith.admission.serving.cert_rotation import (
    CertBundle,
    RotationFacts,
    RotationPolicy,
    next_step,
    prepare_next,
)
from batholith.admission.serving.cert_rotation import (
    initial_bundle as new_initial_bundle,
)

HOSTS = ("batholith-admission.volcano-system.svc",)
POLICY = RotationPolicy(
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
    propagated_for: float = -1,
    served_for: float = 0,
    hosts: tuple[str, ...] = HOSTS,
) -> RotationFacts:
    now = START + timedelta(days=days)
    return RotationFacts(now=now, hosts=hosts, propagated_for=propagated_for, served_for=served_for)


def ca_certificates(bundle: CertBundle) -> int:
    return len(x509.load_pem_x509_certificates(bundle.ca_bundle))


@pytest.fixture(scope="module")
def initial_bundle() -> CertBundle:
    return new_initial_bundle(facts(), POLICY)


@pytest.fixture(scope="module")
def prepared_bundle(initial_bundle: CertBundle) -> CertBundle:
    return prepare_next(initial_bundle, facts(days=7), POLICY)


def test_the_first_is_sound_and_names_its_hosts(initial_bundle: CertBundle) -> None:
    assert initial_bundle.is_valid
    certificate = x509.load_pem_x509_certificate(initial_bundle.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == list(HOSTS)
    assert next_step(initial_bundle, facts(), POLICY) == (None, 6 * DAY)


def test_it_is_left_alone_until_little_is_left_of_it(initial_bundle: CertBundle) -> None:
    assert next_step(initial_bundle, facts(days=5.5), POLICY) == (None, DAY / 2)


def test_the_next_is_trusted_before_it_is_served(initial_bundle: CertBundle) -> None:
    step, _ = next_step(initial_bundle, facts(days=6), POLICY)
    assert step is not None
    assert step.is_valid
    assert (step.certificate, step.key) == (initial_bundle.certificate, initial_bundle.key)
    assert step.ca_bundle.startswith(initial_bundle.ca_bundle)
    assert ca_certificates(step) == 2


@pytest.mark.parametrize(("spread_for", "pause"), [(-1, 60), (0, 60), (59, 1)])
def test_it_is_not_served_before_all_have_heard_of_it(
    prepared_bundle: CertBundle, spread_for: float, pause: float
) -> None:
    assert next_step(prepared_bundle, facts(days=7, propagated_for=spread_for), POLICY) == (
        None,
        pause,
    )


def test_then_it_is_served_and_the_former_is_still_trusted(prepared_bundle: CertBundle) -> None:
    step, _ = next_step(prepared_bundle, facts(days=7, propagated_for=60), POLICY)
    assert step is not None
    assert (step.certificate, step.key) == (
        prepared_bundle.next_certificate,
        prepared_bundle.next_key,
    )
    assert step.ca_bundle == prepared_bundle.ca_bundle
    assert step.to_secret_data()["next.key"] is None, "nothing lies ready any more"
    assert step.is_valid


def test_the_former_authority_goes_when_the_last_replica_has_changed(
    prepared_bundle: CertBundle,
) -> None:
    served, _ = next_step(prepared_bundle, facts(days=7, propagated_for=60), POLICY)
    assert served is not None
    assert next_step(served, facts(days=7, served_for=599), POLICY) == (None, 1)
    last, _ = next_step(served, facts(days=7, served_for=600), POLICY)
    assert last is not None
    assert (ca_certificates(last), last.is_valid, last.certificate) == (1, True, served.certificate)
    assert next_step(last, facts(days=7, served_for=601), POLICY) == (None, 6 * DAY)


def test_another_name_needs_another_certificate(initial_bundle: CertBundle) -> None:
    step, _ = next_step(initial_bundle, facts(hosts=("other.ns.svc",)), POLICY)
    assert step is not None
    assert step.next_certificate


def test_one_that_has_run_out_is_replaced_too(initial_bundle: CertBundle) -> None:
    step, _ = next_step(initial_bundle, facts(days=11), POLICY)
    assert step is not None
    assert step.is_valid


def test_what_is_stored_is_what_is_read(prepared_bundle: CertBundle) -> None:
    stored = {
        name: value for name, value in prepared_bundle.to_secret_data().items() if value is not None
    }
    assert CertBundle.from_secret_data(stored) == prepared_bundle


def test_keys_are_not_shown(prepared_bundle: CertBundle) -> None:
    assert b"PRIVATE" not in repr(prepared_bundle).encode()


@pytest.mark.parametrize(
    "field", ["ca_bundle", "certificate", "key", "next_certificate", "next_key"]
)
def test_damage_is_noticed(prepared_bundle: CertBundle, field: str) -> None:
    assert not replace(prepared_bundle, **{field: b"nonsense"}).is_valid


def test_a_stranger_among_the_certificates_is_noticed(
    initial_bundle: CertBundle, prepared_bundle: CertBundle
) -> None:
    stranger = new_initial_bundle(facts(), POLICY)
    assert not replace(initial_bundle, certificate=stranger.certificate).is_valid, "another key"
    assert not replace(initial_bundle, ca_bundle=stranger.ca_bundle).is_valid, (
        "nobody vouches for it"
    )
    assert not replace(prepared_bundle, ca_bundle=initial_bundle.ca_bundle).is_valid, (
        "nor for the next"
    )
