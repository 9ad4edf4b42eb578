"""The way in, read or changed on the wire: old versions, weak ciphers, certificates of somebody
else's, plain text on the port of TLS and the other way round; and a server that would rather not
start than serve other machines in the clear."""

from __future__ import annotations

import socket
import ssl
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.attacks.conftest import make_certificates
from tests.harness.server import Server, ServerFailed, penstock_command


def address_of(server: Server, listener: str) -> tuple[str, int]:
    if listener == "kafka":
        host, _, port = server.kafka.rpartition(":")
        return host, int(port)
    parts = urlsplit(server.url if listener == "http" else server.admin_url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def shake(server: Server, context: ssl.SSLContext, listener: str = "http") -> tuple[str, str]:
    """Version and cipher that two sides agree on. Raises what ends the handshake."""
    with (
        socket.create_connection(address_of(server, listener), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        cipher = secure.cipher()
        return str(secure.version()), str(cipher[0] if cipher else "")


def careless() -> ssl.SSLContext:
    """A client that takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _version(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = careless()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def _ciphers(names: str) -> ssl.SSLContext:
    context = careless()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(names)
    return context


WEAK: dict[str, Callable[[], ssl.SSLContext]] = {
    "tls-1.0": lambda: _version(ssl.TLSVersion.TLSv1),
    "tls-1.1": lambda: _version(ssl.TLSVersion.TLSv1_1),
    "no-forward-secrecy": lambda: _ciphers("AES128-GCM-SHA256:AES256-GCM-SHA384"),
    "cbc": lambda: _ciphers("ECDHE-RSA-AES128-SHA256:ECDHE-ECDSA-AES128-SHA256"),
    "sha1": lambda: _ciphers("ECDHE-RSA-AES128-SHA:AES128-SHA"),
    "no-authentication": lambda: _ciphers("aNULL:@SECLEVEL=0"),
    "finite-field": lambda: _ciphers("DHE-RSA-AES256-GCM-SHA384"),
}


@pytest.mark.parametrize("listener", ["http", "admin", "kafka"])
@pytest.mark.parametrize("attack", WEAK)
def test_a_weak_handshake_fails(secure: Server, attack: str, listener: str) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake(secure, WEAK[attack](), listener)


@pytest.mark.parametrize("listener", ["http", "admin", "kafka"])
def test_a_modern_handshake_is_of_version_1_3(
    secure: Server, certificates: Path, listener: str
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    assert shake(secure, trusting, listener)[0] == "TLSv1.3"
    assert shake(secure, _ciphers("ECDHE+AESGCM"), listener)[0] == "TLSv1.2"


def test_the_certificate_is_for_this_host_only(secure: Server, certificates: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    with socket.create_connection(address_of(secure, "http"), timeout=10) as plain:  # noqa: SIM117
        with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname"):
            trusting.wrap_socket(plain, server_hostname="elsewhere.example")


@pytest.mark.parametrize("listener", ["http", "admin", "kafka"])
def test_plain_text_on_the_port_of_tls_gets_nothing(secure: Server, listener: str) -> None:
    for start in (
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\xff\xff",
    ):
        with socket.create_connection(address_of(secure, listener), timeout=10) as plain:
            plain.sendall(start)
            try:
                told = plain.recv(1_000)
            except ConnectionResetError:
                told = b""
            assert b"HTTP/1.1" not in told
            assert b"\0\0\0\7" not in told


def test_tls_on_a_plain_port_gets_nothing(open_server: Server) -> None:
    for listener in ("http", "admin", "kafka"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            shake(open_server, careless(), listener)


def test_a_client_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        make_certificates(folder)
        make_certificates(folder, "--client", "--name", "ann")
    arguments = ["--tls-cert", f"{ours}/penstock.pem", "--tls-key", f"{ours}/penstock-key.pem"]
    env = {"PENSTOCK_TLS__CLIENT_CA_FILE": f"{ours}/ca.pem"}
    with Server(tmp_path / "data", fsync="never", arguments=arguments, env=env) as server:
        nobody = ssl.create_default_context(cafile=f"{ours}/ca.pem")
        assert not is_answered(server, nobody)
        for folder, is_welcome in ((ours, True), (theirs, False)):
            context = ssl.create_default_context(cafile=f"{ours}/ca.pem")
            context.load_cert_chain(f"{folder}/client-ann.pem", f"{folder}/client-ann-key.pem")
            assert is_answered(server, context) == is_welcome, folder
        assert server.stop() == 0


def is_answered(server: Server, context: ssl.SSLContext) -> bool:
    """In version 1.3 a client learns that it was refused with the first answer."""
    try:
        with (
            socket.create_connection(address_of(server, "http"), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"GET /_penstock/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return secure.recv(100).startswith(b"HTTP/1.1 200")
    except (ssl.SSLError, ConnectionError):
        return False


# ── S5: what is not started ──────────────────────────────────────────────────────────────────
EXPOSED = {
    "http": ["--http", "0.0.0.0:0"],
    "http-on-ipv6": ["--http", "[::]:0"],
    "kafka": ["--kafka", "0.0.0.0:0"],
    "admin": ["--admin", "0.0.0.0:0"],
    "by-name": ["--http", "localhost.example:0"],
    "auth-but-no-tls": ["--http", "0.0.0.0:0", "--auth", "on"],
}


@pytest.mark.parametrize("attack", EXPOSED)
def test_other_machines_are_not_served_without_tls(tmp_path: Path, attack: str) -> None:
    with pytest.raises(ServerFailed, match="--insecure"):
        Server(tmp_path / "data", arguments=EXPOSED[attack]).start()


def test_etcd_on_another_machine_is_not_called_without_tls(tmp_path: Path) -> None:
    arguments = ["--node", "1", "--internal", "127.0.0.1:0", "--etcd", "10.0.0.1:2379"]
    with pytest.raises(ServerFailed, match=r"(?s)etcd at 10\.0\.0\.1:2379 .*--insecure"):
        Server(tmp_path / "data", arguments=arguments).start()


def test_other_machines_are_not_served_without_authentication(
    tmp_path: Path, certificates: Path
) -> None:
    tls = [
        "--tls-cert",
        f"{certificates}/penstock.pem",
        "--tls-key",
        f"{certificates}/penstock-key.pem",
    ]
    with pytest.raises(ServerFailed, match="and --auth is off"):
        Server(tmp_path / "data", arguments=[*tls, "--http", "0.0.0.0:0", "--auth", "off"]).start()


def test_a_key_that_others_can_read_is_not_made(tmp_path: Path) -> None:
    command = [penstock_command(), "generate", "certs", "--out", str(tmp_path / "made")]
    subprocess.run(command, check=True, capture_output=True)
    keys = list((tmp_path / "made").glob("*key*"))
    assert keys
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
