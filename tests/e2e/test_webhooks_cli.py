"""Webhooks from the shell, on one node and on three: what one node is told, every node shows, and
secrets are shown once. Requests to endpoints have tests of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness import forks
from tests.harness.cluster import PenstockCluster
from tests.harness.command import Done
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command

from penstock.cli.terminal.failure import ExitCode

pytestmark = [pytest.mark.slow]

# Nothing listens there. Port 9 is never called: the server calls from 1024 on, and 80 and 443.
URL = "http://127.0.0.1:1024/hooks"
SECONDS_MAX = 60.0


class Site:
    """A shell for each node."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def run(self, *args: str, at: int = 0) -> Done:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "AWS_"))}
        url = self.urls[at % len(self.urls)]
        env = {**kept, "PENSTOCK_ENDPOINT": url, "PENSTOCK_TIMEOUT": f"{SECONDS_MAX:g}s"}

        def answer() -> Done | None:
            done = forks.run([penstock_command(), *args], env=env)
            assert "Traceback" not in done.stderr, done.stderr
            is_busy = done.returncode == ExitCode.UNREACHABLE  # the server says: retry
            return None if is_busy else Done(done.returncode, done.stdout, done.stderr)

        found = eventually(answer, seconds=SECONDS_MAX, what=f"an answer to {args}")
        assert found is not None
        return found

    def ok(self, *args: str, at: int = 0) -> str:
        done = self.run(*args, at=at)
        assert done.code == 0, (args, done.err)
        return done.out

    def json(self, *args: str, at: int = 0) -> Any:
        return json.loads(self.ok(*args, at=at))

    def rows(self, *args: str, at: int = 0) -> list[Any]:
        return [json.loads(line) for line in self.ok(*args, at=at).splitlines()]

    def everywhere(self, hook: str, **wanted: Any) -> None:
        """Wait until every node shows the values. Each watches the metadata store."""
        for at in range(len(self.urls)):

            def is_shown(at: int = at) -> bool:
                done = self.run("subscription", "show", hook, at=at)
                if done.code != 0:
                    return False
                shown = json.loads(done.out)
                found = {**shown["settings"], **shown}
                return all(found[name] == value for name, value in wanted.items())

            eventually(is_shown, seconds=SECONDS_MAX, what=f"node {at + 1} shows {wanted}")


@pytest.fixture(scope="module", params=["one node", "three nodes"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("webhooks")
    if request.param == "one node":
        with Server(folder, kafka_port=0) as server:
            yield Site([server.url])
        return
    if LACKING is not None:
        pytest.skip(LACKING)
    with PenstockCluster(folder) as cluster:
        yield Site([node.url for node in cluster.nodes.values()])


def test_a_webhook_is_created_listed_shown_changed_and_deleted(site: Site, tmp_path: Path) -> None:
    site.ok("queue", "create", "orders", "--partitions", "3")
    made = site.json("subscription", "create", "orders", URL, "--set", "timeout_ms=2000")
    hook, secret = made["id"], made["secret"]
    assert secret.startswith("whsec_")
    site.everywhere(hook, timeout_ms=2_000, state="confirmed", source="orders", paused=None)

    again = site.run("subscription", "create", "orders", URL, at=1)
    assert again.code == ExitCode.CONFLICT
    assert hook in again.err

    for at in range(len(site.urls)):
        assert [row["id"] for row in site.rows("subscription", "list", "orders", at=at)] == [hook]
    assert site.ok("subscription", "list", "-o", "name").split() == [hook]

    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auth": {"type": "bearer", "token": "t0ps3cret"}}))
    words = ["retry.attempts_max=3", "headers.x-team=shop", "--settings", str(file)]
    site.ok("subscription", "set", hook, *words, at=1)
    site.everywhere(
        hook, headers={"x-team": "shop"}, auth={"type": "bearer", "token": "****"}, secret="****"
    )
    shown = site.json("subscription", "show", hook)
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({**shown["settings"], "timeout_ms": 3_000}))
    site.ok("subscription", "set", hook, "--settings", str(edited), at=2)
    site.everywhere(hook, timeout_ms=3_000, auth={"type": "bearer", "token": "****"})
    refused = site.run("subscription", "set", hook, "timeout_ms=5")
    assert refused.code == ExitCode.FAILED
    assert "timeout_ms must be a whole number from 1,000 to 60,000, not 5." in refused.err

    site.ok("subscription", "pause", hook, "--reason", "upgrade", at=2)
    site.everywhere(hook, paused="upgrade")
    site.ok("subscription", "resume", hook, at=1)
    site.everywhere(hook, paused=None)

    rotated = site.json("subscription", "rotate", hook, at=1)
    assert rotated["secret"] not in (secret, "")
    for words in (["show", hook], ["list"], ["show", hook, "-o", "table"]):
        text = site.ok("subscription", *words)
        assert not any(each in text for each in (secret, rotated["secret"], "t0ps3cret"))

    site.ok("subscription", "delete", hook, "--yes", at=2)
    for at in range(len(site.urls)):
        eventually(
            lambda at=at: site.run("subscription", "show", hook, at=at).code == 3,  # type: ignore[misc]
            seconds=SECONDS_MAX,
            what="the webhook is gone",
        )
    assert site.rows("subscription", "list") == []


def test_lag_and_replay_are_of_the_records_of_all_partitions(site: Site) -> None:
    site.ok("topic", "create", "clicks", "--partitions", "2")
    words = ["clicks", URL, "--paused", "--set", "format=standard"]
    hook = site.json("subscription", "create", *words)["id"]
    for number in range(2):
        place = ["--topic", "clicks", "--partition", str(number)]
        site.ok("message", "send", *place, "one", "two", "three")

    def lag() -> Any:
        (row,) = site.rows("subscription", "lag", hook, at=1)
        return row["lag"]

    eventually(lambda: lag() == 6, seconds=SECONDS_MAX, what="six records wait")
    made = site.json("subscription", "replay", hook, "--from", "1:1", at=2)
    starts, until = made["starts"], made["until"]  # events of a share are in the log as well
    assert (starts[1], starts[0]) == (1, until[0])
    assert min(until) >= 3
    made = site.json("subscription", "replay", hook, "--from", "earliest", "--to", "0:2,1:3")
    assert (made["number"], made["starts"], made["until"]) == (2, [0, 0], [2, 3])
    empty = site.run("subscription", "replay", hook, "--from", "2099-01-01")
    assert "The range has no messages." in empty.err
    beyond = site.run("subscription", "redeliver", hook, "0", "1000")
    assert "Partition 0 has the offsets from 0 to " in beyond.err
    site.ok("subscription", "delete", hook, "--yes")


def test_sns_topics_are_created_published_to_and_have_webhooks(site: Site) -> None:
    arn = site.json("topic", "create", "news", "--sns")["arn"]
    assert arn.endswith(":news")
    site.ok("topic", "create", "ledger", "--sns", "--fifo")
    hook = site.json("subscription", "create", arn, URL, "--paused")["id"]
    words = ["--subject", "hi", "-a", "severity:Number=3"]
    assert site.json("topic", "publish", "news", "a new version", *words, at=1)["message_id"]
    sent = site.json("topic", "publish", "ledger.fifo", "1", "--group", "g", "--dedup-id", "d")
    assert len(sent["sequence_number"]) == 20
    (row,) = site.rows("subscription", "list", "news")
    assert (row["id"], row["source"], row["source_arn"]) == (hook, "news", arn)
    ordered = site.json("subscription", "create", "ledger.fifo", URL, "--paused")["id"]
    assert site.json("subscription", "show", ordered)["settings"]["ordered"] == "group"
    gone = site.run("topic", "publish", "nothing", "x")
    assert gone.code == ExitCode.NOT_FOUND
    assert "Topic does not exist" in gone.err
    site.ok("topic", "create", "table", "--config", "cleanup.policy=compact")
    for source, text in (("table", "compacted topic"), ("nothing", "no queue or topic")):
        refused = site.run("subscription", "create", source, URL)
        assert text in refused.err
    checks = json.loads(site.run("doctor").out)["checks"]  # a busy cluster has other troubles
    paused = [one for one in checks if one["check"] == f"subscription {hook}"]
    assert [one["status"] for one in paused] == ["warn"]
    for each in (hook, ordered):
        site.ok("subscription", "delete", each, "--yes")
