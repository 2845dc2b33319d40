"""A key by which the parts of the S3 server authenticate each other: clients without it are refused
on all of its inner ports.

SeaweedFS's parts communicate over the loopback, where every user of the machine can connect. With
mutual TLS each of them, server and client alike, shows a certificate signed by an authority that
only this server has. One self-signed certificate has all three roles.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from regrow.infra.machine import private_files

_PARTS = ("master", "volume", "filer", "admin")
_YEARS = 10
"""Validity of a certificate; each start makes a new one."""


def environment(folder: Path) -> dict[str, str]:
    """Create a certificate and its key in `folder`. Returns the variables with which `weed`
    requires it on every inner port.

    The variables are settings of its security.toml, and take precedence over such a file. The S3
    port is not an inner port.
    """
    certificate, key = folder / "inner.crt", folder / "inner.key"
    signed, secret = _pair()
    private_files.replace(key, secret)
    private_files.replace(certificate, signed)
    pair = {"cert": certificate, "key": key}
    with_authority = {**pair, "ca": certificate}
    settings: dict[str, object] = {
        "grpc.ca": certificate,
        **{
            f"grpc.{part}.{name}": path
            for part in (*_PARTS, "s3", "worker", "client")
            for name, path in pair.items()
        },
        **{
            f"https.{part}.{name}": path
            for part in (*_PARTS, "client")
            for name, path in with_authority.items()
        },
        "https.client.enabled": "true",
        # The user's own security.toml may have disabled these checks, or have keys that this
        # server's parts do not share.
        "https.client.insecure_skip_verify": "false",
        "https.filer.disable_tls_verify_client_cert": "false",
    }
    return {
        f"WEED_{name.upper().replace('.', '_')}": str(value) for name, value in settings.items()
    }


def _pair() -> tuple[bytes, bytes]:
    """Return a certificate for the loopback and its private key, as PEM."""
    from cryptography import x509  # required by Prefect; takes 0.1 s, only when a server starts
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "regrow s3")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
