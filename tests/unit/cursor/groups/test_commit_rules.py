"""Who may commit offsets, as a table over the group's state, the generation and the member: for
OffsetCommit up to version 8, from version 9 on, and for TxnOffsetCommit."""

import pytest
from tests.unit.cursor.groups.harness import Shell

from penstock.wire.kafka.faults import ErrorCode

CURRENT, OLDER, NEWER, NO_GENERATION = "current", "older", "newer", "none"
KNOWN, UNKNOWN, NO_MEMBER = "known", "unknown", "no member"
GENERATIONS = (CURRENT, OLDER, NEWER, NO_GENERATION)
MEMBERS = (KNOWN, UNKNOWN, NO_MEMBER)
V8, V9, TXN = "version 8", "version 9", "transaction"
STATES = ("unknown", "simple", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable")


def group_in(state: str) -> tuple[Shell, str, int]:
    """A group in a state, with the id of a member (that left, if the group is empty) and the
    current generation."""
    shell = Shell()
    if state == "unknown":
        return shell, "m", 1
    if state == "simple":
        assert shell.commit({("t", 0): 1}) == ErrorCode.NONE
        return shell, "m", 1
    if state == "CompletingRebalance":
        joined = shell.join()
        member, generation = joined.member_id, joined.generation
    else:
        (member,), generation = shell.stable_group(1)
    if state == "Empty":
        shell.leave((member, None))
        generation = shell.groups.describe("g").generation
    elif state == "PreparingRebalance":
        shell.send_join()
    assert shell.groups.describe("g").state == state
    return shell, member, generation


def expected(state: str, generation: str, member: str, request: str) -> ErrorCode:
    if generation == NO_GENERATION and state in ("unknown", "simple", "Empty"):
        return ErrorCode.NONE
    if state == "unknown":
        return ErrorCode.GROUP_ID_NOT_FOUND if request == V9 else ErrorCode.ILLEGAL_GENERATION
    if state in ("simple", "Empty") or member == UNKNOWN:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member == NO_MEMBER:
        is_free = generation == NO_GENERATION and request == TXN
        return ErrorCode.NONE if is_free else ErrorCode.UNKNOWN_MEMBER_ID
    if generation != CURRENT:
        return ErrorCode.ILLEGAL_GENERATION
    if state == "CompletingRebalance" and request != TXN:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


@pytest.mark.parametrize("request_", [V8, V9, TXN])
@pytest.mark.parametrize("state", STATES)
def test_the_code_of_a_commit(state: str, request_: str) -> None:
    found = {}
    wanted = {}
    for generation in GENERATIONS:
        for member in MEMBERS:
            shell, known, current = group_in(state)
            number = {CURRENT: current, OLDER: current - 1, NEWER: current + 1}.get(generation, -1)
            found[generation, member] = shell.commit(
                {("t", 1): 5},
                member={KNOWN: known, UNKNOWN: "x"}.get(member, ""),
                generation=number,
                producer=(7, 0) if request_ == TXN else None,
                knows_epochs=request_ != V8,
            )
            wanted[generation, member] = expected(state, generation, member, request_)
            shell.check_replay()
    assert found == wanted
