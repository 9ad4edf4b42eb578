"""The rules of replication one by one, each by its number. What they give together is shown by the
simulator (tests/sim), which also breaks each of them and sees that it is noticed."""

from typing import Any

import msgspec
import pytest

from penstock.replication import election
from penstock.replication.election import Found, Standing
from penstock.replication.epochs import EpochHistory
from penstock.replication.leader import LAG_MS_MAX, PENDING_MAX, Leader
from penstock.replication.messages import Behind, Data, Diverge, Fenced, Fetch, NotYet
from penstock.replication.replica import (
    Append,
    Halt,
    Replica,
    Restart,
    Role,
    Truncate,
)
from penstock.replication.row import NO_NODE, Change, PartitionRow, View

ROW = PartitionRow(
    (1, 2, 3), frozenset((1, 2, 3)), leader=1, leader_incarnation=100, epoch=5, in_sync_min=2
)
VIEW = View(200, 150, ROW)
ALIVE = {1: 100, 2: 101, 3: 102}


def row(**changes: object) -> PartitionRow:
    return msgspec.structs.replace(ROW, **changes)


def view_of(**changes: object) -> View:
    return VIEW._replace(row=row(**changes))


def durable_offsets(led: Leader) -> dict[int, int]:
    return {node: peer.durable_offset for node, peer in led._peers.items()}


def leader(*, end: int = 10, watermark: int = 10, view: View = VIEW) -> Leader:
    return Leader(replica(end=end, watermark=watermark), view, now_ms=0)


def fetch(node: int = 2, *, offset: int = 10, durable: int | None = None, **more: int) -> Fetch:
    known = {"incarnation": ALIVE[node], "epoch": 5, "last_epoch": 4, "number": 1, **more}
    return Fetch(
        node=node, offset=offset, durable_offset=offset if durable is None else durable, **known
    )


def serve(led: Leader, asked: Fetch, *, end: int = 10, now_ms: int = 0) -> object:
    led._log.end_offset = end
    return led.fetched(asked, now_ms=now_ms)


def advanced(led: Leader, durable_offset: int) -> int:
    led._log.durable_offset = durable_offset
    led.advance()
    return led._log.high_watermark


def replica(
    node: int = 1,
    *,
    history: EpochHistory | None = None,
    start: int = 0,
    end: int = 10,
    watermark: int = 10,
) -> Replica:
    return Replica(
        node,
        ALIVE[node],
        history=history or EpochHistory([(4, 0)]),
        start_offset=start,
        end_offset=end,
        durable_offset=end,
        high_watermark=watermark,
    )


# ── The store ────────────────────────────────────────────────────────────────────────────────


def test_R1_every_change_names_the_version_it_was_made_from() -> None:
    led = leader()
    serve(led, fetch(2))
    changes = [
        led.without(3),
        led.adding(2),
        election.elect(VIEW, ALIVE),
        election.declare_loss(VIEW, 2),
        election.place(VIEW, (1, 2, 4)),
        election.elect_uncleanly(VIEW, 3, ALIVE),
    ]
    assert [change and change.version for change in changes] == [150] * 6


def test_R2_a_change_is_pending_until_a_later_version_is_seen() -> None:
    led = leader(end=12, watermark=10)
    led._proposed(led.without(3))
    for node in (2, 3):
        serve(led, fetch(node, offset=10), end=12)
    serve(led, fetch(2, offset=12), end=12)
    assert advanced(led, 12) == 10, "3 may still be in sync"
    led.saw(VIEW._replace(revision=250))
    assert advanced(led, 12) == 10, "the same version, read again, says nothing"
    led.saw(View(300, 299, row(in_sync=frozenset((1, 2)))))
    assert advanced(led, 12) == 12


# ── Lives ────────────────────────────────────────────────────────────────────────────────────


def test_R4_views_from_before_the_registration_and_older_ones_are_not_acted_upon() -> None:
    mine = replica()
    mine.see(VIEW._replace(revision=99), now_ms=0)
    assert (mine.leader, mine.epoch) == (None, -1)
    mine.see(VIEW, now_ms=0)
    assert mine.epoch == VIEW.row.epoch
    assert mine.leader is not None
    later = View(300, 290, row(leader=2, leader_incarnation=101, epoch=6))
    mine.see(later, now_ms=0)
    mine.see(VIEW._replace(revision=250), now_ms=0)
    assert (mine.role, mine.epoch) == (Role.FOLLOWER, 6)


def test_R4b_a_store_that_was_rolled_back_stops_the_partition() -> None:
    mine = replica(history=EpochHistory([(4, 0), (9, 7)]))
    mine.see(VIEW, now_ms=0)
    assert mine.role is Role.HALTED
    assert "epoch 5" in mine.halt_reason
    mine.see(View(999, 999, row(epoch=12)), now_ms=0)
    assert mine.role is Role.HALTED, "and it stays so until somebody has looked"


GOOD = Found(
    is_there=True,
    is_whole=True,
    end_offset=50,
    recovery_point=40,
    was_stopped=False,
    is_synced=True,
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"is_there": False}, "missing"),
        ({"is_whole": False}, "damaged"),
        ({"end_offset": 39}, "recovery point"),
        ({"end_offset": 29, "recovery_point": 0}, "last known committed"),
        ({"is_synced": False}, "not synced"),
        ({"is_synced": False, "was_stopped": True}, None),
    ],
)
def test_R5_a_node_knows_when_it_may_have_lost_something(
    change: dict[str, Any], says: str | None
) -> None:
    reason = election.loss_of(row(watermark_floor=30), GOOD._replace(**change))
    assert (reason is None) if says is None else (reason is not None and says in reason)


def test_R5_a_loss_is_declared_once_and_only_by_those_in_sync() -> None:
    change = election.declare_loss(VIEW, 2)
    assert change is not None
    assert change.row.lost == {2}
    assert change.row.in_sync == ROW.in_sync
    assert election.declare_loss(View(201, 201, change.row), 2) is None
    assert election.declare_loss(view_of(in_sync=frozenset((1, 3))), 2) is None


def test_R5_who_finds_damage_is_counted_out_in_a_new_epoch_where_others_have_everything() -> None:
    change = election.resign(VIEW, ROW.leader)
    assert (change.row.leader, change.row.lost) == (NO_NODE, frozenset((ROW.leader,)))
    assert (change.row.epoch, change.row.in_sync) == (ROW.epoch + 1, ROW.in_sync)
    elected = election.elect(View(201, 201, change.row), ALIVE)
    assert elected is not None
    assert elected.row.leader != ROW.leader
    other = next(node for node in ROW.in_sync if node != ROW.leader)
    change = election.resign(VIEW, other)
    assert (change.row.leader, change.row.leader_incarnation) == (
        ROW.leader,
        ROW.leader_incarnation,
    ), "who leads leads on"
    assert (change.row.epoch, change.row.lost) == (ROW.epoch + 1, frozenset((other,)))
    alone = view_of(in_sync=frozenset((ROW.leader,)))
    change = election.resign(alone, ROW.leader)
    assert (change.row.leader, change.row.lost) == (NO_NODE, frozenset()), "nobody else has it"


# ── Elections ────────────────────────────────────────────────────────────────────────────────


def test_R6_when_all_have_lost_the_furthest_leads_once_every_one_was_asked() -> None:
    view = view_of(in_sync=frozenset((2, 3)), lost=frozenset((2, 3)), leader=NO_NODE)
    standings = {2: Standing(5, 80), 3: Standing(4, 99)}
    assert election.recover(view, {2: 101}, standings) is None, "3 is not there"
    assert election.recover(view, ALIVE, {2: standings[2]}) is None, "3 was not asked"
    change = election.recover(view, ALIVE, standings)
    assert change is not None
    assert (change.row.leader, change.row.lost) == (2, frozenset((3,))), (
        "a later epoch beats a longer log"
    )
    assert change.incarnations == {2: 101, 3: 102}, "and nobody has died since"
    assert election.recover(view_of(lost=frozenset((2,))), ALIVE, standings) is None


def test_R7_only_the_living_who_have_everything_are_elected() -> None:
    change = election.elect(view_of(lost=frozenset((1,))), {1: 100, 3: 102})
    assert change is not None
    assert (change.row.leader, change.row.leader_incarnation) == (3, 102)
    assert change.row.epoch == ROW.epoch + 1
    assert change.row.in_sync == ROW.in_sync
    assert change.incarnations == {3: 102}
    assert election.elect(view_of(in_sync=frozenset((2,))), {1: 100, 3: 102}) is None


def test_R7_the_preferred_leads_unless_it_is_about_to_stop() -> None:
    def led_by(avoiding: tuple[int, ...]) -> int:
        change = election.elect(VIEW, ALIVE, avoiding=frozenset(avoiding))
        assert change is not None
        return change.row.leader

    assert led_by(()) == 1
    assert led_by((1, 2)) == 3
    assert led_by((1, 2, 3)) == 1, "somebody has to"


def test_R7_an_operator_may_choose_anybody_by_name() -> None:
    change = election.elect_uncleanly(view_of(in_sync=frozenset((1,))), 3, ALIVE)
    assert change is not None
    assert (change.row.leader, change.row.in_sync, change.row.lost) == (
        3,
        frozenset((3,)),
        frozenset(),
    )
    assert election.elect_uncleanly(VIEW, 4, {**ALIVE, 4: 103}) is None


def test_R8_a_process_that_was_started_again_does_not_lead_on() -> None:
    mine = replica()
    mine.see(view_of(leader_incarnation=99), now_ms=0)
    assert mine.role is Role.WAITING
    assert isinstance(mine.fetched(fetch(2), now_ms=0), NotYet)


def test_R8_a_new_epoch_starts_with_an_empty_table_and_ends_what_was_under_way() -> None:
    mine = replica()
    mine.see(VIEW, now_ms=0)
    mine.fetched(fetch(2), now_ms=0)
    assert mine.leader is not None
    assert durable_offsets(mine.leader) == {2: 10}
    mine.see(View(300, 300, row(epoch=6)), now_ms=0)
    assert mine.epoch == 6
    assert durable_offsets(mine.leader) == {}


# ── The in-sync set ──────────────────────────────────────────────────────────────────────────


def test_R9_a_follower_that_stays_behind_is_taken_out() -> None:
    led = leader(end=10)
    serve(led, fetch(2), now_ms=LAG_MS_MAX)
    serve(led, fetch(3), now_ms=LAG_MS_MAX)
    assert led.propose(now_ms=2 * LAG_MS_MAX) is None
    serve(led, fetch(2), now_ms=2 * LAG_MS_MAX)
    serve(led, fetch(3, offset=8), now_ms=2 * LAG_MS_MAX)
    change = led.propose(now_ms=2 * LAG_MS_MAX + 1)
    assert change is not None
    assert change.row.in_sync == {1, 2}


def test_R9_one_that_keeps_up_with_a_moving_end_is_not_behind() -> None:
    led = leader(end=10)
    end = 10
    for now_ms in range(0, 5 * LAG_MS_MAX, 500):
        for node in (2, 3):
            serve(led, fetch(node, offset=end), end=end + 5, now_ms=now_ms)
        end += 5
        assert led.propose(now_ms=now_ms) is None


def test_R9_one_that_never_asks_is_given_as_long_from_the_beginning() -> None:
    led = leader()
    serve(led, fetch(2), now_ms=LAG_MS_MAX)
    assert led.propose(now_ms=LAG_MS_MAX) is None
    change = led.propose(now_ms=LAG_MS_MAX + 1)
    assert change is not None
    assert change.row.in_sync == {1, 2}


def test_R10_the_set_keeps_its_leader_and_its_least_size() -> None:
    led = leader(view=view_of(in_sync=frozenset((1, 2))))
    assert led.propose(now_ms=10 * LAG_MS_MAX) is None
    with pytest.raises(AssertionError):
        led.without(2)
    with pytest.raises(AssertionError):
        leader().without(1)


@pytest.mark.parametrize(("durable", "is_added"), [(9, False), (11, False), (12, True)])
def test_R11_who_is_added_has_this_epochs_beginning_on_disk(durable: int, is_added: bool) -> None:
    led = leader(end=12, watermark=10, view=view_of(in_sync=frozenset((1, 2))))
    serve(led, fetch(3, offset=12, durable=durable), end=12)
    change = led.propose(now_ms=0)
    assert (change is not None) is is_added
    if change is not None:
        assert change.row.in_sync == {1, 2, 3}
        assert change.incarnations == {3: 102}, "and only under this registration"


def test_R11_who_had_lost_something_is_whole_again_by_the_same_rule() -> None:
    led = leader(view=view_of(lost=frozenset((2,))))
    assert led.propose(now_ms=0) is None
    serve(led, fetch(2))
    change = led.propose(now_ms=0)
    assert change is not None
    assert (change.row.in_sync, change.row.lost) == (ROW.in_sync, frozenset())


def test_R11_an_earlier_life_of_a_follower_counts_for_nothing() -> None:
    led = leader(view=view_of(in_sync=frozenset((1, 2))))
    serve(led, fetch(3, incarnation=102))
    serve(led, fetch(3, incarnation=140, offset=5, durable=3))
    assert durable_offsets(led)[3] == 3
    assert isinstance(serve(led, fetch(3, incarnation=102)), Fenced)


def test_R12_commits_count_everybody_who_may_be_in_sync() -> None:
    led = leader(end=12, watermark=10, view=view_of(in_sync=frozenset((1, 2))))
    serve(led, fetch(3, offset=12), end=12)
    serve(led, fetch(2, offset=12), end=12)
    joining = led.propose(now_ms=0)
    assert joining is not None
    assert advanced(led, 15) == 12
    serve(led, fetch(2, offset=15), end=15)
    assert advanced(led, 15) == 12, "3 may be in sync by now"


def test_R12_changes_whose_fate_is_unknown_are_bounded() -> None:
    led = leader(view=view_of(in_sync=frozenset((1, 2))))
    serve(led, fetch(3))
    for _ in range(3 * PENDING_MAX):
        led.propose(now_ms=0)
    assert len(led._pending) == 1, "the same again is one"


# ── Commits and replication ──────────────────────────────────────────────────────────────────


def test_R13_committed_is_what_all_in_sync_have_on_disk() -> None:
    led = leader(end=20, watermark=10)
    assert advanced(led, 20) == 10
    serve(led, fetch(2, offset=20, durable=17), end=20)
    assert advanced(led, 20) == 10, "node 3 has sent no fetch"
    serve(led, fetch(3, offset=19, durable=18), end=20)
    assert advanced(led, 20) == 17
    assert advanced(led, 15) == 17, "it never falls"
    serve(led, fetch(2, offset=20), end=20)
    assert advanced(led, 20) == 18


def test_R14_only_the_same_epoch_is_served() -> None:
    led = leader()
    assert serve(led, fetch(2)) is None
    assert serve(led, fetch(2, epoch=4)) == Fenced(fetch(2, epoch=4), 5)
    assert isinstance(serve(led, fetch(2, epoch=6)), NotYet)
    assert durable_offsets(led) == {2: 10}


def test_R14_strangers_are_not_served() -> None:
    led = leader(view=view_of(replicas=(1, 2), in_sync=frozenset((1, 2))))
    assert isinstance(serve(led, fetch(3)), NotYet)
    assert durable_offsets(led) == {}


@pytest.mark.parametrize(
    ("offset", "last_epoch", "answer"),
    [
        (20, 4, None),
        (12, 4, None),
        (7, 2, None),
        (0, -1, None),
        (9, 2, (2, 7)),  # 2 went on to 9 there, here it ended at 7
        (9, 3, (2, 7)),  # nothing of 3 is here
        (25, 4, (4, 20)),
        (5, 0, (-1, 0)),
    ],
)
def test_R15_a_follower_is_believed_if_its_log_is_contained_in_ours(
    offset: int, last_epoch: int, answer: tuple[int, int] | None
) -> None:
    history = EpochHistory([(2, 0), (4, 7)])
    led = Leader(replica(history=history, end=20), VIEW, now_ms=0)
    asked = fetch(2, offset=offset, last_epoch=last_epoch)
    found = led.fetched(asked, now_ms=0)
    if answer is None:
        assert found is None
        assert durable_offsets(led) == {2: offset}
    else:
        assert found == Diverge(asked, *answer)
        assert durable_offsets(led) == {}


def test_R15_what_is_not_there_any_more_is_said_to_be_behind() -> None:
    asked = fetch(2, offset=3)
    led = Leader(replica(start=5, end=20), VIEW, now_ms=0)
    found = led.fetched(asked, now_ms=0)
    assert found == Behind(asked, 5)


@pytest.mark.parametrize(("offset", "last_epoch"), [(7, 2), (9, 2), (7, 3), (9, 3)])
def test_R15_what_parted_in_a_part_that_was_dropped_begins_anew(
    offset: int, last_epoch: int
) -> None:
    """Even where it wants the very first record that is left: what it has before may differ."""
    asked = fetch(2, offset=offset, last_epoch=last_epoch)
    led = Leader(replica(history=EpochHistory([(4, 7)]), start=7, end=20), VIEW, now_ms=0)
    found = led.fetched(asked, now_ms=0)
    assert found == Behind(asked, 7)
    assert durable_offsets(led) == {}


def test_R15_the_epoch_of_the_first_record_that_is_left_tells_what_stood_before() -> None:
    asked = fetch(2, offset=7, last_epoch=4)
    led = Leader(replica(history=EpochHistory([(4, 7)]), start=7, end=20), VIEW, now_ms=0)
    found = led.fetched(asked, now_ms=0)
    assert found is None


@pytest.mark.parametrize("start", [0, 3, 7])
def test_R15_an_empty_log_is_contained_wherever_it_begins(start: int) -> None:
    """It began anew at an earlier leader's word, whose log began elsewhere."""
    asked = fetch(2, offset=7, last_epoch=-1)
    led = Leader(replica(history=EpochHistory([(4, start)]), start=start, end=20), VIEW, now_ms=0)
    found = led.fetched(asked, now_ms=0)
    assert found is None


def following(*, last: int = 4) -> tuple[Replica, Fetch]:
    follower = replica(2, history=EpochHistory([(2, 0), (last, 6)]))
    follower.see(VIEW, now_ms=0)
    asked = follower.next_fetch()
    assert asked is not None
    return follower, asked


def take(
    follower: Replica, answer: Any, *, end: int = 10, watermark: int = 0, start: int = 0
) -> object:
    follower.history = EpochHistory([(2, 0), (4, 6)])
    follower.start_offset, follower.end_offset = start, end
    follower.high_watermark = watermark
    return follower.apply_reply(answer)


def test_R16_only_the_answer_that_is_waited_for_counts_and_only_once() -> None:
    follower, asked = following()
    assert take(follower, Data(asked, ["x"], 3)) == Append(["x"], 3)
    assert take(follower, Data(asked, ["x"], 3)) is None, "doubled"
    follower, asked = following()
    again = follower.next_fetch()
    assert again is not None
    assert take(follower, Diverge(asked, 2, 5)) is None, "late"
    assert take(follower, Diverge(again, 2, 5)) == Truncate(5)


def test_R16_nor_does_one_to_a_log_that_has_changed_since() -> None:
    follower, asked = following()
    assert take(follower, Diverge(asked, 2, 5), end=11) is None
    follower, asked = following(last=3)
    assert take(follower, Diverge(asked, 2, 5)) is None


@pytest.mark.parametrize(
    ("epoch", "end", "to"), [(2, 5, 5), (2, 9, 6), (3, 9, 6), (4, 8, 8), (-1, 0, 0)]
)
def test_R17_a_log_is_cut_to_what_both_know(epoch: int, end: int, to: int) -> None:
    follower, asked = following()
    assert take(follower, Diverge(asked, epoch, end)) == Truncate(to)


def test_R17_what_is_committed_is_never_cut() -> None:
    follower, asked = following()
    assert isinstance(take(follower, Diverge(asked, 2, 5), watermark=6), Halt)
    follower, asked = following()
    assert isinstance(take(follower, Diverge(asked, 4, 12)), Halt), "and no answer may lead nowhere"


def test_R17_one_that_is_too_far_behind_begins_anew() -> None:
    follower, asked = following()
    assert take(follower, Behind(asked, 30)) == Restart(30)
    follower, asked = following()
    assert take(follower, Behind(asked, 4), watermark=4) == Restart(4)
    follower, asked = following()
    assert isinstance(take(follower, Behind(asked, 4), watermark=5), Halt), "5 are committed"
    follower, asked = following()
    assert take(follower, Diverge(asked, 2, 5), start=8, end=10) == Restart(5)
    mine = replica()
    mine.restarted(30)
    assert (mine.start_offset, mine.end_offset, mine.high_watermark) == (30, 30, 30)
    assert mine.history.last == -1


def test_R14_a_follower_that_is_fenced_looks_for_the_new_epoch() -> None:
    follower, asked = following()
    assert take(follower, Fenced(asked, 6)) is None
    assert follower._fetch is None
    follower, asked = following()
    assert take(follower, NotYet(asked)) is None
    assert follower._fetch is None


def test_R18_a_follower_knows_as_committed_only_what_it_has() -> None:
    mine = replica(watermark=4)
    mine.see(view_of(leader=2, leader_incarnation=101), now_ms=0)
    assert mine.followed(7) == 7
    assert mine.followed(15) == 10
    assert mine.followed(3) == 10, "it never falls"


def test_R19_a_new_leader_is_not_settled_before_it_has_committed_its_own_beginning() -> None:
    led = leader(end=12, watermark=10)
    assert not led.is_settled
    for node in (2, 3):
        serve(led, fetch(node, offset=12), end=12)
    advanced(led, 12)
    assert led.is_settled


def test_R22_what_a_copy_had_that_may_have_been_dropped_counts_for_nothing() -> None:
    led = leader(end=10, watermark=0)
    serve(led, fetch(2))
    serve(led, fetch(3))
    without = row(replicas=(1, 3), in_sync=frozenset((1, 3)))
    led.saw(View(300, 300, without))
    assert durable_offsets(led) == {3: 10}
    again = row(replicas=(1, 3, 2), in_sync=frozenset((1, 3)))
    led.saw(View(301, 301, again))
    assert led.adding(2) is None
    serve(led, fetch(2, offset=0, last_epoch=-1))
    assert led.adding(2) is None
    assert durable_offsets(led) == {2: 0, 3: 10}


# ── Placement ────────────────────────────────────────────────────────────────────────────────


def test_R23_a_partition_moves_in_steps_that_keep_every_copy() -> None:
    change = election.place(VIEW, (2, 3, 4))
    assert change is not None
    assert change.row.replicas == (1, 2, 3, 4), "first those that come"
    view = View(300, 300, change.row)
    assert election.place(view, (2, 3, 4)) is None, "4 is not in sync yet"
    caught_up = msgspec.structs.replace(change.row, in_sync=frozenset((1, 2, 3, 4)))
    view = View(301, 301, caught_up)
    assert election.place(view, (2, 3, 4)) is None, "1 still leads"
    led = msgspec.structs.replace(caught_up, leader=3, epoch=6)
    final = election.place(View(302, 302, led), (2, 3, 4))
    assert final is not None
    assert (final.row.replicas, final.row.in_sync) == ((2, 3, 4), frozenset((2, 3, 4)))
    assert election.place(View(303, 303, final.row), (2, 3, 4)) is None


def test_a_row_that_contradicts_itself_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        row(in_sync=frozenset())
    with pytest.raises(AssertionError):
        row(lost=frozenset((4,)))
    with pytest.raises(AssertionError):
        row(in_sync=frozenset((1, 9)))


def test_a_change_without_conditions_names_none() -> None:
    assert dict(Change(1, ROW).incarnations) == {}


# ── Low watermarks ───────────────────────────────────────────────────────────────────────────


def test_R25_a_low_watermark_is_held_when_everybody_in_sync_has_stored_it() -> None:
    mine = replica()
    mine.see(VIEW, now_ms=0)
    mine.low_watermark = 7
    assert mine.low_watermark_held == 0, "nobody else has said so"
    for node in (2, 3):
        assert mine.low_watermark_held == 0
        mine.fetched(fetch(node, low_watermark=8), now_ms=0)
    assert mine.low_watermark_held == 7, "its own counts, too"
    mine.low_watermark = 9
    assert mine.low_watermark_held == 8
    led = mine.leader
    assert led is not None
    mine.fetched(fetch(2, low_watermark=9), now_ms=0)
    led._proposed(led.without(3))
    assert mine.low_watermark_held == 8, "3 may still be elected"
    mine.see(View(300, 299, row(in_sync=frozenset((1, 2)))), now_ms=0)
    assert mine.low_watermark_held == 9
    led._proposed(Change(299, row()))
    assert mine.low_watermark_held == 8, "3 may be elected already"


def test_R25_who_is_added_has_the_low_watermark() -> None:
    mine = replica()
    mine.see(view_of(in_sync=frozenset((1, 2))), now_ms=0)
    mine.low_watermark = 7
    led = mine.leader
    assert led is not None
    mine.fetched(fetch(3, low_watermark=6), now_ms=0)
    assert led.adding(3) is None
    mine.fetched(fetch(3, low_watermark=7, number=2), now_ms=0)
    assert led.adding(3) is not None


def test_R25_only_a_follower_whose_log_is_contained_in_ours_is_believed() -> None:
    mine = replica()
    mine.see(VIEW, now_ms=0)
    mine.low_watermark = 7
    mine.fetched(fetch(2, low_watermark=7), now_ms=0)
    mine.fetched(fetch(3, low_watermark=7, last_epoch=3), now_ms=0)
    assert mine.low_watermark_held == 0


def test_R25_a_new_epoch_knows_its_own_low_watermark_and_no_other() -> None:
    mine = replica()
    mine.low_watermark = 7
    mine.see(VIEW, now_ms=0)
    assert mine.low_watermark_held == 0
    for node in (2, 3):
        mine.fetched(fetch(node, low_watermark=9), now_ms=0)
    assert mine.low_watermark_held == 7


def test_R25_a_follower_tells_what_it_has_stored_and_not_where_its_log_begins() -> None:
    mine = replica()
    mine.see(view_of(leader=2, leader_incarnation=101), now_ms=0)
    mine.low_watermark = 7
    asked = mine.next_fetch()
    assert asked is not None
    assert asked.low_watermark == 7
    mine.trimmed(8)
    asked = mine.next_fetch()
    assert asked is not None
    assert asked.low_watermark == 7
    mine.restarted(20)
    assert mine.low_watermark == 7
    mine.restarted(5)
    assert mine.low_watermark == 5, "never above the end of the log"
