"""Random lives of a streams group: whatever happens, no task is ever active in two members, and
never twice in one process; in the end every task is assigned."""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.cursor.groups.harness import SECOND, Shell, topics_of
from tests.unit.cursor.groups.streams.streams_topologies import beat

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.settings import STREAMS_STANDBYS
from penstock.cursor.groups.streams.task_assignor import Tasks
from penstock.cursor.patterns.matches import Topics
from penstock.wire.kafka.faults import ErrorCode

CLIENTS = 4
NOTHING: Tasks = frozenset()


@dataclass
class Client:
    """What the thread itself believes; it obeys replies, and gives up when it is fenced."""

    number: int
    life: int = 0
    epoch: int = 0  # 0: not joined
    active: Tasks = NOTHING
    standby: Tasks = NOTHING
    said: tuple[Tasks, Tasks] | None = None
    heard_ms: int = 0

    @property
    def member(self) -> str:
        return f"m{self.number}.{self.life}"

    @property
    def process(self) -> str:
        return f"p{self.number // 2}"  # two threads each


class StreamsMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.shell = Shell()
        self.clients = [Client(n) for n in range(CLIENTS)]
        self.count = 3
        self.topics_epoch = 1
        self.has_topics = True
        self.highest = 0

    @property
    def topics(self) -> Topics:
        names = ["lines", "by-word", "counts"] if self.has_topics else ["lines"]
        return topics_of(self.topics_epoch, **dict.fromkeys(names, self.count))

    def beat(self, client: Client, *, loses_answer: bool = False) -> ErrorCode:
        is_join = client.epoch == 0
        owned = (client.active, client.standby)
        is_said = not is_join and (loses_answer or client.said != owned)
        reply = beat(
            self.shell,
            client.member,
            client.epoch,
            topics=self.topics,
            active=client.active if is_said else None,
            standby=client.standby if is_said else None,
            process_id=client.process if is_join else None,
        )
        if loses_answer:
            client.said = None
            return ErrorCode.NONE
        client.said = owned
        if reply.code == ErrorCode.NONE:
            client.heard_ms = self.shell.now_ms
            client.epoch = reply.member_epoch
            if reply.assignment is not None:
                client.active, client.standby = reply.assignment
        else:
            assert reply.code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.INVALID_REQUEST,  # a topic has fewer partitions: the task is not there
            ), reply
            self.drop(client)
        return reply.code

    def drop(self, client: Client) -> None:
        client.active = client.standby = NOTHING
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
            self.no_task_has_two_owners()

    @rule(number=st.integers(0, CLIENTS - 1))
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if client.epoch > 0:
            self.drop(client)
            beat(self.shell, client.member, -1, topics=self.topics)
            client.life += 1

    @rule(number=st.integers(0, CLIENTS // 2 - 1))
    def crash(self, number: int) -> None:
        """A process with its threads."""
        for client in self.clients[2 * number : 2 * number + 2]:
            self.drop(client)
            client.life += 1

    @rule(count=st.integers(1, 5), has_topics=st.booleans())
    def change_topics(self, count: int, has_topics: bool) -> None:
        self.count, self.has_topics = count, has_topics
        self.topics_epoch += 1

    @rule(count=st.integers(0, 2))
    def set_standbys(self, count: int) -> None:
        changes = {STREAMS_STANDBYS: str(count)}
        ticket = self.shell.decide(
            self.shell.groups.change_configs, calls.ChangeConfigs("g", changes)
        )
        assert self.shell.reply(ticket, Reply).code == ErrorCode.NONE

    @rule(ms=st.sampled_from([SECOND, 9 * SECOND, 31 * SECOND, 46 * SECOND]))
    def wait(self, ms: int) -> None:
        self.shell.advance(ms)
        for client in self.clients:
            if self.shell.now_ms - client.heard_ms >= 30 * SECOND:
                self.drop(client)

    @rule()
    def restart(self) -> None:
        self.shell.restart()

    @rule()
    def settle(self) -> None:
        """Some rounds of heartbeats, long enough for the dead to be out: then all is assigned."""
        self.has_topics = True
        self.topics_epoch += 1
        for _ in range(12):
            for client in self.clients:
                self.beat(client)
            self.shell.advance(5 * SECOND)
        for _ in range(10):
            codes = {self.beat(client) for client in self.clients}
        assert codes == {ErrorCode.NONE}
        found = self.shell.groups.describe("g")
        assert found.state == "Stable"
        wanted = {(name, number) for name in "01" for number in range(self.count)}
        assert {task for client in self.clients for task in client.active} == wanted
        standbys = int(self.shell.groups.configs("g").get(STREAMS_STANDBYS, 0))
        copied = {task for client in self.clients for task in client.standby}
        assert copied == ({task for task in wanted if task[0] == "1"} if standbys else set())

    # ── What always holds ────────────────────────────────────────────────────────────────────
    @invariant()
    def no_task_has_two_owners(self) -> None:
        actives = [task for client in self.clients for task in client.active]
        assert len(actives) == len(set(actives))
        for first, second in zip(self.clients[::2], self.clients[1::2], strict=True):
            held = [*first.active, *first.standby, *second.active, *second.standby]
            assert len(held) == len(set(held)), "the state of a task is in one folder"

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        self.shell.check_replay()

    @invariant()
    def epochs_rise(self) -> None:
        found = self.shell.groups.describe("g")
        if found.code == ErrorCode.NONE:
            assert found.epoch >= self.highest
            assert found.target_epoch <= found.epoch
            self.highest = found.epoch
            for member in found.streams_members:
                assert member.member_epoch <= found.target_epoch


TestStreamsMachine = StreamsMachine.TestCase
TestStreamsMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
