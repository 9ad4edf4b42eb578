"""A callee that hangs: metadata that cannot be written, because another process holds its file.
What needs it fails soon and says so, messages go on, and it recovers without anybody's help."""

from __future__ import annotations

import http.client
import json
import sqlite3
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.client import Fault, RawClient
from tests.harness.patience import eventually
from tests.harness.server import Server

DEADLINE_SECONDS = 4.0  # after which a call to the metadata is given up
AT_ONCE_SECONDS = 1.0
FAILURES_MAX = 5  # until nobody waits any more
RECOVERY_SECONDS_MAX = 40.0  # the longest pause between two tries, and the try itself


@contextmanager
def locked(metadata: Path) -> Iterator[None]:
    """Nobody else can write to it meanwhile."""
    connection = sqlite3.connect(metadata, isolation_level=None, timeout=10)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def create(port: int, name: str) -> tuple[str, float]:
    """What came of it, and how long it took."""
    client = RawClient(port)
    started = time.monotonic()
    try:
        client.call("CreateQueue", {"QueueName": name})
        outcome = "OK"
    except Fault as fault:
        outcome = f"{fault.status} {fault.message}"
    finally:
        client.close()
    return outcome, time.monotonic() - started


def callee(server: Server, name: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(server.admin_url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", "/api/v1/callees")
        shown = json.loads(connection.getresponse().read())["callees"]
    finally:
        connection.close()
    found: dict[str, Any] = next(each for each in shown if each["name"].startswith(name))
    return found


def test_metadata_that_hangs_stops_new_queues_only_and_for_no_longer_than_it_hangs(
    tmp_path: Path,
) -> None:
    with Server(tmp_path, fsync="always") as server:
        assert create(server.port, "known")[0] == "OK"
        url = f"{server.url}/000000000000/known"
        messages = RawClient(server.port)
        with locked(tmp_path / "metadata.sqlite3"):
            outcomes: list[tuple[str, float]] = []
            threads = [
                threading.Thread(target=lambda n=n: outcomes.append(create(server.port, f"q{n}")))
                for n in range(FAILURES_MAX)
            ]
            for thread in threads:
                thread.start()
            times: list[float] = []
            while any(thread.is_alive() for thread in threads):
                started = time.monotonic()
                messages.call("SendMessage", {"QueueUrl": url, "MessageBody": "m"})
                got = messages.call("ReceiveMessage", {"QueueUrl": url})["Messages"]
                receipt = {"QueueUrl": url, "ReceiptHandle": got[0]["ReceiptHandle"]}
                messages.call("DeleteMessage", receipt)
                times.append(time.monotonic() - started)
            for thread in threads:
                thread.join()
            # Whoever waits for the metadata waits for all of its deadline, each time.
            assert statistics.median(times) < AT_ONCE_SECONDS, "messages waited for the metadata"
            assert max(times) < DEADLINE_SECONDS, "a message waited for the metadata"
            for outcome, seconds in outcomes:
                assert outcome == "503 metadata did not reply in time."
                assert seconds < 2 * DEADLINE_SECONDS  # one behind the other it would be 20
            assert callee(server, "metadata")["state"] != "closed"
            # Those that find out whether it is back wait; the pause between them grows.
            refused = [create(server.port, "refused") for _ in range(3)]
            outcome, seconds = min(refused, key=lambda each: each[1])
            assert outcome == "503 metadata does not reply; retry shortly."
            assert seconds < AT_ONCE_SECONDS
            assert callee(server, "backend:")["state"] == "closed"
            messages.call("SendMessage", {"QueueUrl": url, "MessageBody": "still"})
        eventually(
            lambda: create(server.port, "afterwards")[0] == "OK",
            seconds=RECOVERY_SECONDS_MAX,
            what="the metadata is called again",
        )
        assert callee(server, "metadata")["state"] == "closed"
        messages.close()
        assert server.stop() == 0, server.stderr_tail()
        assert "circuit breaker opened" in server.stderr
        assert "circuit breaker closed" in server.stderr
        server.assert_no_traceback()
