"""Certificates by how long they are good for: in files, on listeners, and as the doctor reports."""

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from tests.unit.cli.conftest import Cli

from penstock.cli.operate import doctor
from penstock.cli.setup.certificates import Authority
from penstock.cli.terminal.failure import ExitCode


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.at(tmp_path)


def issued(authority: Authority, folder: Path, days: int) -> tuple[Path, Path]:
    chain, key = authority.issue("node", hosts=["127.0.0.1"], days=days)
    certificate_path, key_path = folder / f"node-{days}.pem", folder / f"node-{days}-key.pem"
    certificate_path.write_bytes(chain)
    key_path.write_bytes(key)
    return certificate_path, key_path


@pytest.mark.parametrize(
    ("days_later", "status", "detail"),
    [
        (0, "ok", "99 days left"),
        (69, "ok", "30 days left"),
        (70, "warn", "29 days left"),
        (99, "warn", "0 days left"),
        (100, "fail", "expired 0 days ago"),
        (400, "fail", "expired 300 days ago"),
        (-1, "fail", "not valid before"),
    ],
)
def test_a_month_ahead_it_is_time_to_renew(
    authority: Authority, days_later: int, status: str, detail: str
) -> None:
    chain, _ = authority.issue("node", days=100)
    certificate = x509.load_pem_x509_certificate(chain)
    now = datetime.now(UTC) + timedelta(days=days_later, minutes=1)
    found = doctor.judged("x", certificate, now)
    assert found.status == status
    assert detail in found.detail
    assert bool(found.fix) == (status != "ok")


def test_every_certificate_of_a_chain_is_looked_at(authority: Authority, tmp_path: Path) -> None:
    path, _ = issued(authority, tmp_path, 10)
    node, ca = doctor.in_files({"tls.cert_file": str(path)}, more={})
    assert (node.check, node.status) == ("certificate tls.cert_file (node)", "warn")
    assert (ca.check, ca.status) == (
        "certificate tls.cert_file (Penstock private authority)",
        "ok",
    )


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    settings = {"tls.cert_file": str(tmp_path / "gone.pem"), "internal.ca": str(empty)}
    gone, nothing = doctor.in_files(settings, more={})
    assert (gone.status, nothing.status) == ("fail", "fail")
    assert "gone.pem: No such file" in gone.detail
    assert "has no certificate" in nothing.detail


@pytest.fixture
def listener(authority: Authority, tmp_path: Path) -> Iterator[str]:
    certificate, key = issued(authority, tmp_path, 10)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_a_listener_shows_counts(listener: str) -> None:
    urls = (f"https://{listener}", f"SASL_SSL://{listener}", "http://127.0.0.1:1", "None://None")
    found = list(doctor.on_listeners(urls))
    assert [each.status for each in found] == ["warn", "warn"]
    assert found[0].check == f"certificate https://{listener}"


def test_a_listener_without_tls_shows_none() -> None:
    (found,) = doctor.on_listeners(["https://127.0.0.1:1"])
    assert found.status == "fail"
    assert "has no certificate" in found.detail


def test_the_doctor_reads_the_files_of_the_settings(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, authority: Authority, tmp_path: Path
) -> None:
    path, key = issued(authority, tmp_path, 10)
    monkeypatch.setenv("PENSTOCK_HTTP__LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("PENSTOCK_TLS__CERT_FILE", str(path))
    monkeypatch.setenv("PENSTOCK_TLS__KEY_FILE", str(key))
    result = cli("doctor", "--local", "--data", str(tmp_path / "data"))
    found = {check["check"]: check for check in result.json["checks"]}
    assert found["certificate tls.cert_file (node)"]["status"] == "warn"
    assert result.code == 0
    monkeypatch.setenv("PENSTOCK_CA_FILE", str(tmp_path / "gone.pem"))
    assert cli("doctor", "--local", "--data", str(tmp_path)).code == ExitCode.UNHEALTHY
