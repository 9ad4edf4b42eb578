"""Ledger files and message bodies: what is written is what is read, and damage shows."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.ledger import Body, Key, Ledger, read_ledgers


def test_a_ledger_survives_a_round_trip_through_its_files(tmp_path: Path) -> None:
    key = Key("p", 1)
    events: list[L.AnyEvent] = [
        L.Invoke(1, key, "q", "g", 1, "d"),
        L.Fail(2, key, "refused"),
        L.Info(3, key, "reset"),
        L.Ok(4, key, "m1"),
        L.Recv(6, 5, "c1", 0, "q", "m1", "r1", 1, 30_000, key, "g", 1),
        L.Recv(6, 5, "c1", 1, "q", "m2", "r2", 1, 30_000),
        L.RecvInfo(7, 6, "q", 10),
        L.ExtInvoke(8, "r1", "m1", 0),
        L.ExtOk(9, "r1"),
        L.ExtFail(10, "r1", "expired"),
        L.ExtInfo(11, "r1", "reset"),
        L.DelInvoke(12, "r1", "m1"),
        L.DelOk(13, "r1"),
        L.DelFail(14, "r1", "expired"),
        L.DelInfo(15, "r1", "reset"),
        L.Fault(16, "cut", 3),
        L.Started(17),
        L.Hung(18, "SendMessage", 1.5),
        L.Drained(19, "q", 0, 0, 0, 3),
    ]
    ledgers = [Ledger(tmp_path / "a.jsonl"), Ledger(tmp_path / "b.jsonl")]
    for place, event in enumerate(events):
        ledgers[place % 2].write(event)
    for ledger in ledgers:
        ledger.close()
    assert sorted(map(repr, read_ledgers(tmp_path.iterdir()))) == sorted(map(repr, events))
    assert [event.at for event in read_ledgers(tmp_path.iterdir())] == [e.at for e in events]


bodies = st.builds(
    Body,
    run=st.just("r1"),
    key=st.builds(Key, producer=st.text("abc", min_size=1), seq=st.integers(0, 10**9)),
    group=st.text("gh", max_size=3),
    group_seq=st.integers(0, 10**9),
    payload=st.text(max_size=50),
)


@given(body=bodies)
@settings(max_examples=100)
def test_a_body_says_where_it_belongs(body: Body) -> None:
    assert Body.parse(body.text()) == body


@given(body=bodies, place=st.integers(0, 10_000), other=st.characters(min_codepoint=32))
@settings(max_examples=200)
def test_a_body_with_one_wrong_character_is_no_body(body: Body, place: int, other: str) -> None:
    text = body.text()
    place %= len(text)
    changed = text[:place] + other + text[place + 1 :]
    assert changed == text or Body.parse(changed) is None
