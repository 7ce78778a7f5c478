"""Certificates of the webhooks and how they follow one another, as pure functions.

API servers trust what a webhook configuration names, and learn of a change a little later; replicas
take up a new certificate a little later, too. So a change goes in steps, each of which is written
into the Secret that all replicas share:

1. *prepare*: a new authority is trusted beside the old one; its certificate lies ready.
2. *switch*, when all configurations have named both for a while: the new certificate is served.
3. *retire*, when it has been served for a while: the old authority is trusted no more.

Each authority signs one certificate, and its key is thrown away with that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from cryptography import x509

from ...machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate

_SUBJECT = "batholith-admission"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationPolicy:
    """How long things last and are waited for."""

    validity: timedelta = timedelta(days=365)
    """How long a certificate is good."""
    renew_before: timedelta = timedelta(days=120)
    """The next is prepared when no more than this is left of it."""
    propagation_delay: float = 60.0
    """Seconds for API servers to hear of a changed configuration."""
    old_ca_retention: float = 600.0
    """Seconds for the last replica to serve the new certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertBundle:
    """What the Secret holds; all of it PEM."""

    ca_bundle: bytes
    """Authorities, the latest at the end."""
    certificate: bytes
    key: bytes = field(repr=False)
    next_certificate: bytes = b""
    next_key: bytes = field(default=b"", repr=False)

    @classmethod
    def from_secret_data(cls, data: Mapping[str, bytes]) -> "CertBundle":
        """From ``data`` of the Secret."""
        return cls(
            ca_bundle=data.get("ca.crt", b""),
            certificate=data.get("tls.crt", b""),
            key=data.get("tls.key", b""),
            next_certificate=data.get("next.crt", b""),
            next_key=data.get("next.key", b""),
        )

    def to_secret_data(self) -> dict[str, bytes | None]:
        """As ``data`` of the Secret; ``None`` takes a key away."""
        return {
            "ca.crt": self.ca_bundle,
            "tls.crt": self.certificate,
            "tls.key": self.key,
            "next.crt": self.next_certificate or None,
            "next.key": self.next_key or None,
        }

    @property
    def is_valid(self) -> bool:
        """Whether each certificate has its key and is signed by somebody who is trusted."""
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
    """What a decision depends on besides the bundle."""

    now: datetime
    hosts: Sequence[str]
    """Names and addresses at which the webhooks are reached."""
    propagated_for: float
    """Seconds for which all configurations have named what is trusted; below 0: not yet."""
    served_for: float
    """Seconds for which the certificate has been the one to serve."""


def initial_bundle(facts: RotationFacts, policy: RotationPolicy) -> CertBundle:
    """The first bundle."""
    authority, leaf = _issue_certificate(facts, policy)
    return CertBundle(
        ca_bundle=authority.certificate_pem, certificate=leaf.certificate_pem, key=leaf.key_pem
    )


def next_step(
    bundle: CertBundle, facts: RotationFacts, policy: RotationPolicy
) -> tuple[CertBundle | None, float]:
    """What *bundle*, which is sound, is to become now, if anything.

    Returns:
        The new bundle; or ``None``, and after how many seconds to ask again at the latest.
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
    """*bundle* with a certificate that lies ready, signed by an authority that is trusted."""
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
    """The one authority that signed the certificate."""
    for authority in x509.load_pem_x509_certificates(bundle.ca_bundle):
        if current.signed_by(authority):
            return CertKeyPair(authority, current.key).certificate_pem
    return bundle.ca_bundle


def _issue_certificate(
    facts: RotationFacts, policy: RotationPolicy
) -> tuple[CertKeyPair, CertKeyPair]:
    authority = create_ca(f"{_SUBJECT}-ca", now=facts.now, validity=policy.validity)
    wanted = CertificateRequest(subject=_SUBJECT, validity=policy.validity, hosts=facts.hosts)
    return authority, issue_certificate(authority, wanted, now=facts.now)
