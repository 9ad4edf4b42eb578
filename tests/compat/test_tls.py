"""TLS on every listener, with real clients: who is let in, and a certificate renewed meanwhile."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from tests.compat.conftest import CREDENTIALS, REGION
from tests.compat.kafka.confluent import producer, read_all, send
from tests.harness.patience import eventually
from tests.harness.server import Server, ServerFailed, penstock_command


def make_certificates(folder: Path, *more: str) -> None:
    command = [penstock_command(), "generate", "certs", "--out", str(folder), *more]
    subprocess.run(command, check=True, capture_output=True)


def arguments(folder: Path) -> list[str]:
    return ["--tls-cert", f"{folder}/penstock.pem", "--tls-key", f"{folder}/penstock-key.pem"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("tls")
    with Server(data, fsync="never", kafka_port=0, arguments=arguments(certificates)) as running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


def serial_of(url: str, ca: Path) -> str:
    """The serial number of the certificate that a handshake shows."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection((parts.hostname, parts.port or 0), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as secure,
    ):
        found: Any = secure.getpeercert()
        return str(found["serialNumber"])


def test_boto3_and_a_kafka_client_meet_over_tls(tls_server: Server, certificates: Path) -> None:
    ca = str(certificates / "ca.pem")
    assert tls_server.url.startswith("https://")
    sqs = boto3.client(
        "sqs", endpoint_url=tls_server.url, region_name=REGION, verify=ca, **CREDENTIALS
    )
    url = sqs.create_queue(QueueName="secure")["QueueUrl"]
    assert url.startswith("https://")
    sqs.send_message(QueueUrl=url, MessageBody="over TLS")
    settings: dict[str, Any] = {"security_protocol": "SSL", "ssl_ca_location": ca}
    (message,) = read_all(tls_server.kafka, "secure", **settings)
    assert message.value() == b"over TLS"
    send(producer(tls_server.kafka, **settings), "secure", [b"x" * 500_000])
    bodies = [
        m["Body"] for m in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    ]
    assert sorted(bodies, key=len) == ["over TLS", "x" * 500_000]
    sqs.close()


def test_a_client_that_does_not_know_the_authority_refuses(tls_server: Server) -> None:
    sqs = boto3.client("sqs", endpoint_url=tls_server.url, region_name=REGION, **CREDENTIALS)
    with pytest.raises(Exception, match=r"(?i)certificate verify failed"):
        sqs.list_queues()
    sqs.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused(tls_server: Server, version: ssl.TLSVersion) -> None:
    parts = urlsplit(tls_server.url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection((parts.hostname, parts.port or 0), timeout=10) as plain,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_plain_http_on_the_tls_port_gets_nothing(tls_server: Server) -> None:
    parts = urlsplit(tls_server.url)
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"Penstock" not in plain.recv(1_000)


def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    make_certificates(folder)
    ca = folder / "ca.pem"
    with Server(tmp_path / "data", fsync="never", arguments=arguments(folder)) as running:
        first = serial_of(running.url, ca)
        make_certificates(folder)
        running._process.popen.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
        eventually(lambda: serial_of(running.url, ca) != first, seconds=20, what="the new one")
        second = serial_of(running.url, ca)
        (folder / "penstock.pem").write_text("not a certificate")
        running._process.popen.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
        eventually(lambda: "certificate not reloaded" in running.stderr, seconds=20, what="a word")
        assert serial_of(running.url, ca) == second
        assert running.stop() == 0


def test_a_client_certificate_is_asked_for_when_an_authority_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    make_certificates(folder)
    make_certificates(folder, "--client", "--name", "ann")
    ca = str(folder / "ca.pem")
    env = {"PENSTOCK_TLS__CLIENT_CA_FILE": ca}
    with Server(tmp_path / "data", fsync="never", arguments=arguments(folder), env=env) as running:
        pair = (str(folder / "client-ann.pem"), str(folder / "client-ann-key.pem"))
        for cert, is_welcome in ((pair, True), (None, False)):
            config = boto3.session.Config(
                client_cert=cert, retries={"max_attempts": 0, "mode": "standard"}
            )
            sqs = boto3.client(
                "sqs",
                endpoint_url=running.url,
                region_name=REGION,
                verify=ca,
                config=config,
                **CREDENTIALS,
            )
            if is_welcome:
                sqs.list_queues()
            else:
                with pytest.raises(Exception, match=r"(?i)ssl|connection|closed"):
                    sqs.list_queues()
            sqs.close()
        assert running.stop() == 0


def test_other_machines_are_not_served_without_tls_unless_somebody_says_so(
    tmp_path: Path,
) -> None:
    with pytest.raises(ServerFailed, match="--insecure"):
        Server(tmp_path / "data", arguments=["--http", "0.0.0.0:0"]).start()
    make_certificates(tmp_path / "certificates")
    given = [*arguments(tmp_path / "certificates"), "--http", "0.0.0.0:0"]
    with pytest.raises(ServerFailed, match="and --auth is off"):
        Server(tmp_path / "data", arguments=[*given, "--auth", "off"]).start()
