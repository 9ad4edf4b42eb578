"""``penstock cluster`` against a real admin API with real managers behind it."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.cli.conftest import Cli, Endpoint
from tests.unit.cli.ward import Ward
from tests.unit.manager.cluster import until

from penstock.cli.cluster import changes
from penstock.cli.command import Session
from penstock.cli.terminal.failure import ExitCode
from penstock.model.levels import Levels
from penstock.model.troubles import node_dead


@pytest.fixture
def ward(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ward]:
    for name in ("PENSTOCK_TOKEN", "PENSTOCK_ADMIN_TOKEN", "PENSTOCK_ACCOUNT", "PENSTOCK_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(changes, "POLL_EVERY_S", 0.02)
    monkeypatch.setattr(changes, "PRINT_EVERY_S", 0.0)
    ward = Ward(tmp_path)
    monkeypatch.setenv("PENSTOCK_ADMIN", ward.url)
    yield ward
    ward.close()


class TestStatus:
    def test_says_that_all_is_well(self, cli: Cli, ward: Ward) -> None:
        done = cli("cluster", "status", "-o", "table")
        assert done.code == 0
        assert done.out.splitlines()[0] == "healthy: 4 nodes, 8 partitions, level 1"
        assert [line.split()[1] for line in done.out.splitlines()[3:]] == ["n1", "n2", "n3", "n4"]
        assert "alive, manager" in done.out
        told = cli("cluster", "status").json
        assert told["healthy"] is True
        assert told["problems"] == told["remarks"] == []
        assert cli("cluster", "status", "-o", "name").out == "True\n"

    def test_names_what_is_wrong_and_fails(self, cli: Cli, ward: Ward) -> None:
        ward.run(ward.cluster.kill(3))
        held = sum(3 in row.replicas for row in ward.cluster.rows("a"))
        done = cli("cluster", "status", "-o", "table")
        assert done.code == 1
        assert done.out.startswith("something is wrong: 3 nodes, 8 partitions, level 1\n")
        trouble = node_dead(3, "n3", held)
        assert f"{trouble.text}; do: {trouble.do}" in done.out
        assert "penstock cluster decommission 3" in trouble.do
        assert f"{held} partitions with fewer replicas than configured" in done.out
        assert done.err == ""
        told = cli("cluster", "status")
        assert (told.code, told.json["healthy"]) == (1, False)
        assert told.json["partitions"]["under_replicated"] == held

    def test_mentions_what_is_merely_going_on(self, cli: Cli, ward: Ward) -> None:
        assert cli("cluster", "drain", "4").code == 0
        ward.run(until(lambda: 4 not in ward.cluster.replicas("a")))
        told = cli("cluster", "status")
        assert told.code == 0
        assert told.json["remarks"] == ["node 4 is being drained and is empty"]

    def test_of_a_node_by_itself_is_refused_in_words(self, cli: Cli, endpoint: Endpoint) -> None:
        endpoint.paths["/api/v1/cluster"] = (
            404,
            {"error": {"code": "not_found", "message": "This node is not part of a cluster."}},
        )
        done = cli("cluster", "status")
        assert done.code == ExitCode.NOT_FOUND
        assert "not part of a cluster" in done.err


class TestLists:
    def test_members_have_addresses(self, cli: Cli, ward: Ward) -> None:
        found = cli("cluster", "members").lines
        assert [one["node"] for one in found] == [1, 2, 3, 4]
        assert found[0]["internal"] == "127.0.0.1:1"
        assert cli("cluster", "members", "-o", "name").out.split() == ["1", "2", "3", "4"]
        assert "KAFKA" in cli("cluster", "members", "-o", "table").out

    def test_partitions_can_be_chosen(self, cli: Cli, ward: Ward) -> None:
        found = cli("cluster", "partitions").lines
        assert [(one["topic"], one["partition"]) for one in found] == [("a", n) for n in range(8)]
        on_two = cli("cluster", "partitions", "--node", "2").lines
        assert 0 < len(on_two) < 8
        assert all(2 in one["replicas"] for one in on_two)
        assert not cli("cluster", "partitions", "--under-replicated").lines
        assert len(cli("cluster", "partitions", "--topic", "a").lines) == 8
        missing = cli("cluster", "partitions", "--topic", "b")
        assert missing.code == ExitCode.NOT_FOUND
        assert cli("cluster", "partitions", "--under-replicated", "--state", "lost").code == 2
        table = cli("cluster", "partitions", "-o", "table").out.splitlines()
        assert table[0].split()[:5] == ["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS"]
        assert table[1].endswith("ok")


class TestChanges:
    def test_a_drain_that_cannot_end_says_so(self, cli: Cli, ward: Ward) -> None:
        ward.run(ward.cluster.kill(4))
        cli("cluster", "drain", "4")
        ward.run(until(lambda: 4 not in ward.cluster.replicas("a")))
        done = cli("cluster", "drain", "3")
        assert done.json["stuck"] == done.json["replicas"] == 8
        assert "8 partitions cannot move" in done.err
        assert cli("cluster", "undrain", "3").json["is_draining"] is False

    def test_an_unclean_election_wants_to_hear_that_data_may_be_lost(
        self, cli: Cli, ward: Ward
    ) -> None:
        row = ward.cluster.row("a", 5)
        chosen = str(row.replicas[2])
        done = cli("cluster", "unclean-elect", "a", "5", chosen)
        assert done.code == ExitCode.USAGE
        assert "--yes-lose-data" in done.err
        assert ward.cluster.row("a", 5).epoch == row.epoch
        done = cli("cluster", "unclean-elect", "a", "5", chosen, "--yes-lose-data")
        assert done.json == {"topic": "a", "partition": 5, "leader": int(chosen)}
        ward.run(until(lambda: ward.cluster.row("a", 5).epoch > row.epoch))
        done = cli("cluster", "unclean-elect", "a", "5", "77", "--yes-lose-data")
        assert (done.code, "no replica" in done.err) == (1, True)

    def test_a_partition_is_placed_and_leaders_are_given_back(self, cli: Cli, ward: Ward) -> None:
        assert cli("cluster", "place", "a", "0", "4", "3", "2").json["moving_to"] == [4, 3, 2]
        ward.run(until(lambda: ward.cluster.row("a", 0).replicas == (4, 3, 2)))
        assert cli("cluster", "rebalance").json == {"leaders_changed": 0}
        assert cli("cluster", "place", "a", "0").code == 2
        for verb in (("place", "a", "8", "4"), ("unclean-elect", "a", "8", "4", "--yes-lose-data")):
            wrong = cli("cluster", *verb)
            assert wrong.code == ExitCode.NOT_FOUND
            assert "topic a has 8 partitions (0 to 7); there is no partition 8" in wrong.err


class TestUpgrade:
    """Of a cluster that an older version has begun, with nodes of this one."""

    @pytest.fixture
    def old(self, ward: Ward) -> Ward:
        for number in (1, 2, 3, 4):
            ward.run(ward.rejoin(number, Levels(1, 2) if number != 4 else Levels(1, 1)))
        return ward

    def test_says_which_nodes_are_in_the_way(self, cli: Cli, old: Ward) -> None:
        done = cli("cluster", "upgrade", "--to", "2", "--dry-run", "-o", "table")
        assert done.code == ExitCode.CONFLICT
        assert done.out.splitlines() == [
            "the feature level could not be raised from 1 to 2",
            "  - node 4 (n4) has version ? and supports level 1",
        ]
        refused = cli("cluster", "upgrade", "--to", "2")
        assert refused.code == ExitCode.CONFLICT
        assert "node 4 (n4)" in refused.err
        latest = cli("cluster", "upgrade", "-o", "table")
        assert latest.code == 0
        assert latest.out == "the cluster is at feature level 1: nothing to raise\n"
        members = cli("cluster", "members").lines
        assert [one["levels"] for one in members] == ["1-2", "1-2", "1-2", "1"]

    def test_raises_it_when_all_can_and_never_lowers_it(self, cli: Cli, old: Ward) -> None:
        old.run(old.rejoin(4, Levels(1, 2)))
        assert "all nodes support feature level 2" in cli("cluster", "status").json["remarks"][0]
        tried = cli("cluster", "upgrade", "--dry-run", "-o", "table")
        assert (tried.code, tried.out) == (
            0,
            "the feature level could be raised from 1 to 2\n",
        )
        done = cli("cluster", "upgrade", "-o", "table")
        assert (done.code, done.out) == (0, "the feature level was raised from 1 to 2\n")
        told = cli("cluster", "status").json
        assert told["level"] == {"in_force": 2, "wanted": None, "latest": 2}
        assert told["remarks"] == []
        lowered = cli("cluster", "upgrade", "--to", "1")
        assert (lowered.code, "cannot be lowered" in lowered.err) == (1, True)
        for wrong in ("0", "-1", "newest", "9" * 9):
            assert cli("cluster", "upgrade", "--to", wrong).code == ExitCode.USAGE

    def test_nothing_is_raised_while_a_node_is_away(self, cli: Cli, old: Ward) -> None:
        old.run(old.cluster.kill(4))
        done = cli("cluster", "upgrade", "--to", "2")
        assert done.code == ExitCode.CONFLICT
        assert "node 4 is dead and has partitions" in done.err


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is ten seconds later: a wait ends after an answer or two, however long
    they take."""
    looks = itertools.count(0, 10)
    clock = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda _: None)
    monkeypatch.setattr(changes, "time", clock)


class TestWaiting:
    def test_returns_at_once_when_it_is_safe(self, cli: Cli, ward: Ward) -> None:
        done = cli("cluster", "wait-safe")
        assert (done.code, done.json["is_safe"], done.json["node"]) == (0, True, None)
        assert cli("cluster", "wait-safe", "-o", "table").out == (
            "safe: any one node can be stopped\n"
        )

    @pytest.mark.usefixtures("hasty")
    def test_ends_with_the_time_and_says_why(self, cli: Cli, ward: Ward) -> None:
        ward.run(ward.cluster.kill(3))
        ward.run(until(lambda: 3 not in ward.cluster.leaders("a")))
        done = cli("cluster", "wait-safe", "--node", "2", "--timeout", "20")
        assert done.code == ExitCode.TIMEOUT
        assert "it is not safe to stop node 2" in done.err
        assert "could not be written to without node 2" in done.err
        done = cli("cluster", "wait-safe", "--node", "9", "--timeout", "20")
        assert done.code == ExitCode.TIMEOUT
        assert "no node 9" in done.err

    def test_goes_on_when_it_has_become_safe(
        self, cli: Cli, ward: Ward, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While it waits, the missing node comes back."""
        ward.run(ward.cluster.kill(3))
        ward.run(until(lambda: 3 not in ward.cluster.leaders("a")))
        waits, remark = threading.Event(), Session.remark

        def remarking(self: Session, text: str) -> None:
            remark(self, text)
            waits.set()

        monkeypatch.setattr(Session, "remark", remarking)
        back = threading.Thread(target=lambda: waits.wait(20) and ward.run(ward.cluster.join(3)))
        back.start()
        done = cli("cluster", "wait-safe", "--timeout", "20")
        back.join()
        assert done.code == 0, done.err
        assert "waiting: " in done.err

    def test_keeps_asking_while_nobody_answers(
        self, cli: Cli, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The node that is asked may be the one that is being restarted."""
        monkeypatch.setattr(changes, "POLL_EVERY_S", 0.02)
        now = {"leaderless": 0, "below_minimum": 0, "missing": 0, "nodes": []}
        answers = [(503, {}), (200, {"is_safe": False, **now}), (200, {"is_safe": True, **now})]
        endpoint.paths["/api/v1/cluster/safety"] = lambda _: answers.pop(0)
        assert cli("cluster", "wait-safe").code == 0
        assert not answers
        assert len(endpoint.requests("/_penstock/info")) == 2

    def test_a_node_is_emptied_and_may_go(self, cli: Cli, ward: Ward) -> None:
        done = cli("cluster", "decommission", "2", "-o", "table")
        assert done.code == 0, done.err
        assert "node 2 is empty: stop it for good" in done.out
        assert 2 not in ward.cluster.replicas("a")
        done = cli("cluster", "decommission", "3")
        assert done.code == ExitCode.CONFLICT
        assert "have no other node to move to" in done.err

    @pytest.mark.usefixtures("hasty")
    def test_a_wait_that_ends_early_says_how_to_go_on(self, cli: Cli, ward: Ward) -> None:
        for node in ward.cluster.nodes.values():
            node.is_catching_up = False  # so that nothing comes to an end
        done = cli("cluster", "decommission", "2", "--timeout", "20")
        assert done.code == ExitCode.TIMEOUT
        assert "penstock cluster undrain 2" in done.err
