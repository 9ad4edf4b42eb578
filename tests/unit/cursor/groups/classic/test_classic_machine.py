"""Random lives of a classic group with clients that behave, crash, come back and lose answers."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.cursor.groups.harness import SECOND, Shell

from penstock.cursor.groups.classic.classic import ClassicGroup
from penstock.cursor.groups.classic.classic_state import JoinReply, State, SyncReply
from penstock.cursor.groups.settings import GroupSettings
from penstock.wire.kafka.faults import ErrorCode

CLIENTS = 4
SESSION = 10 * SECOND
REBALANCE = 20 * SECOND
INITIAL = 3 * SECOND


@dataclass
class Client:
    number: int
    instance: str | None
    member: str = ""
    generation: int = -1
    metadata: bytes = b"m"
    ticket: int | None = None
    parked_at_ms: int = 0
    is_joining: bool = True
    assignment: bytes | None = None
    seen: list[int] = field(default_factory=list)


class GroupMachine(RuleBasedStateMachine):
    @initialize(delay=st.sampled_from([0, INITIAL]), statics=st.integers(0, CLIENTS))
    def start(self, delay: int, statics: int) -> None:
        self.shell = Shell(GroupSettings(initial_delay_ms=delay))
        self.clients = [Client(n, f"i{n}" if n < statics else None) for n in range(CLIENTS)]
        self.highest = 0

    # ── What clients do ──────────────────────────────────────────────────────────────────────
    def join(self, client: Client) -> None:
        client.assignment = None
        client.is_joining = True
        client.parked_at_ms = self.shell.now_ms
        client.ticket = self.shell.send_join(
            member=client.member,
            instance=client.instance,
            session_ms=SESSION,
            rebalance_ms=REBALANCE,
            protocols=(("range", client.metadata),),
            confirms_id=True,
        )

    def collect(self, client: Client) -> None:
        """Look for the answer to a parked request and do what a client would."""
        if client.ticket is None or self.shell.is_parked(client.ticket):
            return
        ticket, client.ticket = client.ticket, None
        if not client.is_joining:
            reply = self.shell.reply(ticket, SyncReply)
            client.assignment = reply.assignment if reply.code == ErrorCode.NONE else None
            self.forget_if_lost(client, reply.code)
            return
        joined = self.shell.reply(ticket, JoinReply)
        if joined.code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member = joined.member_id
            self.join(client)
            self.collect(client)
        elif joined.code == ErrorCode.NONE:
            client.member = joined.member_id
            client.generation = joined.generation
            client.seen.append(joined.generation)
            self.sync(client, joined)
        else:
            self.forget_if_lost(client, joined.code)

    def sync(self, client: Client, joined: JoinReply) -> None:
        shares = {m: f"{joined.generation}:{m}".encode() for m, _, _ in joined.members}
        client.is_joining = False
        client.parked_at_ms = self.shell.now_ms
        client.ticket = self.shell.send_sync(
            client.member,
            joined.generation,
            {} if joined.skip_assignment else shares,
            instance=client.instance,
        )

    def forget_if_lost(self, client: Client, code: ErrorCode) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member = ""

    # ── Rules ────────────────────────────────────────────────────────────────────────────────
    @rule(number=st.integers(0, CLIENTS - 1))
    def poll(self, number: int) -> None:
        client = self.clients[number]
        self.collect(client)
        if client.ticket is not None:
            return
        if not client.member or client.assignment is None:
            self.join(client)
            self.collect(client)
            return
        code = self.shell.heartbeat(client.member, client.generation, instance=client.instance)
        self.forget_if_lost(client, code)
        if code:
            client.assignment = None

    @rule(order=st.permutations(range(CLIENTS)), rounds=st.integers(1, 3))
    def poll_all(self, order: list[int], rounds: int) -> None:
        for number in order * rounds:
            self.poll(number)

    @rule(number=st.integers(0, CLIENTS - 1))
    def crash(self, number: int) -> None:
        client = self.clients[number]
        client.ticket = client.assignment = None
        client.member = ""

    @rule(number=st.integers(0, CLIENTS - 1))
    def lose_connection(self, number: int) -> None:
        client = self.clients[number]
        client.ticket = client.assignment = None

    @rule(number=st.integers(0, CLIENTS - 1), metadata=st.sampled_from([b"m", b"n"]))
    def subscribe(self, number: int, metadata: bytes) -> None:
        self.clients[number].metadata = metadata
        self.clients[number].assignment = None

    @rule(number=st.integers(0, CLIENTS - 1))
    def leave(self, number: int) -> None:
        client = self.clients[number]
        self.collect(client)
        if client.member:
            self.shell.leave((client.member, client.instance))
            self.collect(client)
            client.member = ""
            client.ticket = client.assignment = None

    @rule(ms=st.sampled_from([100, SECOND, 4 * SECOND, 11 * SECOND]))
    def wait(self, ms: int) -> None:
        self.shell.advance(ms)

    @rule()
    def restart(self) -> None:
        self.shell.restart()
        self.highest = self.shell.groups.describe("g").generation
        for client in self.clients:
            client.ticket = client.assignment = None

    # ── What always holds ────────────────────────────────────────────────────────────────────
    @invariant()
    def replay_gives_the_same_state(self) -> None:
        self.shell.check_replay()

    @invariant()
    def a_settled_group_is_what_its_row_says(self) -> None:
        group = self.shell.groups._groups.get("g")
        classic = None if group is None else group.members
        if not isinstance(classic, ClassicGroup):
            return
        if classic.row is not None and classic.state in (State.STABLE, State.EMPTY):
            assert classic.live_row(classic.row.changed_at_ms) == classic.row
        else:
            assert classic.state in (State.PREPARING, State.COMPLETING, State.EMPTY)

    @invariant()
    def generations_rise(self) -> None:
        description = self.shell.groups.describe("g")
        if description.state != "Dead":
            assert description.generation >= self.highest
            self.highest = description.generation

    @invariant()
    def one_generation_is_live_and_its_shares_are_the_leaders(self) -> None:
        """Whoever can beat without being told otherwise has the share its leader gave it."""
        description = self.shell.groups.describe("g")
        if description.state != "Stable":
            return
        for client in self.clients:
            is_current = client.generation == description.generation
            if client.assignment and is_current and client.instance is None:
                assert client.assignment == f"{client.generation}:{client.member}".encode()
        leaders = [m for m in description.classic_members if m.member_id == description.leader]
        assert len(leaders) == 1

    @invariant()
    def nobody_waits_longer_than_the_time_outs_allow(self) -> None:
        # A join: the wait for others, which absent static members can prolong by their session.
        longest = REBALANCE + 2 * SESSION + INITIAL
        for client in self.clients:
            if client.ticket is not None and self.shell.is_parked(client.ticket):
                waited = self.shell.now_ms - client.parked_at_ms
                assert waited <= longest, f"parked for {waited} ms"

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        self.shell.advance(200 * SECOND)
        parked = [c for c in self.clients if c.ticket and self.shell.is_parked(c.ticket)]
        assert parked == []
        self.shell.advance(600 * SECOND)
        state = self.shell.groups.describe("g").state
        assert state in ("Empty", "Dead"), "silent members are out in the end"
        self.shell.check_replay()


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
