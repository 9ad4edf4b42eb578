"""A full disk: sends are refused with a reason, consumers go on, and once there is room again so do
sends. The server keeps a reserve for leases and deletes, so that a queue can always be emptied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from tests.harness.checker import check
from tests.harness.client import Fault, RawClient
from tests.harness.disk import LoopDisk, unavailable
from tests.harness.load import Consumer, Load, Producer
from tests.harness.patience import eventually
from tests.harness.server import Server, stable_port

LACKING = unavailable()
pytestmark = pytest.mark.skipif(LACKING is not None, reason=LACKING or "")

DISK_MIB = 64
BODY_BYTES = 100_000
SENDS_MAX = DISK_MIB * 1_048_576 // BODY_BYTES  # more than fits
ENV = {"PENSTOCK_LOG__SEGMENT_BYTES_MAX": "1048576", "PENSTOCK_LOG__RETENTION_CHECK_MS": "100"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path, mib=DISK_MIB) as mounted:
        yield mounted


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    folder = tmp_path / "ledgers"
    folder.mkdir()
    return folder


def fill(producer: Producer) -> int:
    """Send until the server refuses; how many were taken."""
    for taken in range(SENDS_MAX):
        if not producer.call(producer.bodies(1)):
            return taken
    raise AssertionError(f"{SENDS_MAX} messages of {BODY_BYTES} bytes were taken: disk never full")


def consume(consumer: Consumer, count: int) -> None:
    """Receive and delete; every call must be answered although the disk is full."""
    left = count
    while left > 0:
        got = consumer.receive(min(10, left), 60)
        assert got, "no message although the queue is not empty"
        for each in got:
            assert consumer.delete(each), "a delete was refused on a full disk"
        left -= len(got)


@pytest.mark.slow
def test_emptying_a_queue_makes_room_on_a_full_disk(
    disk: LoopDisk, ledgers: Path, seed: str
) -> None:
    with Server(disk.path / "data", env=ENV, port=stable_port()) as server:
        load = Load(server.port, ledgers, seed=seed)
        try:
            queue = load.create_queue("full")
            producer = load.producer("p", queue, payload_bytes=BODY_BYTES)
            consumer = load.consumer("c", queue)
            taken = fill(producer)
            assert taken > 100, f"only {taken} messages fitted on {DISK_MIB} MiB"

            with pytest.raises(Fault) as refused:
                consumer.client.call(
                    "SendMessage", {"QueueUrl": queue.url, "MessageBody": "x" * (2 * BODY_BYTES)}
                )
            assert refused.value.status == 503
            assert "The disk is full: " in refused.value.message, refused.value.message

            # Deleting what fills the disk frees it: whole segments go once all in them is done.
            consume(consumer, taken * 3 // 4)
            refused_bodies = producer.bodies(1)
            eventually(
                lambda: producer.call(refused_bodies), seconds=15, what="a send after segments went"
            )
            server.restart()
            load.drain()
            verdict = check(load.events(), log=server.stderr)
        finally:
            load.close()
        server.assert_no_traceback()
    verdict.assert_clean()


def test_operators_and_clients_are_told_of_a_full_disk_in_the_same_words(disk: LoopDisk) -> None:
    """From the first append that is refused, although smaller ones would still fit."""
    ballast = disk.path / "ballast"
    ballast.write_bytes(b"\0" * (disk.free_bytes - 8 * 1_048_576))
    folder = disk.path / "data"
    with Server(folder, env=ENV, port=stable_port()) as server:
        client = RawClient(server.port)
        url = client.call("CreateQueue", {"QueueName": "q"})["QueueUrl"]
        refusal = ""
        for _ in range(SENDS_MAX):
            try:
                client.call("SendMessage", {"QueueUrl": url, "MessageBody": "x" * 900_000})
            except Fault as error:
                refusal = error.message
                break
        client.call("SendMessage", {"QueueUrl": url, "MessageBody": "small"})
        client.close()
        words = "disk is full: "
        assert words in refusal
        assert " reserved for deletes" in refusal
        assert "receive and delete messages, or free space" in refusal
        assert str(folder) not in refusal

        def reasons() -> list[dict[str, str]]:
            return [
                one for one in json.loads(server.readyz()[1])["reasons"] if words in one["text"]
            ]

        eventually(lambda: bool(reasons()), seconds=5, what="a reason in readyz")
        (reason,) = reasons()
        assert reason["kind"] == "disk_full"
        assert server.metrics()['penstock_trouble{kind="disk_full"}'] == 1

        def logged(text: str) -> list[str]:
            return [line for line in server.stderr.splitlines() if text in line]

        eventually(lambda: bool(logged(words)), seconds=10, what="a line in the log")
        (began,) = logged(words)
        told = json.loads(began)
        assert (told["trouble"], told["folder"]) == ("disk_full", str(folder))
        assert told["free_bytes"] > told["reserve_bytes"] > 1_000_000
        environment = {**os.environ, "PENSTOCK_ENDPOINT": server.url}
        doctor = subprocess.run(
            [sys.executable, "-m", "penstock", "doctor"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert doctor.returncode == 8
        assert words in doctor.stdout

        ballast.unlink()
        eventually(lambda: not reasons(), seconds=5, what="no reason in readyz")
        over = "disk has space again"
        eventually(lambda: bool(logged(over)), seconds=10, what="its end in the log")
        (ended,) = logged(over)
        assert json.loads(ended)["free_bytes"] > told["free_bytes"]
        assert server.metrics()['penstock_trouble{kind="disk_full"}'] == 0
        server.assert_no_traceback()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ballast", "ballast.fifo"])
def test_sends_go_on_when_someone_else_makes_room(
    disk: LoopDisk, ledgers: Path, seed: str, name: str
) -> None:
    ballast = disk.path / "ballast"
    ballast.write_bytes(b"\0" * (disk.free_bytes - 16 * 1_048_576))
    with Server(disk.path / "data", env=ENV, port=stable_port()) as server:
        load = Load(server.port, ledgers, seed=seed)
        client = boto3.client(
            "sqs",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(retries={"max_attempts": 0, "mode": "standard"}),
        )
        try:
            queue = load.create_queue(name)
            groups = 3 if queue.is_fifo else 0
            producer = load.producer("p", queue, groups=groups, payload_bytes=BODY_BYTES)
            consumer = load.consumer("c", queue)
            taken = fill(producer)
            grouping = {"MessageGroupId": "g", "MessageDeduplicationId": "refused"}
            request = {"MessageBody": "x" * (2 * BODY_BYTES), **(grouping if queue.is_fifo else {})}
            with pytest.raises(ClientError) as refused:
                client.send_message(QueueUrl=queue.url, **request)
            assert refused.value.response["Error"]["Code"] == "ServiceUnavailable"
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
            assert "The disk is full: " in refused.value.response["Error"]["Message"]
            consume(consumer, taken // 2)

            ballast.unlink()
            # The same message, refused before: on a FIFO queue its deduplication id must not have
            # been remembered by the refusal, or it would be answered and lost.
            bodies = producer.bodies(1)
            eventually(lambda: producer.call(bodies), seconds=10, what="a send after room was made")
            load.drain()
            verdict = check(load.events(), log=server.stderr)
        finally:
            load.close()
            client.close()
        assert server.stop() == 0, server.stderr_tail()
        server.assert_no_traceback()
    verdict.assert_clean()


def test_a_server_starts_on_a_full_disk_and_gives_out_what_it_has(
    disk: LoopDisk, ledgers: Path, seed: str
) -> None:
    with Server(disk.path / "data", env=ENV, port=stable_port()) as server:
        load = Load(server.port, ledgers, seed=seed)
        try:
            queue = load.create_queue("full-restart")
            fill(load.producer("p", queue, payload_bytes=BODY_BYTES))
            server.kill()
            server.start()
            load.drain()
            verdict = check(load.events(), log=server.stderr)
        finally:
            load.close()
        server.assert_no_traceback()
    verdict.assert_clean()
