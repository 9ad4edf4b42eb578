"""A listener's certificate, in one TLS context that can be renewed while connections are open.

A new certificate is first loaded into a separate context, so that an unusable certificate never
replaces the current one. Open connections keep the old certificate."""

import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from penstock.model.errors import USAGE, SetupError


class CertificateUnusable(SetupError):
    def __init__(self, what: str, reason: str, do: str = "") -> None:
        do = do or "use matching PEM files, or create new ones: `penstock generate certs`"
        super().__init__(reason, do, what=what, code=USAGE)

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class TlsFiles(NamedTuple):
    certificate: Path
    key: Path
    client_ca: Path | None = None  # authority of the certificates that clients must show


class Certificates:
    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps = self._read_stamps()
        self.context = _context(files)
        self.expires_at_ms = _expiry_ms(files.certificate)

    def renew(self) -> bool:
        """Load the files if they have changed, and return whether they have. If they are unusable,
        raise CertificateUnusable and keep the old certificate."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps  # unusable files are tried again after their next change
        _context(self._files)
        self.expires_at_ms = _expiry_ms(self._files.certificate)
        _load(self.context, self._files)
        return True

    def _read_stamps(self) -> tuple[tuple[int, int], ...]:
        stamps = []
        for path in self._files:
            if path is None:
                continue
            try:
                found = path.stat()
            except OSError as error:
                reason = error.strerror or str(error)
                raise CertificateUnusable(f"{path} cannot be read", reason) from error
            stamps.append((found.st_mtime_ns, found.st_ino))
        return tuple(stamps)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation and compression have had vulnerabilities. The ciphers have forward secrecy.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key)
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError) as error:
        raise unusable(error, files.certificate, files.key) from error


def unusable(error: OSError, certificate: Path, key: Path) -> CertificateUnusable:
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return CertificateUnusable(
            f"{key} is not the private key of {certificate}",
            "the certificate was made for another key",
            f"use the key that belongs to {certificate}, or create both: `penstock generate certs`",
        )
    if key == certificate and b"PRIVATE KEY" not in certificate.read_bytes():
        return CertificateUnusable(
            "--tls-key is missing",
            f"{certificate} holds a certificate and no private key",
            f"give the private key of {certificate}: --tls-key FILE",
        )
    return CertificateUnusable(
        f"{certificate} and {key} cannot be used", reason or error.strerror or str(error)
    )


def _expiry_ms(certificate: Path) -> int:
    try:
        first = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except (ValueError, IndexError, OSError) as error:
        raise CertificateUnusable(f"{certificate} is not a certificate", str(error)) from error
    return int(first.not_valid_after_utc.timestamp() * 1_000)
