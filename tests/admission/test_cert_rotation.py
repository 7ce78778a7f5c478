"""Steps of the certificate rotation."""

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


def test_the_initial_bundle_is_valid_and_covers_its_hosts(initial_bundle: CertBundle) -> None:
    assert initial_bundle.is_valid
    certificate = x509.load_pem_x509_certificate(initial_bundle.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == list(HOSTS)
    assert next_step(initial_bundle, facts(), POLICY) == (None, 6 * DAY)


def test_nothing_happens_until_renewal_is_due(initial_bundle: CertBundle) -> None:
    assert next_step(initial_bundle, facts(days=5.5), POLICY) == (None, DAY / 2)


def test_the_next_ca_is_trusted_before_its_certificate_is_served(
    initial_bundle: CertBundle,
) -> None:
    step, _ = next_step(initial_bundle, facts(days=6), POLICY)
    assert step is not None
    assert step.is_valid
    assert (step.certificate, step.key) == (initial_bundle.certificate, initial_bundle.key)
    assert step.ca_bundle.startswith(initial_bundle.ca_bundle)
    assert ca_certificates(step) == 2


@pytest.mark.parametrize(("propagated_for", "delay"), [(-1, 60), (0, 60), (59, 1)])
def test_the_next_certificate_is_not_served_before_propagation(
    prepared_bundle: CertBundle, propagated_for: float, delay: float
) -> None:
    assert next_step(prepared_bundle, facts(days=7, propagated_for=propagated_for), POLICY) == (
        None,
        delay,
    )


def test_after_the_switch_the_old_ca_is_still_trusted(prepared_bundle: CertBundle) -> None:
    step, _ = next_step(prepared_bundle, facts(days=7, propagated_for=60), POLICY)
    assert step is not None
    assert (step.certificate, step.key) == (
        prepared_bundle.next_certificate,
        prepared_bundle.next_key,
    )
    assert step.ca_bundle == prepared_bundle.ca_bundle
    assert step.to_secret_data()["next.key"] is None, "nothing lies ready any more"
    assert step.is_valid


def test_the_old_ca_is_removed_after_its_retention(
    prepared_bundle: CertBundle,
) -> None:
    served, _ = next_step(prepared_bundle, facts(days=7, propagated_for=60), POLICY)
    assert served is not None
    assert next_step(served, facts(days=7, served_for=599), POLICY) == (None, 1)
    last, _ = next_step(served, facts(days=7, served_for=600), POLICY)
    assert last is not None
    assert (ca_certificates(last), last.is_valid, last.certificate) == (1, True, served.certificate)
    assert next_step(last, facts(days=7, served_for=601), POLICY) == (None, 6 * DAY)


def test_new_hosts_require_a_new_certificate(initial_bundle: CertBundle) -> None:
    step, _ = next_step(initial_bundle, facts(hosts=("other.ns.svc",)), POLICY)
    assert step is not None
    assert step.next_certificate


def test_an_expired_certificate_is_replaced(initial_bundle: CertBundle) -> None:
    step, _ = next_step(initial_bundle, facts(days=11), POLICY)
    assert step is not None
    assert step.is_valid


def test_secret_data_round_trips(prepared_bundle: CertBundle) -> None:
    stored = {
        name: value for name, value in prepared_bundle.to_secret_data().items() if value is not None
    }
    assert CertBundle.from_secret_data(stored) == prepared_bundle


def test_repr_does_not_contain_keys(prepared_bundle: CertBundle) -> None:
    assert b"PRIVATE" not in repr(prepared_bundle).encode()


@pytest.mark.parametrize(
    "field", ["ca_bundle", "certificate", "key", "next_certificate", "next_key"]
)
def test_a_damaged_bundle_is_invalid(prepared_bundle: CertBundle, field: str) -> None:
    assert not replace(prepared_bundle, **{field: b"nonsense"}).is_valid


def test_a_foreign_certificate_makes_the_bundle_invalid(
    initial_bundle: CertBundle, prepared_bundle: CertBundle
) -> None:
    foreign = new_initial_bundle(facts(), POLICY)
    assert not replace(initial_bundle, certificate=foreign.certificate).is_valid, "another key"
    assert not replace(initial_bundle, ca_bundle=foreign.ca_bundle).is_valid, (
        "signed by no CA of the bundle"
    )
    assert not replace(prepared_bundle, ca_bundle=initial_bundle.ca_bundle).is_valid, (
        "nor for the next"
    )
