"""File watcher: polls files, and keeps the last valid contents."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from batholith.admission.serving.cert_files import CertificateFiles, FileCertProvider
from batholith.machinery.clock import SystemClock
from batholith.machinery.file_watcher import FileWatcher
from batholith.machinery.serving_certificate import ServingCertificate
from batholith.machinery.testing import FakeClock
from batholith.machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate


class RecordingFileWatcher:
    """Records the contents; rejects the text ``bad``."""

    def __init__(self, *paths: Path) -> None:
        self.now: list[bytes] = []
        self.timestamps = 0
        self.files = FileWatcher(paths, self._on_contents)

    def _on_contents(self, contents: list[bytes]) -> None:
        if b"bad" in contents:
            raise ValueError("bad")
        self.now = contents
        self.timestamps += 1


def test_all_contents_are_passed_on_when_a_file_has_changed(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"1")
    other.write_bytes(b"2")
    taken = RecordingFileWatcher(one, other)
    taken.files.poll()
    taken.files.poll()
    assert (taken.now, taken.timestamps) == ([b"1", b"2"], 1)
    one.write_bytes(b"12")
    other.write_bytes(b"")
    taken.files.poll()
    assert (taken.now, taken.timestamps) == ([b"12", b""], 2), (
        "though the bytes in a row are the same"
    )


async def test_invalid_and_missing_files_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bad")
    taken, clock = RecordingFileWatcher(path), FakeClock()
    following = asyncio.create_task(taken.files.watch(clock, interval=1))
    for content, expected in (
        (b"good", [b"good"]),
        (b"bad", [b"good"]),
        (None, [b"good"]),
        (b"better", [b"better"]),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        await clock.advance(1)
        assert taken.now == expected
    following.cancel()
    await asyncio.wait((following,))


def issue_leaf(ca: CertKeyPair) -> CertKeyPair:
    request = CertificateRequest(subject="x", validity=timedelta(days=1), hosts=("127.0.0.1",))
    return issue_certificate(ca, request, now=datetime.now(UTC))


async def test_a_partial_change_of_a_key_pair_is_not_served(tmp_path: Path) -> None:
    """Certificate and key are not replaced atomically."""
    authority = create_ca("a", now=datetime.now(UTC), validity=timedelta(days=1))
    first, second = issue_leaf(authority), issue_leaf(authority)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(first.certificate_pem)
    key.write_bytes(first.key_pem)
    presenter, changes = ServingCertificate(), []
    files = FileCertProvider(
        CertificateFiles(certificate=certificate, key=key),
        presenter,
        clock=SystemClock(),
        changed=lambda: changes.append(1),
    )
    await files.start()
    assert (presenter.current, changes, files.ca_bundle) == (first.certificate_pem, [1], b"")
    certificate.write_bytes(second.certificate_pem)
    with pytest.raises(ValueError, match="cannot load certificate and key"):
        await files.start()
    assert (presenter.current, changes) == (first.certificate_pem, [1])
    key.write_bytes(second.key_pem)
    await files.start()
    assert (presenter.current, changes) == (second.certificate_pem, [1, 1])


def test_the_expiry_of_the_served_certificate_is_a_metric() -> None:
    name = "batholith_serving_certificate_expiration_timestamp_seconds"
    registry, serving = CollectorRegistry(), ServingCertificate()
    registry.register(serving)
    assert registry.get_sample_value(name) is None
    now = datetime.now(UTC)
    leaf = issue_leaf(create_ca("a", now=now, validity=timedelta(days=9)))
    serving.load(leaf.certificate_pem, leaf.key_pem)
    expiry = registry.get_sample_value(name)
    assert expiry is not None
    assert abs(expiry - (now + timedelta(days=1)).timestamp()) < 60
