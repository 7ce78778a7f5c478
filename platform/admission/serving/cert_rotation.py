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
class Lifetimes:
    """How long things last and are waited for."""

    lasts: timedelta = timedelta(days=365)
    """How long a certificate is good."""
    renew: timedelta = timedelta(days=120)
    """The next is prepared when no more than this is left of it."""
    settle: float = 60.0
    """Seconds for API servers to hear of a changed configuration."""
    retire: float = 600.0
    """Seconds for the last replica to serve the new certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What the Secret holds; all of it PEM."""

    trusted: bytes
    """Authorities, the latest at the end."""
    certificate: bytes
    key: bytes = field(repr=False)
    next_certificate: bytes = b""
    next_key: bytes = field(default=b"", repr=False)

    @classmethod
    def read(cls, data: Mapping[str, bytes]) -> "Bundle":
        """From ``data`` of the Secret."""
        return cls(
            trusted=data.get("ca.crt", b""),
            certificate=data.get("tls.crt", b""),
            key=data.get("tls.key", b""),
            next_certificate=data.get("next.crt", b""),
            next_key=data.get("next.key", b""),
        )

    def data(self) -> dict[str, bytes | None]:
        """As ``data`` of the Secret; ``None`` takes a key away."""
        return {
            "ca.crt": self.trusted,
            "tls.crt": self.certificate,
            "tls.key": self.key,
            "next.crt": self.next_certificate or None,
            "next.key": self.next_key or None,
        }

    @property
    def sound(self) -> bool:
        """Whether each certificate has its key and is signed by somebody who is trusted."""
        try:
            authorities = x509.load_pem_x509_certificates(self.trusted)
            pairs = [CertKeyPair.from_pem(self.certificate, self.key)]
            if self.next_certificate or self.next_key:
                pairs.append(CertKeyPair.from_pem(self.next_certificate, self.next_key))
        except ValueError:
            return False
        return all(any(pair.signed_by(one) for one in authorities) for pair in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a decision depends on besides the bundle."""

    now: datetime
    hosts: Sequence[str]
    """Names and addresses at which the webhooks are reached."""
    spread_for: float
    """Seconds for which all configurations have named what is trusted; below 0: not yet."""
    served_for: float
    """Seconds for which the certificate has been the one to serve."""


def begin(facts: Facts, lifetimes: Lifetimes) -> Bundle:
    """The first bundle."""
    authority, leaf = _make(facts, lifetimes)
    return Bundle(
        trusted=authority.certificate_pem, certificate=leaf.certificate_pem, key=leaf.key_pem
    )


def next_step(bundle: Bundle, facts: Facts, lifetimes: Lifetimes) -> tuple[Bundle | None, float]:
    """What *bundle*, which is sound, is to become now, if anything.

    Returns:
        The new bundle; or ``None``, and after how many seconds to ask again at the latest.
    """
    if bundle.next_certificate:
        if facts.spread_for < 0:
            return None, lifetimes.settle
        if facts.spread_for < lifetimes.settle:
            return None, lifetimes.settle - facts.spread_for
        return _switch(bundle), 0
    current = CertKeyPair.from_pem(bundle.certificate, bundle.key)
    left = current.certificate.not_valid_after_utc - facts.now
    if left <= lifetimes.renew or not current.covers(facts.hosts):
        return prepare(bundle, facts, lifetimes), 0
    due = (left - lifetimes.renew).total_seconds()
    signer = _signer(bundle, current)
    if signer == bundle.trusted:
        return None, due
    if facts.served_for < lifetimes.retire:
        return None, min(due, lifetimes.retire - facts.served_for)
    return replace(bundle, trusted=signer), due


def prepare(bundle: Bundle, facts: Facts, lifetimes: Lifetimes) -> Bundle:
    """*bundle* with a certificate that lies ready, signed by an authority that is trusted."""
    authority, leaf = _make(facts, lifetimes)
    return replace(
        bundle,
        trusted=bundle.trusted.rstrip() + b"\n" + authority.certificate_pem,
        next_certificate=leaf.certificate_pem,
        next_key=leaf.key_pem,
    )


def _switch(bundle: Bundle) -> Bundle:
    return replace(
        bundle,
        certificate=bundle.next_certificate,
        key=bundle.next_key,
        next_certificate=b"",
        next_key=b"",
    )


def _signer(bundle: Bundle, current: CertKeyPair) -> bytes:
    """The one authority that signed the certificate."""
    for authority in x509.load_pem_x509_certificates(bundle.trusted):
        if current.signed_by(authority):
            return CertKeyPair(authority, current.key).certificate_pem
    return bundle.trusted


def _make(facts: Facts, lifetimes: Lifetimes) -> tuple[CertKeyPair, CertKeyPair]:
    authority = create_ca(f"{_SUBJECT}-ca", now=facts.now, validity=lifetimes.lasts)
    wanted = CertificateRequest(subject=_SUBJECT, validity=lifetimes.lasts, hosts=facts.hosts)
    return authority, issue_certificate(authority, wanted, now=facts.now)
