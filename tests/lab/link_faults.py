"""Faults of the ways between places: cut, cut one way, lossy and late, reset."""

from __future__ import annotations

from tests.harness.ledger import now_ns
from tests.lab.faults import Fault, Stage
from tests.lab.relay import BadLinks, Badness

STORM_ROUNDS = 6
STORM_SECONDS = 0.5
BAD_SECONDS = 8.0
CUT_SECONDS = 12.0  # longer than a follower may lag, and than a lease


class _Cut(Fault):
    """The way between some places is out until healed; the effect is a row that changed."""

    needs_net = True

    def _begin(self, cuts: list[tuple[str, str]], *, one_way: bool = False) -> None:
        self.injected_at = now_ns()
        net = self.stage.net
        for one, two in cuts:
            if one_way:
                net.cut_one_way(one, two)
            else:
                net.cut(one, two)
        assert all(net.is_cut(one, two) for one, two in cuts), "a way was not cut"

    def _wait_rows(self, what: str) -> None:
        rows = self.cluster.rows

        def changed() -> int:
            return len(rows.failovers(self.injected_at)) + len(
                rows.in_sync_changes(self.injected_at)
            )

        self.stage.wait(changed, what)
        self._hold()
        if changed():
            failovers = len(rows.failovers(self.injected_at))
            in_sync = len(rows.in_sync_changes(self.injected_at))
            self.evidence = f"{failovers} failovers, {in_sync} changes of in-sync sets"

    def _hold(self) -> None:
        """A cut that is over as soon as it is noticed would try little."""
        until = self.injected_at + int(CUT_SECONDS * 1e9)
        self.stage.wait(lambda: now_ns() >= until, "the time of a cut")

    def heal(self) -> None:
        self.stage.net.heal()


class CutLeaderFromStore(_Cut):
    """F5: the leader does not reach etcd, and everybody else does."""

    name = "F5 leader without etcd"

    def inject(self) -> None:
        leader = self.stage.leader()
        self.victims = (f"n{leader}",)
        self._begin([(f"n{leader}", member) for member in self.cluster.member_names()])
        self.wait_taken_over(leader)
        self._hold()


class CutLeaderFromFollowers(_Cut):
    """F6: the leader reaches etcd and clients, and no other node."""

    name = "F6 leader without followers"

    def inject(self) -> None:
        leader = self.stage.leader()
        self.victims = (f"n{leader}",)
        self._begin([(f"n{leader}", f"n{other}") for other in self.cluster.followers(leader)])
        self._wait_rows("in-sync sets without the followers, or other leaders")


class CutOneWay(_Cut):
    """F7: what the leader says is not heard by the others; what they say, it hears."""

    name = "F7 one-way partition"

    def inject(self) -> None:
        leader = self.stage.leader()
        self.victims = (f"n{leader}",)
        others = self.cluster.followers(leader)
        self._begin([(f"n{leader}", f"n{other}") for other in others], one_way=True)
        self._wait_rows("rows change because followers hear nothing")


class CutBridge(_Cut):
    """F7: one node sees both others, and those do not see each other."""

    name = "F7 bridge partition"

    def inject(self) -> None:
        bridge = self.stage.chance.choice(sorted(self.cluster.nodes))
        one, two = self.cluster.followers(bridge)
        self.victims = (f"n{one}", f"n{two}")
        self._begin([(f"n{one}", f"n{two}")])
        self._wait_rows("rows change because two do not see each other")


class BadNetwork(Fault):
    """F8: between nodes packets are lost, late, overtaken and doubled for a while."""

    name = "F8 loss, delay, reorder, duplicates"
    needs_net = True
    badness = Badness(loss=0.1, delay_ms=50, jitter_ms=50, twice=0.05)

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._links: BadLinks | None = None

    def inject(self) -> None:
        names = [f"n{number}" for number in self.cluster.nodes]
        self.victims = tuple(names)
        pairs = [(one, two) for one in names for two in names if one < two]
        self.injected_at = now_ns()
        seed = str(self.stage.chance.random())
        self._links = BadLinks(self.stage.net, pairs, self.badness, seed=seed)
        until = now_ns() + int(BAD_SECONDS * 1e9)
        self.stage.wait(lambda: now_ns() >= until, "the time of a bad network")

    def heal(self) -> None:
        if self._links is None:
            return
        done = self._links.end()
        if done.lost and done.overtaken and done.twice:
            self.evidence = (
                f"{done.passed} packets passed, {done.lost} lost,"
                f" {done.overtaken} overtaken, {done.twice} doubled"
            )


class ResetStorm(Fault):
    """F9: all connections of all nodes are reset, several times."""

    name = "F9 reset storm"
    needs_net = True

    def inject(self) -> None:
        self.victims = tuple(f"n{number}" for number in self.cluster.nodes)
        self.injected_at = now_ns()
        count = 0
        for _ in range(STORM_ROUNDS):
            for name in self.victims:
                count += self.stage.net.reset_connections(name)
            until = now_ns() + int(STORM_SECONDS * 1e9)
            self.stage.wait(lambda until=until: now_ns() >= until, "the next round")  # type: ignore[misc]
        self.evidence = f"{count} connections reset" if count else ""
