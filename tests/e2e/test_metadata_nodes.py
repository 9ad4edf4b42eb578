"""Metadata nodes among themselves and under mutual TLS: mirrors of the one with the store, the ring
when topics are many, and who is let in."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.kit import code_of
from tests.compat.conftest import sqs_client
from tests.harness import forks
from tests.harness.patience import eventually
from tests.harness.roles import MetadataServer, attached
from tests.harness.server import Server, ServerFailed, penstock_command, stable_port

WATCH_SECONDS_MAX = 120.0


def is_there(sqs: Any, name: str) -> bool:
    return code_of(sqs.get_queue_url, QueueName=name) == ""


def is_created(sqs: Any, name: str) -> bool:
    return code_of(sqs.create_queue, QueueName=name) == ""


# ── Several metadata nodes ───────────────────────────────────────────────────────────────────


class Fleet:
    """One metadata node with the store and two mirrors of it, on addresses known beforehand."""

    def __init__(self, folder: Path, *, whole_topics_max: int) -> None:
        self.addresses = {name: f"127.0.0.1:{stable_port()}" for name in ("m1", "m2", "m3")}
        members = ",".join(f"{name}={at}" for name, at in self.addresses.items())
        self.nodes = {
            name: MetadataServer(
                folder / name,
                listen=at,
                arguments=() if name == "m1" else ("--metadata", self.addresses["m1"]),
                env={
                    "PENSTOCK_NODE__NAME": name,
                    "PENSTOCK_METADATA__MEMBERS": members,
                    "PENSTOCK_METADATA__WHOLE_TOPICS_MAX": str(whole_topics_max),
                },
            )
            for name, at in self.addresses.items()
        }

    @contextmanager
    def running(self) -> Iterator[Fleet]:
        with ExitStack() as stack:
            for node in self.nodes.values():
                stack.enter_context(node)
            yield self
            for node in reversed(self.nodes.values()):
                if node.is_running:
                    assert node.stop() == 0, node.stderr_tail()
                node.assert_no_traceback()


def test_mirrors_answer_and_pass_changes_on_and_outlive_the_node_with_the_store(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path, whole_topics_max=50_000)
    at = fleet.addresses
    node = attached(tmp_path / "node", at["m2"], at["m3"])
    with fleet.running(), node:
        sqs = sqs_client(node.url)
        for number in range(5):
            sqs.create_queue(QueueName=f"q{number}")  # by a mirror to the store
        fleet.nodes["m1"].kill()
        assert code_of(sqs.create_queue, QueueName="meanwhile") == "ServiceUnavailable"
        node.restart()  # from a mirror's memory alone
        sqs = sqs_client(node.url)
        url = sqs.get_queue_url(QueueName="q3")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        fleet.nodes["m1"].start()
        eventually(partial(is_created, sqs, "after"), seconds=120, what="changes again")
        # The other mirror has it as well: the first one goes, and nobody notices.
        fleet.nodes["m2"].kill()
        eventually(partial(is_created, sqs, "further"), seconds=120, what="the other mirror")
        assert all(is_there(sqs, name) for name in ("q0", "after", "further"))
        assert node.stop() == 0, node.stderr_tail()
        node.assert_no_traceback()


def test_many_topics_are_shared_by_the_ring_and_found_through_any_node(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, whole_topics_max=12)
    names = [f"queue-{number:02d}" for number in range(30)]
    with fleet.running(), ExitStack() as stack:
        nodes = [
            stack.enter_context(attached(tmp_path / f"at-{name}", at))
            for name, at in fleet.addresses.items()
        ]
        sqs = [sqs_client(node.url) for node in nodes]
        for number, name in enumerate(names):
            sqs[number % 3].create_queue(QueueName=name)
        topics = len(names) + 3  # and those of the nodes themselves
        for one in fleet.nodes.values():
            eventually(
                lambda one=one: (  # type: ignore[misc]
                    one.metrics()["penstock_metadata_topics"] >= topics - 3
                    and one.metrics()["penstock_metadata_held_topics"] < len(names)
                ),
                seconds=120,
                what="a part for each",
            )

        def is_each_held_once() -> bool:
            held = sum(
                one.metrics()["penstock_metadata_held_topics"] for one in fleet.nodes.values()
            )
            return held == fleet.nodes["m1"].metrics()["penstock_metadata_topics"]

        # Those of the nodes themselves come in the background.
        eventually(is_each_held_once, seconds=120, what="each topic held once")
        for name in names:
            for one in sqs:
                eventually(partial(is_there, one, name), seconds=WATCH_SECONDS_MAX, what=name)
        # A node that starts now reads all parts from one address.
        late = stack.enter_context(attached(tmp_path / "late", fleet.addresses["m3"]))
        assert all(is_there(sqs_client(late.url), name) for name in names)
        for node in (*nodes, late):
            assert node.stop() == 0, node.stderr_tail()


# ── Mutual TLS ───────────────────────────────────────────────────────────────────────────────


class Certificates:
    """Made by the program itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, name: str, *more: str) -> dict[str, str]:
        """Settings of a node that shows this certificate."""
        command = [penstock_command(), "generate", "certs", "--out", str(self.folder)]
        assert forks.run([*command, "--name", name, *more]).returncode == 0
        stem = f"client-{name}" if "--client" in more else name
        return {
            "PENSTOCK_NODE__NAME": name,
            "PENSTOCK_INTERNAL__CERTIFICATE": str(self.folder / f"{stem}.pem"),
            "PENSTOCK_INTERNAL__KEY": str(self.folder / f"{stem}-key.pem"),
            "PENSTOCK_INTERNAL__CA": str(self.folder / "ca.pem"),
        }


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certs")


@pytest.fixture
def metadata(tmp_path: Path, certificates: Certificates) -> Iterator[MetadataServer]:
    """Asks every node for its certificate."""
    running = MetadataServer(tmp_path / "metadata", env=certificates.make("m1"))
    with running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


def refusal(node: Server) -> str:
    """What a node that is not let in says while it waits."""
    ends: list[str] = []

    def start() -> None:
        with pytest.raises(ServerFailed):
            node.start()
        ends.append(node.stderr)

    starting = threading.Thread(target=start)
    starting.start()
    try:
        eventually(lambda: "waiting for the" in node.stderr, seconds=120, what="a refusal")
    finally:
        os.kill(node.pid, signal.SIGTERM)
        starting.join(120)
    assert ends, "it ended when it was told to"
    return ends[0]


def test_nodes_with_certificates_of_one_authority_work_together(
    tmp_path: Path, certificates: Certificates, metadata: MetadataServer
) -> None:
    with attached(tmp_path / "node", f"m1={metadata.listen}", env=certificates.make("f1")) as node:
        sqs = sqs_client(node.url)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"
        assert metadata.metrics()["penstock_internal_tls_certificate_expiry_timestamp_seconds"] > 0
        assert node.stop() == 0, node.stderr_tail()
        node.assert_no_traceback()


def test_a_node_without_a_certificate_is_not_let_in(
    tmp_path: Path, metadata: MetadataServer
) -> None:
    said = refusal(attached(tmp_path / "node", metadata.listen))
    assert "perhaps it needs TLS, or another certificate" in said
    assert metadata.metrics()["penstock_connections"] == 0


def test_a_certificate_of_another_authority_is_refused(
    tmp_path: Path, metadata: MetadataServer
) -> None:
    env = Certificates(tmp_path / "others").make("f1")
    said = refusal(attached(tmp_path / "node", metadata.listen, env=env))
    assert "CERTIFICATE_VERIFY_FAILED" in said or "certificate verify failed" in said, said


def test_nobody_may_call_itself_by_another_name_than_its_certificates(
    tmp_path: Path, certificates: Certificates, metadata: MetadataServer
) -> None:
    env = {**certificates.make("f1"), "PENSTOCK_NODE__NAME": "m2"}
    said = refusal(attached(tmp_path / "node", metadata.listen, env=env))
    assert "The certificate shown by node m2 is for another node" in said
    text = "handshake of another node rejected"
    eventually(lambda: text in metadata.stderr, seconds=30, what="the log event")
    assert metadata.stderr.count(text) == 1


def test_where_one_node_is_expected_no_other_may_answer(
    tmp_path: Path, certificates: Certificates, metadata: MetadataServer
) -> None:
    node = attached(tmp_path / "node", f"m9={metadata.listen}", env=certificates.make("f1"))
    assert "Node m1 replied instead of node m9" in refusal(node)


def test_a_node_of_another_cluster_is_refused(
    tmp_path: Path, certificates: Certificates, metadata: MetadataServer
) -> None:
    env = {**certificates.make("f1"), "PENSTOCK_INTERNAL__CLUSTER": "other"}
    assert "belongs to cluster other" in refusal(
        attached(tmp_path / "node", metadata.listen, env=env)
    )


def test_a_renewed_certificate_is_taken_over_while_nodes_run(
    tmp_path: Path, certificates: Certificates, metadata: MetadataServer
) -> None:
    name = "penstock_internal_tls_certificate_expiry_timestamp_seconds"
    with attached(tmp_path / "node", metadata.listen, env=certificates.make("f1")) as node:
        before = {one: one.metrics()[name] for one in (node, metadata)}
        for holder in ("f1", "m1"):
            certificates.make(holder, "--days", "400")
        for one, expiry in before.items():
            os.kill(one.pid, signal.SIGHUP)
            eventually(
                lambda one=one, expiry=expiry: one.metrics()[name] > expiry,  # type: ignore[misc]
                seconds=120,
                what="the new certificate",
            )
        assert is_created(sqs_client(node.url), "q")
        assert node.stop() == 0, node.stderr_tail()
    with attached(tmp_path / "node", metadata.listen, env=certificates.make("f1")) as node:
        assert is_there(sqs_client(node.url), "q")


def test_other_machines_are_not_served_without_certificates(tmp_path: Path) -> None:
    exposed = f"0.0.0.0:{stable_port()}"
    with pytest.raises(ServerFailed, match="no TLS between nodes"):
        MetadataServer(tmp_path / "data", listen=exposed).start()
    with MetadataServer(tmp_path / "data", listen=exposed, arguments=("--insecure",)) as open_one:
        assert open_one.stop() == 0


def test_clients_and_nodes_do_not_share_an_authority(
    tmp_path: Path, certificates: Certificates
) -> None:
    env = certificates.make("m1")
    env |= {
        "PENSTOCK_TLS__CERT_FILE": env["PENSTOCK_INTERNAL__CERTIFICATE"],
        "PENSTOCK_TLS__KEY_FILE": env["PENSTOCK_INTERNAL__KEY"],
        "PENSTOCK_TLS__CLIENT_CA_FILE": env["PENSTOCK_INTERNAL__CA"],
    }
    with pytest.raises(ServerFailed, match="could act as a node"):
        MetadataServer(tmp_path / "data", env=env).start()
