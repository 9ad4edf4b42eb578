"""Checks how long certificates are still valid: those in files that settings name, and those that
listeners present. The warning comes a month ahead, before a forgotten renewal stops all clients.

Whether a chain leads to a trusted authority is not checked here: the doctor finds that out when it
connects to the server."""

import ssl
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.cli.terminal.output import Finding
from penstock.model.troubles import CERTIFICATE_WARN_DAYS

LISTED_MAX = 20  # of one file: a longer file is not a chain, but a bundle of authorities
_HANDSHAKE_S = 5.0
_FIX = "renew it with `penstock generate certs` or your CA; running nodes load the new file"
# Settings that name files with certificates.
FILE_KEYS = ("tls.cert_file", "tls.client_ca_file", "internal.certificate", "internal.ca")


def in_files(settings: Mapping[str, str], *, more: Mapping[str, str]) -> Iterator[Finding]:
    """Check every certificate in the files that the settings name, and in those of ``more``."""
    named = {key: settings.get(key, "") for key in FILE_KEYS} | dict(more)
    now = datetime.now(UTC)
    for name, path in named.items():
        if not path:
            continue
        try:
            found = x509.load_pem_x509_certificates(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "the file has no certificate"
            yield Finding(f"certificate {name}", "fail", f"{path}: {why}", "set it to a PEM file")
            continue
        for certificate in found[:LISTED_MAX]:
            yield judged(f"{name} {_name_of(certificate)}", certificate, now)


def on_listeners(urls: Iterable[str]) -> Iterator[Finding]:
    """Check the certificates that ``https://`` and ``SASL_SSL://`` listeners present."""
    now = datetime.now(UTC)
    for url in dict.fromkeys(urls):
        scheme, _, _ = url.partition("://")
        parts = urlsplit(f"//{url.rpartition('://')[2]}")
        if not scheme.lower().endswith(("https", "ssl")) or not parts.hostname:
            continue
        address = (parts.hostname, parts.port or 443)
        try:
            pem = ssl.get_server_certificate(address, timeout=_HANDSHAKE_S)
            certificate = x509.load_pem_x509_certificate(pem.encode())
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            yield Finding(f"certificate {url}", "fail", f"the listener presents none: {why}")
            continue
        yield judged(url, certificate, now)


def judged(place: str, certificate: x509.Certificate, now: datetime) -> Finding:
    """Return how long a certificate, found at a place, is still valid."""
    name = f"certificate {place}"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    left = (end - now).days
    if now >= end:
        detail = f"expired {(now - end).days} days ago, on {end:%Y-%m-%d}"
        return Finding(name, "fail", detail, _FIX)
    if now < begin:
        fix = "set the clock (NTP), or wait"
        return Finding(name, "fail", f"not valid before {begin:%Y-%m-%d %H:%M} UTC", fix)
    detail = f"{left} days left, until {end:%Y-%m-%d}"
    if left < CERTIFICATE_WARN_DAYS:
        return Finding(name, "warn", detail, _FIX)
    return Finding(name, "ok", detail)


def _name_of(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return f"({names[0].value!s:.64})" if names else f"({certificate.serial_number:x})"
