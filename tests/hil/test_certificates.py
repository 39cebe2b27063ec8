"""Certificates that are made on the fly."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from hil.certificates import Authority

CERTIFICATES = "hil/certificates.py"


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.mutation(CERTIFICATES, "_write(pair.key, private, 0o600)", "_write(pair.key, private, 0o644)")
@pytest.mark.mutation(CERTIFICATES, "folder.mkdir(mode=0o700", "folder.mkdir(mode=0o755")
def test_keys_are_their_owner_s_alone(tmp_path: Path) -> None:
    """Each key has mode 0600, the folder 0700, and the CA's own key is not written at all."""
    authority = Authority(tmp_path / "certificates")
    pairs = (authority.server(), authority.client("operator", "Operator"))

    assert [stat.S_IMODE(pair.key.stat().st_mode) for pair in pairs] == [0o600, 0o600]
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in authority.folder.iterdir()) == [
        *("ca.pem", "operator.key", "operator.pem", "server.key", "server.pem"),
    ]


@pytest.mark.mutation(CERTIFICATES, "now - VALID_BEFORE", "now")
def test_they_are_valid_from_yesterday_for_a_week(tmp_path: Path) -> None:
    """A clock that is a few hours behind does not turn a fresh certificate away."""
    certificate = load(Authority(tmp_path).server().certificate)
    now = datetime.now(UTC)
    assert timedelta(hours=23) < now - certificate.not_valid_before_utc < timedelta(hours=25)
    assert timedelta(days=6) < certificate.not_valid_after_utc - now < timedelta(days=8)


def test_a_server_is_named_by_its_loopback_addresses(tmp_path: Path) -> None:
    """127.0.0.1, ::1 and localhost, or whatever it is told."""
    authority = Authority(tmp_path)

    def names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    usual = names(load(authority.server().certificate))
    assert usual.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1"), ip_address("::1")]
    assert usual.get_values_for_type(x509.DNSName) == ["localhost"]
    other = names(load(authority.server("bench", ("10.0.0.7", "bench")).certificate))
    assert other.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.7")]


def test_a_client_s_certificate_is_no_server_s(tmp_path: Path) -> None:
    """Each is good for one side only, and for no further signature."""
    authority = Authority(tmp_path)
    for pair, use in (
        (authority.server(), ExtendedKeyUsageOID.SERVER_AUTH),
        (authority.client("c", None), ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        extensions = load(pair.certificate).extensions
        assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [use]
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
