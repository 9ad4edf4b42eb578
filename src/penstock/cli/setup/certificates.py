"""Creates certificates that are signed by a private CA. The CA is created on first use, in the same
folder; only the owner can read its key. Keys are P-256, for cheap TLS handshakes."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3_650
CLOCK_SKEW = timedelta(minutes=5)


class Authority(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def at(cls, folder: Path) -> "Authority":
        """Return the CA in a folder, or create one. Raises ValueError if its files are unusable."""
        certificate_path, key_path = folder / "ca.pem", folder / "ca-key.pem"
        if certificate_path.exists() != key_path.exists():
            raise ValueError(f"{folder} must contain both ca.pem and ca-key.pem, or neither")
        if not certificate_path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            made = _new_authority()
            write_private(key_path, _pem_of(made.key))
            certificate_path.write_bytes(made.certificate.public_bytes(serialization.Encoding.PEM))
            return made
        found = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path} was not created by `penstock generate certs`")
        return cls(x509.load_pem_x509_certificate(certificate_path.read_bytes()), found)

    def issue(
        self, name: str, *, hosts: Sequence[str] = (), days: int, is_client: bool = False
    ) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [] if is_client else [ExtendedKeyUsageOID.SERVER_AUTH]
        purposes.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(_name(name), self.certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(issuer_key, critical=False)
        )
        if hosts:
            names: list[x509.GeneralName] = []
            for host in hosts:
                try:
                    names.append(x509.IPAddress(ipaddress.ip_address(host)))
                except ValueError:
                    names.append(x509.DNSName(host))
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        chain = (builder.sign(self.key, hashes.SHA256()), self.certificate)
        pem = b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain)
        return pem, _pem_of(key)


def _new_authority() -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Penstock private authority")
    other = "digital_signature content_commitment key_encipherment data_encipherment"
    other += " key_agreement encipher_only decipher_only"
    usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **dict.fromkeys(other.split(), False))
    certificate = (
        _builder(name, name, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)
