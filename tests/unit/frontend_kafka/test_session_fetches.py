"""Fetches of a session, as bytes in and out: what is answered, what is looked at, who wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.broker.stage import on_stage
from tests.unit.frontend_kafka.rig import ACCOUNT, REGION, Rig, batch

from penstock.frontend.kafka.records import fetch
from penstock.frontend.kafka.sessions.fetch_sessions import FetchSessions
from penstock.frontend.kafka.sessions.fetch_sets import ADDED_AT_ONCE_MAX
from penstock.model.calls import AppendBatches, DeleteRecords, Ends
from penstock.model.file_slice import in_memory
from penstock.model.topic import Topic
from penstock.net.kafka.listener import HangUp
from penstock.wire.kafka.apis import FETCH
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from penstock.wire.kafka.primitives import ZERO_UUID

LONG_MS = 30_000  # a wait that a test cannot sit out
T = TypeVar("T")

Spot = tuple[str | bytes, int]  # topic by name or id, partition


class Reader:
    """A client that keeps a session as the protocol wants it: names what it changes."""

    def __init__(self, rig: Rig, version: int = 12) -> None:
        self.rig = rig
        self.version = version
        self.session_id = self.epoch = 0
        self.offsets: dict[Spot, int] = {}
        self._sent: dict[Spot, int] = {}
        self.told: dict[Spot, tuple[int, int]] = {}  # watermark and start

    @property
    def is_by_id(self) -> bool:
        return self.version >= 13

    def spot(self, topic: Topic, index: int = 0) -> Spot:
        return (bytes.fromhex(topic.topic_id) if self.is_by_id else topic.name), index

    def request(
        self,
        *,
        wait_ms: int = 0,
        bytes_min: int = 1,
        bytes_max: int = 2**31 - 1,
        isolation_level: int = 0,
    ) -> FetchRequest:
        wanted: dict[str | bytes, list[FetchPartition]] = {}
        for (place, index), offset in self.offsets.items():
            if self.epoch == 0 or self._sent.get((place, index)) != offset:
                wanted.setdefault(place, []).append(FetchPartition(index, offset, 1_048_576))
        forgotten: dict[str | bytes, list[int]] = {}
        for place, index in self._sent.keys() - self.offsets.keys():
            forgotten.setdefault(place, []).append(index)
            self.told.pop((place, index), None)
        self._sent = dict(self.offsets)
        return FetchRequest(
            wait_ms,
            bytes_min,
            [FetchTopic(*self._names(place), parts) for place, parts in wanted.items()],
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten_topics=[
                ForgottenTopic(*self._names(place), parts) for place, parts in forgotten.items()
            ],
            bytes_max=bytes_max,
            isolation_level=isolation_level,
        )

    def _names(self, place: str | bytes) -> tuple[str, bytes]:
        return ("", place) if isinstance(place, bytes) else (place, ZERO_UUID)

    async def fetch(self, **more: int) -> dict[Spot, FetchPartitionResponse]:
        return self.take(await self.send(self.request(**more)))

    async def send(self, asked: FetchRequest) -> FetchResponse:
        answer: FetchResponse = await self.rig.ask(FETCH, self.version, asked)
        return answer

    def take(self, answer: FetchResponse) -> dict[Spot, FetchPartitionResponse]:
        assert answer.error_code == 0, answer.error_code
        found = {
            (topic.topic_id if self.is_by_id else topic.name, each.index): each
            for topic in answer.topics
            for each in topic.partitions
        }
        if self.epoch == 0:
            assert found.keys() == self.offsets.keys(), "a full answer names all"
        assert found.keys() <= self.offsets.keys()
        for spot, each in found.items():
            if each.error_code:
                self.told.pop(spot, None)
            else:
                self.told[spot] = (each.high_watermark, each.log_start_offset)
        self.session_id = answer.session_id
        if answer.session_id == 0:
            self.begin_anew()
        else:
            self.epoch += 1
        return found

    def begin_anew(self) -> None:
        self.epoch = 0
        self._sent = {}
        self.told = {}


def held(found: Mapping[Spot, FetchPartitionResponse]) -> list[Spot]:
    return [spot for spot, each in found.items() if each.records]


async def reading(partitions: int, version: int = 12) -> tuple[Rig, Topic, Reader]:
    rig = Rig()
    topic = await rig.topic("t", partitions=partitions)
    reader = Reader(rig, version)
    reader.offsets = {reader.spot(topic, index): 0 for index in range(partitions)}
    return rig, topic, reader


async def is_parked(rig: Rig) -> None:
    async with asyncio.timeout(5):
        while not len(rig.context.parked):
            await asyncio.sleep(0)


def looks(rig: Rig, topic: Topic) -> list[int]:
    return [rig.partition(topic, index).looks for index in range(topic.partition_count)]


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
async def test_only_what_is_new_is_answered(version: int) -> None:
    rig, topic, reader = await reading(3, version)
    rig.partition(topic, 1).append(batch(b"a"))
    assert len(await reader.fetch()) == 3
    first_id = reader.session_id
    assert first_id > 0
    reader.offsets[reader.spot(topic, 1)] = 1
    assert await reader.fetch() == {}
    rig.partition(topic, 2).append(batch(b"b"))
    (found,) = (await reader.fetch()).items()
    assert found[0] == reader.spot(topic, 2)
    assert b"".join(in_memory(found[1].records)) == rig.partition(topic, 2).batches[0]
    assert reader.session_id == first_id


async def test_records_that_are_not_taken_are_given_again() -> None:
    rig, topic, reader = await reading(2)
    rig.partition(topic).append(batch(b"a"))
    for _ in range(3):
        assert held(await reader.fetch()) == [("t", 0)]


async def test_a_quiet_partition_is_not_looked_at() -> None:
    rig, topic, reader = await reading(50)
    await reader.fetch()
    before = looks(rig, topic)
    rig.partition(topic, 7).append(batch(b"a"))
    assert held(await reader.fetch()) == [("t", 7)]
    reader.offsets["t", 7] = 1
    for _ in range(5):
        assert await reader.fetch(wait_ms=1) == {}
    after = looks(rig, topic)
    assert [n for n in range(50) if after[n] != before[n]] == [7]


async def test_one_that_is_always_busy_does_not_keep_others_from_being_watched() -> None:
    rig, topic, reader = await reading(20)
    for n in range(4):
        rig.partition(topic, 3).append(batch(b"a"))
        assert held(await reader.fetch()) == [("t", 3)]
        reader.offsets["t", 3] = n + 1
        if n == 0:
            before = looks(rig, topic)
    after = looks(rig, topic)
    assert [n for n in range(20) if after[n] != before[n]] == [3]


async def test_a_new_log_start_is_told() -> None:
    rig, topic, reader = await reading(2)
    rig.partition(topic, 1).append(batch(b"a"))
    await reader.fetch()
    reader.offsets["t", 1] = 1
    await reader.fetch()
    await rig.streams.call(DeleteRecords(topic, 1, 1))
    (one,) = (await reader.fetch()).values()
    assert (one.index, one.log_start_offset, one.error_code) == (1, 1, 0)
    assert await reader.fetch() == {}


async def test_a_watermark_that_the_reader_cannot_reach_is_told_and_does_not_end_a_wait() -> None:
    rig, topic, reader = await reading(2)
    committed = {"isolation_level": 1}
    await reader.fetch(**committed)
    asked = reader.request(wait_ms=LONG_MS, **committed)
    asking = asyncio.create_task(reader.send(asked))
    await is_parked(rig)
    rig.partition(topic, 0).stable_offset = 0
    rig.partition(topic, 0).append(batch(b"open"))
    await is_parked(rig)
    rig.partition(topic, 1).append(batch(b"a"))
    found = reader.take(await asking)
    assert held(found) == [("t", 1)]
    first = found["t", 0]
    assert (first.high_watermark, first.last_stable_offset) == (1, 0)
    # Another kind of reader may go on where this one had to stop.
    reader.offsets["t", 1] = 1
    assert held(await reader.fetch(isolation_level=0)) == [("t", 0)]


async def test_an_error_is_told_each_time_and_what_follows_it_too() -> None:
    _, _, reader = await reading(2)
    reader.offsets["t", 0] = 5
    await reader.fetch()
    for _ in range(2):
        (one,) = (await reader.fetch(wait_ms=LONG_MS)).values()
        assert one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    reader.offsets["t", 0] = 0
    (one,) = (await reader.fetch()).values()
    assert (one.error_code, one.high_watermark) == (0, 0)
    assert await reader.fetch() == {}


async def test_everybody_has_a_turn_however_little_fits() -> None:
    rig, topic, reader = await reading(4)
    for index in range(4):
        for _ in range(3):
            rig.partition(topic, index).append(batch(bytes(500)))
    await reader.fetch(bytes_max=1)
    given = []
    for _ in range(8):
        (spot,) = held(await reader.fetch(bytes_max=1))
        given.append(spot[1])
        reader.offsets[spot] += 0  # not even consumed
    assert sorted(given[:4]) == sorted(given[4:]) == [0, 1, 2, 3]


async def test_what_had_no_room_is_given_next_without_anything_new_in_it() -> None:
    rig, topic, reader = await reading(3)
    await reader.fetch()
    for index in range(3):
        rig.partition(topic, index).append(batch(b"x"))
    size = len(rig.partition(topic).batches[0])
    first = await reader.fetch(bytes_max=2 * size + 1)
    assert held(first) == [("t", 0), ("t", 1)]
    assert first["t", 2].high_watermark == 1, "looked at, and left there"
    reader.offsets["t", 0] = reader.offsets["t", 1] = 1
    assert held(await reader.fetch()) == [("t", 2)]


async def test_partitions_come_and_go() -> None:
    rig, topic, reader = await reading(3)
    reader.offsets.pop(("t", 2))
    await reader.fetch()
    reader.offsets["t", 2] = 0
    assert list(await reader.fetch()) == [("t", 2)]
    del reader.offsets["t", 0]
    rig.partition(topic, 0).append(batch(b"a"))
    assert await reader.fetch() == {}
    assert not rig.partition(topic, 0).listeners
    reader.offsets["t", 0] = 0
    assert held(await reader.fetch()) == [("t", 0)]


async def test_a_session_that_forgets_everything_is_over() -> None:
    rig, topic, reader = await reading(1)
    await reader.fetch()
    del reader.offsets["t", 0]
    assert await reader.fetch(wait_ms=LONG_MS) == {}
    assert reader.session_id == 0
    assert len(rig.context.fetch_sessions) == 0
    assert not rig.partition(topic).listeners


async def test_no_session_is_made_for_one_who_wants_none() -> None:
    rig, topic, reader = await reading(2)
    asked = msgspec.structs.replace(reader.request(), session_epoch=-1)
    assert (await reader.send(asked)).session_id == 0
    assert len(rig.context.fetch_sessions) == 0
    assert not any(rig.partition(topic, index).listeners for index in range(2))


@pytest.mark.parametrize("version", [12, 18])
async def test_errors_of_a_session_stand_above_all_partitions(version: int) -> None:
    _, _, reader = await reading(1, version)
    await reader.fetch()
    good = reader.request()
    replace = msgspec.structs.replace
    for bad, code in (
        (replace(good, session_id=good.session_id + 1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (replace(good, session_epoch=2), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ):
        answer = await reader.send(bad)
        assert (answer.error_code, answer.session_id, tuple(answer.topics)) == (code, 0, ())
    reader.version = 12 if version > 12 else 18
    assert (await reader.send(good)).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    reader.version = version
    assert (await reader.send(good)).error_code == ErrorCode.NONE


async def test_a_session_too_large_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PARTITIONS_MAX", 2_000)
    rig, topic, reader = await reading(1)
    rig.context.fetch_sessions = FetchSessions()
    reader.offsets = {("t", index): 0 for index in range(2_000)}
    await reader.send(reader.request())
    (reader.session_id,) = rig.context.fetch_sessions._kept
    reader.epoch = 1
    reader.offsets["t", 2_000] = 0
    with pytest.raises(HangUp, match="partitions"):
        await reader.send(reader.request())
    assert rig.context.fetch_sessions.partition_count == 0
    assert not rig.partition(topic).listeners


# ── Requests with many partitions ────────────────────────────────────────────────────────────


MANY = 3 * ADDED_AT_ONCE_MAX


async def reading_many() -> tuple[Rig, Topic, Reader]:
    """Of many partitions that a session names, two are there."""
    rig, topic, reader = await reading(2)
    rig.context.fetch_sessions = FetchSessions()
    reader.offsets = {("t", index): 0 for index in range(MANY)}
    return rig, topic, reader


async def test_a_session_with_many_partitions_begins_grows_and_shrinks() -> None:
    rig, topic, reader = await reading_many()
    sessions = rig.context.fetch_sessions
    rig.partition(topic, 1).append(batch(b"a"))
    found = await reader.fetch()
    assert held(found) == [("t", 1)]
    assert len(found) == sessions.partition_count == MANY
    reader.offsets["t", 1] = 1
    reader.offsets |= {("u", index): 0 for index in range(MANY)}
    del reader.offsets["t", 2]
    await reader.fetch()
    assert sessions.partition_count == 2 * MANY - 1
    rig.partition(topic, 0).append(batch(b"b"))
    assert held(await reader.fetch()) == [("t", 0)]
    (session,) = sessions._kept.values()
    assert (session.size, session.wanted.is_busy) == (session.wanted.count, False)
    assert not session.wanted.looked


async def test_partitions_that_are_added_and_forgotten_are_forgotten() -> None:
    rig, _, reader = await reading_many()
    await reader.fetch()
    added = [FetchTopic("u", ZERO_UUID, [FetchPartition(n, 0, 1) for n in range(MANY)])]
    gone = [ForgottenTopic("u", ZERO_UUID, range(MANY))]
    asked = msgspec.structs.replace(reader.request(), topics=added, forgotten_topics=gone)
    await reader.send(asked)
    assert rig.context.fetch_sessions.partition_count == MANY


async def growing(rig: Rig, reader: Reader) -> asyncio.Task[FetchResponse]:
    """A request that adds many partitions to the session, and has added the first of them."""
    (session,) = rig.context.fetch_sessions._kept.values()
    reader.offsets |= {("u", index): 0 for index in range(MANY)}
    large = asyncio.create_task(reader.send(reader.request()))
    async with asyncio.timeout(5):
        while session.wanted.count == MANY:
            await asyncio.sleep(0)
    assert MANY < session.wanted.count < 2 * MANY
    return large


async def test_a_large_request_is_overtaken_while_it_adds_partitions() -> None:
    rig, _, reader = await reading_many()
    await reader.fetch()
    large = await growing(rig, reader)
    reader.epoch += 1
    assert (await reader.send(reader.request())).error_code == ErrorCode.NONE
    assert (await large).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    (session,) = rig.context.fetch_sessions._kept.values()
    assert MANY < session.wanted.count < 2 * MANY, "no more is added after that"
    assert rig.context.fetch_sessions.partition_count == session.size == session.wanted.count
    assert not session.wanted.is_busy


async def test_a_session_is_dropped_while_a_large_request_adds_partitions() -> None:
    rig, topic, reader = await reading_many()
    await reader.fetch()
    large = await growing(rig, reader)
    (session,) = rig.context.fetch_sessions._kept.values()
    rig.context.fetch_sessions.drop(session)
    assert (await large).session_id == 0
    assert rig.context.fetch_sessions.partition_count == 0
    assert (session.wanted.count, len(session.wanted.topics)) == (0, 0), "all is let go"
    assert not rig.partition(topic).listeners


# ── Topics that change ───────────────────────────────────────────────────────────────────────


async def made_anew(rig: Rig, name: str = "t") -> Topic:
    before = rig.catalog.find(ACCOUNT, REGION, name)
    assert before is not None
    await rig.catalog.delete(ACCOUNT, REGION, name, now_ms=0)
    return await rig.topic(name, partitions=before.partition_count)


async def test_a_session_by_name_goes_on_with_a_topic_made_anew() -> None:
    rig, topic, reader = await reading(2)
    await reader.fetch()
    await rig.catalog.delete(ACCOUNT, REGION, "t", now_ms=0)
    gone = await reader.fetch(wait_ms=LONG_MS)
    assert {each.error_code for each in gone.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not any(rig.partition(topic, index).listeners for index in range(2))
    again = await rig.topic("t", partitions=2)
    assert {each.error_code for each in (await reader.fetch()).values()} == {0}
    rig.partition(again, 1).append(batch(b"a"))
    assert held(await reader.fetch()) == [("t", 1)]


async def test_a_session_by_id_is_told_that_the_id_is_gone() -> None:
    rig, topic, reader = await reading(1, 18)
    await reader.fetch()
    again = await made_anew(rig)
    for _ in range(2):
        (one,) = (await reader.fetch()).values()
        assert one.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    del reader.offsets[reader.spot(topic)]
    reader.offsets[reader.spot(again)] = 0
    (one,) = (await reader.fetch()).values()
    assert one.error_code == 0


async def test_a_topic_that_grows_gets_its_new_partition_read() -> None:
    rig, _, reader = await reading(1)
    reader.offsets["t", 1] = 0
    found = await reader.fetch()
    assert found["t", 1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await rig.catalog.change(
        ACCOUNT, REGION, "t", lambda topic: msgspec.structs.replace(topic, partition_count=2)
    )
    assert (await reader.fetch())["t", 1].error_code == 0
    assert await reader.fetch() == {}


# ── Waiting ──────────────────────────────────────────────────────────────────────────────────


async def test_a_wait_ends_with_what_any_partition_of_the_session_gets() -> None:
    rig, topic, reader = await reading(30)
    await reader.fetch()
    before = looks(rig, topic)
    asking = asyncio.create_task(reader.fetch(wait_ms=LONG_MS))
    await is_parked(rig)
    assert looks(rig, topic) == before, "all of them are watched since the first fetch"
    rig.partition(topic, 29).append(batch(b"a"))
    assert held(await asking) == [("t", 29)]


async def test_a_wait_gathers_from_several_partitions() -> None:
    rig, topic, reader = await reading(3)
    await reader.fetch()
    size = len(batch(bytes(500)))
    asking = asyncio.create_task(reader.fetch(wait_ms=LONG_MS, bytes_min=3 * size))
    await is_parked(rig)
    for index in (0, 2, 0):
        assert not asking.done()
        rig.partition(topic, index).append(batch(bytes(500)))
        for _ in range(10):
            await asyncio.sleep(0)
    found = await asking
    assert {spot: sum(map(len, each.records)) for spot, each in found.items()} == {
        ("t", 0): 2 * size,
        ("t", 2): size,
    }


async def test_a_request_that_is_overtaken_is_told_so() -> None:
    rig, topic, reader = await reading(2)
    await reader.fetch()
    first = reader.request(wait_ms=LONG_MS)
    slow = asyncio.create_task(reader.send(first))
    await is_parked(rig)
    rig.partition(topic, 1).append(batch(b"a"))
    second = msgspec.structs.replace(first, session_epoch=2)
    answer = await reader.send(second)
    assert [each.index for topic in answer.topics for each in topic.partitions] == [1]
    assert (await slow).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    third = await reader.send(msgspec.structs.replace(first, session_epoch=3, wait_ms_max=0))
    assert third.error_code == 0


async def test_a_client_that_leaves_while_waiting_loses_no_news() -> None:
    rig, topic, reader = await reading(2)
    await reader.fetch()
    asked = reader.request(wait_ms=LONG_MS, bytes_min=10_000)
    asking = asyncio.create_task(reader.send(asked))
    await is_parked(rig)
    rig.partition(topic, 0).append(batch(b"a"))
    for _ in range(10):
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    reader.epoch = 2
    assert held(await reader.fetch()) == [("t", 0)]


async def test_a_session_put_aside_while_it_waits_answers_that_it_is_over() -> None:
    rig, topic, reader = await reading(2)
    await reader.fetch()
    asking = asyncio.create_task(reader.send(reader.request(wait_ms=LONG_MS)))
    await is_parked(rig)
    other = Reader(rig)
    other.session_id = reader.session_id  # begins anew with an id that is in use
    other.offsets = {("t", 0): 0}
    await other.fetch()
    answer = await asking
    assert (answer.error_code, answer.session_id) == (0, 0)
    listeners = [len(rig.partition(topic, index).listeners) for index in range(2)]
    assert listeners == [1, 0], "those of the other one"


async def test_a_client_that_never_comes_back_is_woken_once_at_most() -> None:
    rig, topic, reader = await reading(1)
    await reader.fetch()
    partition = rig.partition(topic)
    assert len(partition.listeners) == 1
    partition.append(batch(b"a"))
    assert not partition.listeners


async def test_a_real_partition_tells_of_both_of_its_ends(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        rig = Rig()
        rig.context.broker, rig.context.catalog = stage.broker, stage.catalog
        topic = await stage.topic("t", partitions=2)
        reader = Reader(rig)
        reader.offsets = {("t", 0): 0, ("t", 1): 0}
        await reader.fetch()
        asking = asyncio.create_task(reader.fetch(wait_ms=LONG_MS))
        await is_parked(rig)
        await stage.broker.call(AppendBatches(topic, 1, acks=1, batches=[batch(b"a")]))
        assert held(await asking) == [("t", 1)]
        reader.offsets["t", 1] = 1
        assert await reader.fetch() == {}
        await stage.broker.call(DeleteRecords(topic, 1, -1))
        found = await reader.fetch()
        # The cut is an event in a queue's log, so that the watermark moves as well.
        assert (
            found["t", 1].log_start_offset == (await stage.broker.call(Ends(topic, 1))).start_offset
        )


# ── Against a model ──────────────────────────────────────────────────────────────────────────

NAMES = ("a", "b", "c")
COUNT = 3
SPOTS = [(name, index) for name in NAMES for index in range(COUNT)]
SOME = st.lists(st.sampled_from(SPOTS), max_size=4, unique=True)


class SessionMachine(RuleBasedStateMachine):
    """Whatever happens to topics, the answers are those of one who compares everything each
    time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.topics: dict[str, Topic] = {}
        self.hunger: dict[Spot, int] = {}

    def teardown(self) -> None:
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(version=st.sampled_from([12, 18]))
    def start(self, version: int) -> None:
        async def make() -> None:
            self.rig = Rig()
            self.reader = Reader(self.rig, version)
            for name in NAMES:
                self.topics[name] = await self.rig.topic(name, partitions=COUNT)

        self.do(make())

    # ── What happens to topics ───────────────────────────────────────────────────────────────

    @rule(places=SOME)
    def append(self, places: Sequence[tuple[str, int]]) -> None:
        for name, index in places:
            self.rig.partition(self.topics[name], index).append(batch(b"x"))

    @rule(place=st.sampled_from(SPOTS))
    def cut(self, place: tuple[str, int]) -> None:
        self.do(self.rig.streams.call(DeleteRecords(self.topics[place[0]], place[1], -1)))

    @rule(name=st.sampled_from(NAMES))
    def make_anew(self, name: str) -> None:
        self.topics[name] = self.do(made_anew(self.rig, name))

    @rule()
    def restart(self) -> None:
        self.rig.context.fetch_sessions = FetchSessions()

    # ── What the reader does ─────────────────────────────────────────────────────────────────

    @rule(places=SOME)
    def want(self, places: Sequence[tuple[str, int]]) -> None:
        for name, index in places:
            self.reader.offsets.setdefault(self.reader.spot(self.topics[name], index), 0)

    @precondition(lambda self: self.reader.offsets)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        spot = data.draw(st.sampled_from(list(self.reader.offsets)))
        del self.reader.offsets[spot]
        self.hunger.pop(spot, None)

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        for spot in self.reader.offsets:
            if data.draw(st.booleans()):
                self.reader.offsets[spot] = self._seek(spot, data)
                self.hunger.pop(spot, None)

    def _seek(self, spot: Spot, data: st.DataObject) -> int:
        topic = self._topic(spot)
        if topic is None:
            return 0
        partition = self.rig.partition(topic, spot[1])
        start, end = partition.start_offset, partition.end_offset
        return data.draw(st.sampled_from([end, end, end, start, end + 1]))

    @rule(bytes_max=st.sampled_from([2**31 - 1, 2**31 - 1, 1, 150]))
    def fetch(self, bytes_max: int) -> None:
        expected = self._expected()
        is_full = self.reader.epoch == 0
        answer = self.do(self.reader.send(self.reader.request(bytes_max=bytes_max)))
        if self._is_refused(answer):
            return
        found = self.reader.take(answer)
        for spot, each in found.items():
            assert is_full or spot in expected, "nothing that is not new"
            assert expected.get(spot, (0, False)) == (each.error_code, bool(each.records)) or (
                bytes_max < 1_000 and not each.records
            )
        if bytes_max > 1_000 and not is_full:
            assert found.keys() == expected.keys()
        if any(has_records for _, has_records in expected.values()):
            assert held(found) or any(each.error_code for each in found.values())
        for spot, (_, has_records) in expected.items():
            is_hungry = has_records and spot not in held(found)
            self.hunger[spot] = self.hunger.get(spot, 0) + 1 if is_hungry else 0
            assert self.hunger[spot] <= len(SPOTS) * 2, "each has its turn"

    @precondition(lambda self: self.reader.offsets)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        expected = self._expected()
        would_wait = not any(code or records for code, records in expected.values())
        self.do(self._wait(would_wait, data))

    async def _wait(self, would_wait: bool, data: st.DataObject) -> None:
        asking = asyncio.create_task(self.reader.send(self.reader.request(wait_ms=LONG_MS)))
        for _ in range(60):
            await asyncio.sleep(0)
            if asking.done() or len(self.rig.context.parked):
                break
        if not asking.done():
            assert would_wait
            spot = data.draw(st.sampled_from(list(self.reader.offsets)))
            topic = self._topic(spot)
            assert topic is not None
            self.rig.partition(topic, spot[1]).append(batch(b"new"))
            async with asyncio.timeout(5):
                answer = await asking
            assert spot in held(self.reader.take(answer))
            return
        answer = await asking
        if not self._is_refused(answer):
            assert not would_wait
            self.reader.take(answer)

    def _is_refused(self, answer: FetchResponse) -> bool:
        if answer.error_code == 0:
            return False
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert len(self.rig.context.fetch_sessions) == 0
        self.reader.session_id = 0
        self.reader.begin_anew()
        return True

    # ── The model ────────────────────────────────────────────────────────────────────────────

    def _topic(self, spot: Spot) -> Topic | None:
        for topic in self.topics.values():
            if self.reader.spot(topic, spot[1]) == spot:
                return topic
        return None

    def _expected(self) -> dict[Spot, tuple[int, bool]]:
        """Code, and whether there are records, of all that is new to the reader."""
        expected = {}
        for spot, offset in self.reader.offsets.items():
            topic = self._topic(spot)
            if topic is None:
                expected[spot] = (int(ErrorCode.UNKNOWN_TOPIC_ID), False)
                continue
            partition = self.rig.partition(topic, spot[1])
            start, end = partition.start_offset, partition.end_offset
            if not start <= offset <= end:
                expected[spot] = (int(ErrorCode.OFFSET_OUT_OF_RANGE), False)
            elif offset < end or self.reader.told.get(spot) != (end, start):
                expected[spot] = (0, offset < end)
        return expected


SessionMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSession = SessionMachine.TestCase
