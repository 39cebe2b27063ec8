"""Certificates made on the fly, for a simulator and for tests: a CA of its own, good for nothing else.

All files are PEM and lie in one folder: ``ca.pem``, and for every name ``NAME.pem`` and ``NAME.key``. Keys are
for their owner's eyes only; the CA's own key is never written, so a folder that is left behind cannot vouch
for anybody new.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from simulator.tls import ROLE_OID, encode_role

VALID_BEFORE: Final = timedelta(days=1)
"""Valid from yesterday: clocks of two machines differ."""
VALID_FOR: Final = timedelta(days=7)
"""No run takes longer."""
HOSTS: Final = ("127.0.0.1", "::1", "localhost")
"""Where a simulator is served unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A CA that lives as long as this object. Makes ``folder`` if need be; raises ``OSError``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder: Final = folder
        self.ca: Final = folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("battery-hil CA of one run")
        usage = _key_usage(key_cert_sign=True, crl_sign=True)
        builder = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        _write(self.ca, _pem(builder.sign(self._key, hashes.SHA256())), 0o644)

    def server(self, name: str = "server", hosts: tuple[str, ...] = HOSTS) -> Pair:
        """A server's certificate, for these addresses and names."""
        names = x509.SubjectAlternativeName([_general(host) for host in hosts])
        return self._issue(name, ExtendedKeyUsageOID.SERVER_AUTH, (names,))

    def client(self, name: str, role: str | None) -> Pair:
        """A client's certificate with a role; None: without the extension."""
        roles = () if role is None else (x509.UnrecognizedExtension(ROLE_OID, encode_role(role)),)
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, roles)

    def _issue(
        self, name: str, use: x509.ObjectIdentifier, extensions: tuple[x509.ExtensionType, ...]
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(f"battery-hil {name}"), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(pair.key, private, 0o600)
        _write(pair.certificate, _pem(builder.sign(self._key, hashes.SHA256())), 0o644)
        return pair


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID_BEFORE)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes, mode: int) -> None:
    """A new file with this mode from its first moment on; an old one of this name goes."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
