"""Random lives of a consumer group: whatever happens, no partition is ever with two members."""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.cursor.groups.harness import SECOND, Shell, topics_of

from penstock.cursor.groups.assignors import Partitions
from penstock.cursor.patterns.matches import Topics
from penstock.wire.kafka.faults import ErrorCode

CLIENTS = 4
NAMES = ["s", "t", "u"]


@dataclass
class Client:
    """What the consumer itself believes; it obeys answers, and gives up when it is fenced."""

    number: int
    instance: str | None
    life: int = 0
    epoch: int = 0  # 0: not joined
    owned: Partitions = frozenset()
    names: tuple[str, ...] = ("t",)
    regex: str = ""
    told_names: tuple[tuple[str, ...], str] | None = None
    said: Partitions | None = None
    heard_ms: int = 0

    @property
    def member(self) -> str:
        return f"m{self.number}.{self.life}"


class ConsumerMachine(RuleBasedStateMachine):
    @initialize(statics=st.integers(0, CLIENTS))
    def start(self, statics: int) -> None:
        self.shell = Shell()
        self.clients = [Client(n, f"i{n}" if n < statics else None) for n in range(CLIENTS)]
        self.counts = {"s": 1, "t": 4, "u": 3}
        self.topics_epoch = 1
        self.highest = 0

    @property
    def topics(self) -> Topics:
        return topics_of(self.topics_epoch, **self.counts)

    def beat(self, client: Client, *, loses_answer: bool = False) -> ErrorCode:
        subscription = (client.names, client.regex)
        is_join = client.epoch == 0
        # A client repeats everything when it is not sure that it was heard.
        is_full = is_join or loses_answer or client.said is None
        reply = self.shell.beat(
            self.topics,
            client.member,
            client.epoch,
            instance=client.instance,
            names=client.names if is_full or client.told_names != subscription else None,
            regex=client.regex if is_full or client.told_names != subscription else None,
            owned=client.owned if is_full or client.said != client.owned else None,
            rebalance_ms=30 * SECOND,
        )
        if loses_answer:
            client.said = None
            return ErrorCode.NONE
        client.said, client.told_names = client.owned, subscription
        if reply.code == ErrorCode.NONE:
            client.heard_ms = self.shell.now_ms
            client.epoch = reply.member_epoch
            if reply.assignment is not None:
                client.owned = reply.assignment
        elif reply.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.drop(client)
        elif reply.code == ErrorCode.FENCED_INSTANCE_ID:
            self.drop(client)
            client.life += 1
        else:
            assert reply.code == ErrorCode.UNRELEASED_INSTANCE_ID
        return reply.code

    def drop(self, client: Client) -> None:
        client.owned = frozenset()
        client.epoch = 0
        client.said = None

    # ── Rules ────────────────────────────────────────────────────────────────────────────────
    @rule(number=st.integers(0, CLIENTS - 1), loses_answer=st.booleans())
    def heartbeat(self, number: int, loses_answer: bool) -> None:
        self.beat(self.clients[number], loses_answer=loses_answer and number == 0)

    @rule(order=st.permutations(range(CLIENTS)))
    def heartbeat_of_all(self, order: list[int]) -> None:
        for number in order:
            self.beat(self.clients[number])
            self.no_partition_is_with_two_consumers()

    @rule(number=st.integers(0, CLIENTS - 1), names=st.sets(st.sampled_from(NAMES), min_size=1))
    def subscribe(self, number: int, names: set[str]) -> None:
        self.clients[number].names = tuple(sorted(names))

    @rule(number=st.integers(0, CLIENTS - 1), regex=st.sampled_from(["", "[tu]", "s.*"]))
    def subscribe_by_pattern(self, number: int, regex: str) -> None:
        self.clients[number].regex = regex

    @rule(number=st.integers(0, CLIENTS - 1), is_short=st.booleans())
    def leave(self, number: int, is_short: bool) -> None:
        client = self.clients[number]
        if client.epoch > 0:
            epoch = -2 if is_short and client.instance is not None else -1
            self.drop(client)
            self.shell.beat(self.topics, client.member, epoch, instance=client.instance)
            client.life += 1

    @rule(number=st.integers(0, CLIENTS - 1))
    def crash(self, number: int) -> None:
        client = self.clients[number]
        self.drop(client)
        client.life += 1

    @rule(name=st.sampled_from(NAMES))
    def grow(self, name: str) -> None:
        self.counts[name] = min(6, self.counts[name] + 1)
        self.topics_epoch += 1

    @rule(ms=st.sampled_from([SECOND, 9 * SECOND, 31 * SECOND, 46 * SECOND]))
    def wait(self, ms: int) -> None:
        self.shell.advance(ms)
        # A consumer that was not heard of for its session time stops by itself.
        for client in self.clients:
            if self.shell.now_ms - client.heard_ms >= 30 * SECOND:
                self.drop(client)

    @rule()
    def restart(self) -> None:
        self.shell.restart()

    @rule()
    def settle(self) -> None:
        """Some rounds of heartbeats, long enough for the dead to be out: then all is assigned."""
        for _ in range(12):
            for client in self.clients:
                self.beat(client)
            self.shell.advance(5 * SECOND)
        for _ in range(8):
            codes = {self.beat(client) for client in self.clients}
        assert codes == {ErrorCode.NONE}
        assert self.shell.groups.describe("g").state == "Stable"
        names = {n for c in self.clients for n in c.names}
        names |= {"t", "u"} if any(c.regex == "[tu]" for c in self.clients) else set()
        names |= {"s"} if any(c.regex == "s.*" for c in self.clients) else set()
        wanted = {(f"id-{n}", p) for n in names for p in range(self.counts[n])}
        shares = [partition for c in self.clients for partition in c.owned]
        assert len(shares) == len(set(shares))
        assert set(shares) == wanted

    # ── What always holds ────────────────────────────────────────────────────────────────────
    @invariant()
    def no_partition_is_with_two_consumers(self) -> None:
        shares = [partition for client in self.clients for partition in client.owned]
        assert len(shares) == len(set(shares))

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        self.shell.check_replay()

    @invariant()
    def epochs_rise(self) -> None:
        description = self.shell.groups.describe("g")
        if description.code == ErrorCode.NONE:
            assert description.epoch >= self.highest
            assert description.target_epoch <= description.epoch
            self.highest = description.epoch
            for member in description.consumer_members:
                assert member.member_epoch <= description.target_epoch


TestConsumerMachine = ConsumerMachine.TestCase
TestConsumerMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
