"""Changes of the in-sync set that cannot or need not happen: they must not hold up commits."""

from penstock.replication.epochs import EpochHistory
from penstock.replication.leader import Leader
from penstock.replication.messages import Fetch
from penstock.replication.replica import Replica
from penstock.replication.row import PartitionRow, View


def leading(view: View) -> Leader:
    history = EpochHistory([(1, 0)])
    replica = Replica(
        1,
        5,
        history=history,
        start_offset=0,
        end_offset=0,
        durable_offset=0,
        high_watermark=0,
    )
    return Leader(replica, view, now_ms=0)


def serve(leader: Leader, asked: Fetch, *, end: int, now_ms: int) -> None:
    leader._log.end_offset = end
    leader.fetched(asked, now_ms=now_ms)


def advanced(leader: Leader, durable_offset: int) -> int:
    leader._log.durable_offset = durable_offset
    leader.advance()
    return leader._log.high_watermark


def held(leader: Leader, durable_offset: int) -> int:
    leader._log.durable_offset = durable_offset
    return leader.held_offset


def led(in_sync: frozenset[int] = frozenset((1, 2, 3)), *, end: int = 10) -> Leader:
    row = PartitionRow((1, 2, 3), in_sync, leader=1, leader_incarnation=5, epoch=1, in_sync_min=2)
    leader = leading(View(7, 7, row))
    for node in (2, 3):
        asked = Fetch(node, 5, 1, end, end, 1, 1)
        serve(leader, asked, end=end, now_ms=0)
    return leader


def test_R9_one_whose_registration_is_gone_is_taken_out_at_once() -> None:
    change = led().propose(now_ms=1, gone=[3])
    assert change is not None
    assert change.row.in_sync == {1, 2}


def test_R10_also_one_that_is_gone_stays_where_the_set_would_become_too_small() -> None:
    assert led(frozenset((1, 3))).propose(now_ms=1, gone=[2, 3]) is None


def test_R11_one_that_is_gone_is_not_added_whatever_it_had() -> None:
    leader = led(frozenset((1, 2)))
    assert leader.propose(now_ms=1, gone=[3]) is None
    change = leader.propose(now_ms=1)
    assert change is not None
    assert change.row.in_sync == {1, 2, 3}


def test_R12_a_change_that_the_store_refused_counts_no_more() -> None:
    leader = led(frozenset((1, 2)))
    change = leader.propose(now_ms=1)
    assert change is not None
    asked = Fetch(2, 5, 1, 12, 12, 1, 2)
    serve(leader, asked, end=12, now_ms=1)
    assert advanced(leader, 12) == 10  # the third may be in the set already
    leader.refused(change)
    assert advanced(leader, 12) == 12


def test_R2_a_change_that_may_still_happen_counts_although_it_was_refused_since() -> None:
    leader = led(frozenset((1, 2)))
    change = leader.propose(now_ms=1)
    assert change is not None
    leader.doubted(change)
    leader.refused(change)
    asked = Fetch(2, 5, 1, 12, 12, 1, 2)
    serve(leader, asked, end=12, now_ms=1)
    assert advanced(leader, 12) == 10
    settling = leader.propose(now_ms=2)
    assert settling is not None
    assert settling.row == leader.row  # nothing changes but the version
    leader.saw(View(9, 9, leader.row))  # now it is known that it did not happen, and never will
    assert advanced(leader, 12) == 12
    assert leader.propose(now_ms=3) is None


def test_what_every_replica_has_counts_those_out_of_sync_and_those_never_heard_of() -> None:
    leader = led(frozenset((1, 2)))
    assert held(leader, 12) == 10
    assert held(leader, 4) == 4, "nor more than this node has itself"
    asked = Fetch(2, 5, 1, 12, 12, 1, 2)
    serve(leader, asked, end=12, now_ms=1)
    assert held(leader, 12) == 10, "the third is out of sync, and counts"
    row = PartitionRow(
        (1, 2, 4), frozenset((1, 2)), leader=1, leader_incarnation=5, epoch=1, in_sync_min=2
    )
    leader.saw(View(9, 9, row))
    assert held(leader, 12) == 0, "the fourth has sent no fetch"
