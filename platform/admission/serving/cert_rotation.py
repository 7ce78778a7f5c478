"""Rotation of the webhooks' certificates, as pure functions.

API servers trust the ``caBundle`` of a webhook configuration and observe changes with a delay; so
do replicas with a new certificate. Rotation therefore takes three steps, each written to the
Secret common to all replicas:

1. *prepare*: add a new CA to the CA bundle, and store its certificate as the next one.
2. *switch*, once all configurations have had the new CA bundle for a while: serve the next one.
3. *retire*, once the new certificate has been served for a while: remove the old CA.

Each CA signs one certificate; its key is discarded afterwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from cryptography import x509

from ...machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate

_SUBJECT = "batholith-admission"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationPolicy:
    """Lifetimes and delays of the rotation."""

    validity: timedelta = timedelta(days=365)
    """Validity of a certificate."""
    renew_before: timedelta = timedelta(days=120)
    """Remaining validity at which the next certificate is prepared."""
    propagation_delay: float = 60.0
    """Seconds for API servers to observe a changed configuration."""
    old_ca_retention: float = 600.0
    """Seconds for all replicas to serve the new certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertBundle:
    """Contents of the Secret, in PEM."""

    ca_bundle: bytes
    """CA certificates, latest last."""
    certificate: bytes
    key: bytes = field(repr=False)
    next_certificate: bytes = b""
    next_key: bytes = field(default=b"", repr=False)

    @classmethod
    def from_secret_data(cls, data: Mapping[str, bytes]) -> "CertBundle":
        """Decode ``data`` of the Secret."""
        return cls(
            ca_bundle=data.get("ca.crt", b""),
            certificate=data.get("tls.crt", b""),
            key=data.get("tls.key", b""),
            next_certificate=data.get("next.crt", b""),
            next_key=data.get("next.key", b""),
        )

    def to_secret_data(self) -> dict[str, bytes | None]:
        """Encode as ``data`` of the Secret; ``None`` removes a key."""
        return {
            "ca.crt": self.ca_bundle,
            "tls.crt": self.certificate,
            "tls.key": self.key,
            "next.crt": self.next_certificate or None,
            "next.key": self.next_key or None,
        }

    @property
    def is_valid(self) -> bool:
        """Return whether each certificate matches its key and is signed by a CA of the bundle."""
        try:
            authorities = x509.load_pem_x509_certificates(self.ca_bundle)
            pairs = [CertKeyPair.from_pem(self.certificate, self.key)]
            if self.next_certificate or self.next_key:
                pairs.append(CertKeyPair.from_pem(self.next_certificate, self.next_key))
        except ValueError:
            return False
        return all(any(pair.signed_by(one) for one in authorities) for pair in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationFacts:
    """Inputs of the rotation besides the bundle."""

    now: datetime
    hosts: Sequence[str]
    """DNS names and IP addresses of the webhooks."""
    propagated_for: float
    """Seconds for which all configurations have had the CA bundle; negative if not yet."""
    served_for: float
    """Seconds for which the certificate has been served."""


def initial_bundle(facts: RotationFacts, policy: RotationPolicy) -> CertBundle:
    """Return a new bundle."""
    authority, leaf = _issue_certificate(facts, policy)
    return CertBundle(
        ca_bundle=authority.certificate_pem, certificate=leaf.certificate_pem, key=leaf.key_pem
    )


def next_step(
    bundle: CertBundle, facts: RotationFacts, policy: RotationPolicy
) -> tuple[CertBundle | None, float]:
    """Return the next bundle after the valid *bundle*, if a step is due.

    Returns:
        The new bundle or ``None``, and the maximum number of seconds until the next call.
    """
    if bundle.next_certificate:
        if facts.propagated_for < 0:
            return None, policy.propagation_delay
        if facts.propagated_for < policy.propagation_delay:
            return None, policy.propagation_delay - facts.propagated_for
        return _promote_next(bundle), 0
    current = CertKeyPair.from_pem(bundle.certificate, bundle.key)
    left = current.certificate.not_valid_after_utc - facts.now
    if left <= policy.renew_before or not current.covers(facts.hosts):
        return prepare_next(bundle, facts, policy), 0
    due = (left - policy.renew_before).total_seconds()
    signer = _signing_ca(bundle, current)
    if signer == bundle.ca_bundle:
        return None, due
    if facts.served_for < policy.old_ca_retention:
        return None, min(due, policy.old_ca_retention - facts.served_for)
    return replace(bundle, ca_bundle=signer), due


def prepare_next(bundle: CertBundle, facts: RotationFacts, policy: RotationPolicy) -> CertBundle:
    """Return *bundle* with a next certificate, and its CA added to the CA bundle."""
    authority, leaf = _issue_certificate(facts, policy)
    return replace(
        bundle,
        ca_bundle=bundle.ca_bundle.rstrip() + b"\n" + authority.certificate_pem,
        next_certificate=leaf.certificate_pem,
        next_key=leaf.key_pem,
    )


def _promote_next(bundle: CertBundle) -> CertBundle:
    return replace(
        bundle,
        certificate=bundle.next_certificate,
        key=bundle.next_key,
        next_certificate=b"",
        next_key=b"",
    )


def _signing_ca(bundle: CertBundle, current: CertKeyPair) -> bytes:
    """Return the CA that signed the certificate."""
    for authority in x509.load_pem_x509_certificates(bundle.ca_bundle):
        if current.signed_by(authority):
            return CertKeyPair(authority, current.key).certificate_pem
    return bundle.ca_bundle


def _issue_certificate(
    facts: RotationFacts, policy: RotationPolicy
) -> tuple[CertKeyPair, CertKeyPair]:
    authority = create_ca(f"{_SUBJECT}-ca", now=facts.now, validity=policy.validity)
    request = CertificateRequest(subject=_SUBJECT, validity=policy.validity, hosts=facts.hosts)
    return authority, issue_certificate(authority, request, now=facts.now)
