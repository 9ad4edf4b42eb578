"""The counting table: what is taken adds up to what was counted, however much that is."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.frontend.facts.usage import FOLDED, UNIT_BYTES, Key, Refusal, UsageTable
from penstock.model.limits import MINUTE_MS
from penstock.wire.facts.usage import (
    CALLS,
    STORAGE,
    VERSION,
    UsageColumns,
    UsageFacts,
    UsageRow,
    UsageUnreadable,
    decode,
    encode,
)

NOW_MS = 1_700_000_040_000  # a whole minute
SEND: Key = ("000000000001", "us-east-1", "jobs", "sqs:SendMessage")


def rows(columns: UsageColumns) -> list[UsageRow]:
    return list(columns.rows())


def test_what_is_counted_is_taken_once() -> None:
    table = UsageTable(now_ms=NOW_MS)
    table.find(SEND).add(1, 100, 0)
    table.find(SEND).add(3, 50, 0)
    minute_ms, columns = table.take(now_ms=NOW_MS + 5_000)
    assert minute_ms == NOW_MS
    assert rows(columns) == [
        UsageRow(*SEND[:3], CALLS, SEND[3], requests=2, messages=4, bytes_in=150, units64k=2)
    ]
    assert not table.take(now_ms=NOW_MS + 10_000)[1]


def test_a_minute_ends_when_it_is_taken_in_the_next() -> None:
    table = UsageTable(now_ms=NOW_MS)
    table.find(SEND).add(1, 1, 0)
    assert table.take(now_ms=NOW_MS + MINUTE_MS)[0] == NOW_MS
    table.find(SEND).add(1, 1, 0)
    assert table.take(now_ms=NOW_MS + MINUTE_MS + 1)[0] == NOW_MS + MINUTE_MS


@pytest.mark.parametrize(
    ("size", "units"), [(0, 1), (1, 1), (UNIT_BYTES, 1), (UNIT_BYTES + 1, 2), (10 * UNIT_BYTES, 10)]
)
def test_a_request_is_one_unit_for_each_64_kib_begun(size: int, units: int) -> None:
    table = UsageTable(now_ms=NOW_MS)
    table.find(SEND).add(1, size, 0)
    [row] = rows(table.take(now_ms=NOW_MS)[1])
    assert row.units64k == units


def test_refusals_are_requests_told_apart() -> None:
    table = UsageTable(now_ms=NOW_MS)
    for refusal in (Refusal.THROTTLED, Refusal.THROTTLED, Refusal.DENIED, Refusal.FAILED):
        table.reject(SEND, refusal)
    [row] = rows(table.take(now_ms=NOW_MS)[1])
    assert (row.requests, row.throttled, row.denied, row.failed) == (4, 2, 1, 1)


def test_what_a_topic_holds_is_a_level_told_once() -> None:
    table = UsageTable(now_ms=NOW_MS)
    table.store("000000000001", "us-east-1", "jobs", 4_096)
    [row] = rows(table.take(now_ms=NOW_MS)[1])
    assert (row.kind, row.op, row.stored_bytes, row.requests) == (STORAGE, "storage", 4_096, 0)
    assert not table.take(now_ms=NOW_MS)[1]


def test_what_has_no_room_is_counted_for_its_tenant() -> None:
    table = UsageTable(now_ms=NOW_MS, keys_max=2)
    for name in ("a", "b", "c", "d"):
        table.find(("1", "r", name, "op")).add(1, 10, 0)
    table.find(("2", "r", "e", "op")).add(1, 10, 0)
    folded = [row for row in rows(table.take(now_ms=NOW_MS)[1]) if row.resource == FOLDED]
    assert [(row.tenant, row.op, row.requests) for row in folded] == [
        ("1", FOLDED, 2),
        ("2", FOLDED, 1),
    ]


def test_a_tenant_has_a_share_of_the_rows_and_the_nodes_own_has_all() -> None:
    own = "000000000000"
    table = UsageTable(now_ms=NOW_MS, keys_max=50, own_account=own)
    for tenant, count in (("1", 30), ("2", 3), (own, 30)):
        for number in range(count):
            table.find((tenant, "r", f"q{number}", "op")).add(1, 10, 0)
            table.store(tenant, "r", f"q{number}", 7)
    found = rows(table.take(now_ms=NOW_MS + MINUTE_MS)[1])
    calls = Counter(row.tenant for row in found if row.kind == CALLS)
    stored = Counter(row.tenant for row in found if row.kind == STORAGE)
    assert calls == stored == {"1": 6, "2": 3, own: 30}
    [folded] = [row for row in found if row.resource == FOLDED and row.kind == CALLS]
    assert (folded.tenant, folded.requests) == ("1", 25)
    assert sum(row.stored_bytes for row in found if row.tenant == "1") == 30 * 7
    table.find(("1", "r", "another", "op")).add(1, 10, 0)
    [row] = rows(table.take(now_ms=NOW_MS + MINUTE_MS)[1])
    assert row.resource == "another", "the next minute begins anew"


def test_a_minute_that_was_full_leaves_room_for_the_next() -> None:
    table = UsageTable(now_ms=NOW_MS, keys_max=1)
    table.find(("1", "r", "a", "op")).add(1, 0, 0)
    table.take(now_ms=NOW_MS + MINUTE_MS)
    table.find(("1", "r", "b", "op")).add(1, 0, 0)
    [row] = rows(table.take(now_ms=NOW_MS + MINUTE_MS)[1])
    assert row.resource == "b"


def test_a_remembered_way_to_a_row_ends_with_its_minute() -> None:
    table = UsageTable(now_ms=NOW_MS)
    table.remember(("url",), table.find(SEND))
    table.found[("url",)].add(1, 1, 0)
    table.take(now_ms=NOW_MS)
    assert table.found[("url",)] is table.find(SEND)
    table.take(now_ms=NOW_MS + MINUTE_MS)
    assert not table.found


KEYS = st.tuples(
    st.sampled_from(["1", "2", "3"]),
    st.sampled_from(["r", "s"]),
    st.sampled_from(list("abcdef")),
    st.sampled_from(["x", "y"]),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, st.integers(0, 200_000)),
        st.tuples(st.just("refuse"), KEYS, st.just(0)),
        st.tuples(st.just("store"), KEYS, st.integers(1, 1_000)),
        st.tuples(st.just("take"), KEYS, st.integers(0, 90_000)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, keys_max=st.integers(1, 8))
def test_no_count_is_lost_or_doubled_and_rows_are_bounded(
    events: list[tuple[str, Key, int]], keys_max: int
) -> None:
    table = UsageTable(now_ms=NOW_MS, keys_max=keys_max)
    now_ms = NOW_MS
    counted: Counter[str] = Counter()
    taken: Counter[str] = Counter()

    def take() -> None:
        columns = table.take(now_ms=now_ms)[1]
        assert len(columns) <= 4 * (keys_max + 1)
        for row in columns.rows():
            for name in ("requests", "messages", "bytes_in", "failed", "stored_bytes"):
                taken[name] += getattr(row, name)
            if row.resource != FOLDED:
                taken[f"{row.tenant} detail"] += row.requests
            if row.tenant != FOLDED:
                taken[row.tenant] += row.requests

    for what, key, number in events:
        if what == "add":
            table.find(key).add(1, number, 0)
            counted.update(requests=1, messages=1, bytes_in=number)
            counted[key[0]] += 1
        elif what == "refuse":
            table.reject(key, Refusal.FAILED)
            counted.update(requests=1, failed=1)
            counted[key[0]] += 1
        elif what == "store":
            if key[:3] not in table._stored:  # a queue is asked once between two takes
                table.store(*key[:3], number)
                counted["stored_bytes"] += number
        else:
            now_ms += number
            take()
    take()
    for name in ("requests", "messages", "bytes_in", "failed", "stored_bytes"):
        assert taken[name] == counted[name], name
    for tenant in "123":
        assert taken[tenant] <= counted[tenant]
        if keys_max >= 3:  # room for every tenant's own row
            assert taken[tenant] == counted[tenant]


# ── The record ───────────────────────────────────────────────────────────────────────────────


def facts(columns: UsageColumns, version: int = VERSION) -> UsageFacts:
    return UsageFacts(version, "n1", "ab", 7, NOW_MS, NOW_MS + 5, columns)


def test_a_record_reads_back_as_it_was_written() -> None:
    table = UsageTable(now_ms=NOW_MS)
    table.find(SEND).add(2, 70_000, 0)
    table.store("1", "r", "jobs", 9)
    columns = table.take(now_ms=NOW_MS)[1]
    read = decode(encode(facts(columns)))
    assert read.name == ("n1", "ab", 7)
    assert rows(read.columns) == rows(columns)


def test_columns_that_an_older_writer_does_not_know_are_zeros_and_strange_ones_passed_over() -> (
    None
):
    import msgspec

    table = UsageTable(now_ms=NOW_MS)
    table.find(SEND).add(1, 5, 0)
    older = msgspec.to_builtins(facts(table.take(now_ms=NOW_MS)[1]))
    del older["columns"]["denied"]
    older["columns"]["from_the_future"] = [1]
    [row] = rows(decode(msgspec.msgpack.encode(older)).columns)
    assert (row.requests, row.denied) == (1, 0)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"\xc0",
        encode(facts(UsageColumns(), version=VERSION + 1)),
        encode(facts(UsageColumns(tenant=["a"], region=["r"]))),
        encode(facts(UsageColumns(["a"], ["r"], ["q"], ["calls"], ["op"], requests=[1, 2]))),
    ],
)
def test_what_is_no_usage_record_is_refused(value: bytes) -> None:
    with pytest.raises(UsageUnreadable):
        decode(value)
