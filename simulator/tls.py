"""Modbus/TCP Security (MB-TCP-Security-v21): TLS 1.2 or newer, both sides with certificates, roles in them.

Inside TLS the frames are Modbus/TCP's, header and all. Who may do what follows from the role in the client's
certificate; a client without one may read.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509

ROLE_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.50316.802.1")
"""The extension that holds the role, as one ASN.1 UTF8String."""

OPERATOR: Final = "Operator"
"""May read and write."""
VIEWER: Final = "Viewer"
"""May read, as may everybody whom the CA vouches for."""
WRITERS: Final = frozenset({OPERATOR})

_UTF8_STRING: Final = 0x0C
_SHORT_FORM_MAX: Final = 0x7F


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a server shows, and whom it believes. Paths of PEM files."""

    certificate: Path
    key: Path
    ca: Path
    """Whoever signed the clients' certificates."""
    client_certificate_required: bool = True
    """The specification's demand. Without it a client that shows none may read."""

    def context(self) -> ssl.SSLContext:
        """Raises ``OSError`` (``ssl.SSLError`` is one) where a file is missing or is not what it should be."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.ca)
        required = self.client_certificate_required
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


def encode_role(role: str) -> bytes:
    """The role extension's value. Raises ``ValueError`` for a role of more than 127 bytes."""
    text = role.encode("utf-8")
    if len(text) > _SHORT_FORM_MAX:
        raise ValueError(f"a role has at most {_SHORT_FORM_MAX} bytes, not {len(text)}")
    return bytes((_UTF8_STRING, len(text))) + text


def role_of(certificate: bytes | None) -> str | None:
    """The role in a certificate (DER); None without one, or where it is not a single UTF8String."""
    if certificate is None:
        return None
    try:
        extensions = x509.load_der_x509_certificate(certificate).extensions
        extension = extensions.get_extension_for_oid(ROLE_OID).value
        assert isinstance(extension, x509.UnrecognizedExtension)
        value = extension.value
        if len(value) < 2 or value[0] != _UTF8_STRING or value[1] != len(value) - 2:
            return None
        return value[2:].decode("utf-8")
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return None


def peer_role(connection: ssl.SSLObject | ssl.SSLSocket) -> str | None:
    """The role of the other side."""
    return role_of(connection.getpeercert(binary_form=True))
