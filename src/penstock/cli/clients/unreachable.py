"""Finds out why a connection to a server failed, by opening one or two more connections."""

import socket
import ssl
import struct
from typing import Final
from urllib.parse import urlsplit

from penstock.cli.terminal.failure import ExitCode, Failure, unreachable

PROBE_SECONDS_MAX: Final = 2.0
NAMES_MAX: Final = 3  # names of a certificate to show
# OpenSSL's codes for a certificate that does not verify.
EXPIRED, NOT_YET_VALID, WRONG_NAME, WRONG_ADDRESS = 10, 9, 62, 64
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # length, key, version, id, client


def explained(url: str, error: BaseException) -> Failure:
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    if isinstance(error, ConnectionRefusedError):
        return unreachable(url, "connection refused: no process listens on this port")
    reason = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_verified(url, host, port, error)
    if isinstance(error, ssl.SSLError):
        request = b"GET /_penstock/info HTTP/1.1\r\nhost: penstock\r\n\r\n"
        if not (_reply(host, port, request, 5, is_tls=False) or b"").startswith(b"HTTP/"):
            return unreachable(url, reason)
        return _wrong(url, "the server does not use TLS", f"use http://{parts.netloc}")
    if isinstance(error, socket.gaierror):
        do = "check the host name in --endpoint URL or PENSTOCK_ENDPOINT"
        return _wrong(url, f"the name {host} does not resolve", do)
    head = _reply(host, port, _API_VERSIONS, 8, is_tls=is_tls) or b""
    if len(head) == 8 and struct.unpack(">i", head[4:])[0] == 1:  # the reply of a Kafka listener
        return _wrong(
            url,
            f"{parts.netloc} is a Kafka listener",
            "set --endpoint URL or PENSTOCK_ENDPOINT to the SQS address, by default port 9324",
        )
    if not is_tls and _reply(host, port, b"", 0, is_tls=True) is not None:
        do = f"use https://{parts.netloc}"
        return _wrong(url, "the server closed the connection: it expects TLS", do)
    return unreachable(url, reason)


def _wrong(url: str, why: str, do: str) -> Failure:
    return Failure(f"cannot reach {url}", why, do, exit_code=ExitCode.UNREACHABLE)


def _not_verified(url: str, host: str, port: int, error: ssl.SSLCertVerificationError) -> Failure:
    code = error.verify_code
    if code in (WRONG_NAME, WRONG_ADDRESS):
        names = ", ".join(_names(host, port)[:NAMES_MAX]) or "another name"
        do = f"use that name, or create a certificate with `penstock generate certs --host {host}`"
        return _wrong(url, f"the certificate is for {names}, not for {host}", do)
    if code in (EXPIRED, NOT_YET_VALID):
        state = "has expired" if code == EXPIRED else "is not valid yet"
        do = "renew it with `penstock generate certs`; check the clock"
        return _wrong(url, f"the certificate {state}", do)
    return _wrong(
        url,
        f"the CA is not trusted: {error.verify_message}",
        "set PENSTOCK_CA_FILE to the ca.pem of the CA that signed the server's certificate",
    )


def _names(host: str, port: int) -> list[str]:
    from cryptography import x509

    try:
        pem = ssl.get_server_certificate((host, port), timeout=PROBE_SECONDS_MAX)
        certificate = x509.load_pem_x509_certificate(pem.encode())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def _reply(host: str, port: int, request: bytes, size: int, *, is_tls: bool) -> bytes | None:
    """Return the first bytes of the reply to ``request``, or None if the connection fails."""
    try:
        with socket.create_connection((host, port), timeout=PROBE_SECONDS_MAX) as plain:
            if not is_tls:
                plain.sendall(request)
                return plain.recv(size)
            # Unverified: the server may be an impostor, so nothing secret is sent.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(plain, server_hostname=host) as secret:
                secret.sendall(request)
                return secret.recv(size) if size else b""
    except OSError:
        return None
