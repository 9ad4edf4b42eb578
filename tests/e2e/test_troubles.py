"""Troubles that an operator finds at night, on real processes: one wording in the log, in /readyz,
in the metrics and in the commands."""

import json
import os
import re
from pathlib import Path

import pytest
from tests.harness import forks
from tests.harness.cluster import PenstockCluster
from tests.harness.command import Done
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command
from tests.lab.clock_faults import LACKING as NO_FAKETIME
from tests.lab.clock_faults import LIBRARY

SECONDS_MAX = 200.0
needs_etcd = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))


def run(server: Server, *args: str, stdin: str = "", **env: str) -> Done:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "AWS_"))}
    settings = {**kept, "PENSTOCK_ENDPOINT": server.url, **env}
    done = forks.run([penstock_command(), *args], stdin=stdin, env=settings)
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def texts(server: Server) -> list[str]:
    return [one["text"] for one in json.loads(server.readyz()[1])["reasons"]]


def test_a_start_gives_root_a_key_if_users_exist_and_no_operator_has_one(tmp_path: Path) -> None:
    """A server is tried without authentication, users are created, then it is turned on."""
    with Server(tmp_path / "data") as server:
        assert run(server, "user", "create", "ann").code == 0
        made = run(server, "key", "create", "ann", "-o", "json")
        assert made.code == 0
        ann = json.loads(made.out)
        server.stop()
        server.arguments = ("--auth", "on")
        server.start()
        assert "no operator has an access key" in server.stderr
        key_id, secret = (
            re.findall(rf"{name} = (\S+)", server.stdout)[-1]
            for name in ("aws_access_key_id", "aws_secret_access_key")
        )
        root = {"PENSTOCK_KEY_ID": key_id, "PENSTOCK_SECRET": secret}
        assert run(server, "user", "create", "bob", **root).code == 0
        assert texts(server) == []

        # The last key of an operator is disabled: everybody is told, also who may not ask more.
        assert run(server, "key", "disable", key_id, **root).code == 0
        words = "no operator has an access key, so users, keys and the cluster cannot be managed"
        eventually(
            lambda: any(words in text for text in texts(server)),
            seconds=SECONDS_MAX,
            what="a reason in readyz",
        )
        assert words in server.stderr
        asked = {"PENSTOCK_KEY_ID": ann["key_id"], "PENSTOCK_SECRET": ann["secret"]}
        doctor = run(server, "doctor", **asked)
        assert doctor.code == 8
        assert words in doctor.out
        # As the trouble says: the next start makes another key.
        server.restart()
        assert texts(server) == []
        server.assert_no_traceback()


@pytest.mark.slow
@needs_etcd
def test_a_dead_node_and_a_lost_quorum_are_told_in_one_wording(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path, nodes=3) as cluster:
        first, second, third = (cluster.nodes[number] for number in (1, 2, 3))
        assert run(first, "queue", "create", "jobs").code == 0
        eventually(
            lambda: run(first, "cluster", "status").code == 0,
            seconds=SECONDS_MAX,
            what="a healthy cluster",
        )
        third.kill()
        dead = re.compile(r"node 3 \(\S+\) declared dead, \d+ partitions affected")
        eventually(
            lambda: any(dead.match(text) for text in texts(first)),
            seconds=SECONDS_MAX,
            what="a dead node in readyz",
        )
        (text,) = [one for one in texts(first) if dead.match(one)]
        assert first.metrics()['penstock_trouble{kind="node_dead"}'] == 1
        status = run(first, "cluster", "status", "-o", "table")
        assert status.code == 1
        assert dead.search(status.out)
        assert "penstock cluster decommission 3" in status.out
        doctor = run(first, "doctor")
        assert doctor.code == 8
        assert text in doctor.out
        assert dead.search(first.stderr)

        second.kill()
        words = "quorum lost: "
        eventually(
            lambda: any(words in text for text in texts(first)),
            seconds=SECONDS_MAX,
            what="a lost quorum in readyz",
        )
        assert words in run(first, "cluster", "status", "-o", "table").out
        assert words in run(first, "doctor").out
        assert words in first.stderr
        assert first.metrics()['penstock_trouble{kind="quorum_lost"}'] == 1

        second.start(seconds=SECONDS_MAX)
        third.start(seconds=SECONDS_MAX)
        eventually(lambda: texts(first) == [], seconds=SECONDS_MAX, what="no trouble any more")
        assert "every partition has a leader and enough replicas again" in first.stderr


@pytest.mark.slow
@needs_etcd
@pytest.mark.skipif(NO_FAKETIME is not None, reason=str(NO_FAKETIME))
def test_nodes_behind_a_clock_that_is_ahead_tell_it_in_one_wording(tmp_path: Path) -> None:
    env = {"PENSTOCK_TELEMETRY__FLUSH_MS": "1000"}
    words = "the clocks of this node and another node differ by"

    def tells(node: Server) -> bool:
        return any(text.startswith(words) for text in texts(node))

    with PenstockCluster(tmp_path, nodes=3, env=env) as cluster:
        nodes = [cluster.nodes[number] for number in (1, 2, 3)]
        first, second, third = nodes
        eventually(
            lambda: run(first, "cluster", "status").code == 0,
            seconds=SECONDS_MAX,
            what="a healthy cluster",
        )
        assert not any(tells(node) for node in nodes)
        third.stop()
        ahead = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME": "+20s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        third.env.update(ahead)
        third.start()
        eventually(
            lambda: [tells(node) for node in nodes] == [True, True, False],
            seconds=SECONDS_MAX,
            what="a skew in readyz of the nodes behind",
        )
        for node in (first, second):
            assert words in node.stderr
            assert node.metrics()['penstock_trouble{kind="clock_skew"}'] == 1
        doctor = run(first, "doctor")
        assert words in doctor.out
        status = run(first, "cluster", "status", "-o", "table")
        assert status.code == 1
        assert "the clocks of node 1 and node 3 differ by" in status.out
        assert words not in status.out  # once is enough

        third.stop()
        for name in ahead:
            del third.env[name]
        third.start()
        eventually(
            lambda: not any(tells(node) for node in nodes), seconds=SECONDS_MAX, what="no skew"
        )
        assert "the clocks of the nodes agree again" in first.stderr


@needs_etcd
def test_a_client_is_told_that_the_metadata_store_is_away_and_no_address(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path, nodes=1) as cluster:
        node = cluster.nodes[1]
        cluster.etcd.kill(0)
        eventually(
            lambda: any("metadata store not reachable" in text for text in texts(node)),
            seconds=SECONDS_MAX,
            what="a reason in readyz",
        )
        assert all("127.0.0.1" not in text for text in texts(node))
        refused = run(node, "queue", "create", "late")
        assert refused.code == 5
        assert "127.0.0.1" not in refused.err.replace(node.url, "")
        status = run(node, "cluster", "status", "-o", "table")
        assert "metadata store not reachable" in status.out
