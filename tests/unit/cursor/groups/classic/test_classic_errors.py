"""Every refusal of the classic protocol, one by one."""

from collections.abc import Callable

import pytest
from tests.unit.cursor.groups.harness import SECOND, Shell, topics_of

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.settings import GroupSettings
from penstock.wire.kafka.faults import ErrorCode

Case = Callable[[Shell, list[str], int], ErrorCode]


def _prepare(shell: Shell) -> int:
    return shell.send_join(protocols=(("range", b"newcomer"),))


def _complete(shell: Shell, members: list[str]) -> int:
    shell.send_join(member=members[0])
    return shell.join(member=members[1]).generation


CASES: dict[str, tuple[ErrorCode, Case]] = {
    "join with a session too short": (
        ErrorCode.INVALID_SESSION_TIMEOUT,
        lambda s, m, g: s.join(session_ms=5 * SECOND).code,
    ),
    "join with a session too long": (
        ErrorCode.INVALID_SESSION_TIMEOUT,
        lambda s, m, g: s.join(session_ms=31 * 60 * SECOND).code,
    ),
    "join without protocols": (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        lambda s, m, g: s.join(protocols=()).code,
    ),
    "join without a protocol type": (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        lambda s, m, g: s.join(protocol_type="").code,
    ),
    "join with another protocol type": (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        lambda s, m, g: s.join(protocol_type="connect").code,
    ),
    "join with a protocol the others lack": (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        lambda s, m, g: s.join(protocols=(("sticky", b""),)).code,
    ),
    "join with an unknown member id": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.join(member="nobody").code,
    ),
    "join of an unknown group with a member id": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.join("other", member="nobody").code,
    ),
    "join of a group without a name": (ErrorCode.INVALID_GROUP_ID, lambda s, m, g: s.join("").code),
    "join of a group with too long a name": (
        ErrorCode.INVALID_GROUP_ID,
        lambda s, m, g: s.join("x" * 1_025).code,
    ),
    "join under the id of another instance": (
        ErrorCode.FENCED_INSTANCE_ID,
        lambda s, m, g: s.join(member=m[1], instance="i0").code,
    ),
    "sync of an unknown group": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.sync(m[0], g, group="other").code,
    ),
    "sync of an unknown member": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.sync("nobody", g).code,
    ),
    "sync of an old generation": (
        ErrorCode.ILLEGAL_GENERATION,
        lambda s, m, g: s.sync(m[0], g - 1).code,
    ),
    "sync of a generation to come": (
        ErrorCode.ILLEGAL_GENERATION,
        lambda s, m, g: s.sync(m[0], g + 1).code,
    ),
    "sync with another protocol type": (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        lambda s, m, g: s.sync(m[0], g, protocol_type="connect").code,
    ),
    "sync with another protocol": (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        lambda s, m, g: s.sync(m[0], g, protocol="sticky").code,
    ),
    "sync of a fenced instance": (
        ErrorCode.FENCED_INSTANCE_ID,
        lambda s, m, g: s.sync("old", g, instance="i0").code,
    ),
    "sync while members join": (
        ErrorCode.REBALANCE_IN_PROGRESS,
        lambda s, m, g: (_prepare(s), s.sync(m[0], g).code)[1],
    ),
    "heartbeat of an unknown group": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.heartbeat(m[0], g, group="other"),
    ),
    "heartbeat of an unknown member": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.heartbeat("nobody", g),
    ),
    "heartbeat of an unknown instance": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.heartbeat("nobody", g, instance="i7"),
    ),
    "heartbeat of another generation": (
        ErrorCode.ILLEGAL_GENERATION,
        lambda s, m, g: s.heartbeat(m[0], g + 1),
    ),
    "heartbeat of a fenced instance": (
        ErrorCode.FENCED_INSTANCE_ID,
        lambda s, m, g: s.heartbeat("old", g, instance="i0"),
    ),
    "heartbeat while members join": (
        ErrorCode.REBALANCE_IN_PROGRESS,
        lambda s, m, g: (_prepare(s), s.heartbeat(m[0], g))[1],
    ),
    "heartbeat while the leader assigns is fine": (
        ErrorCode.NONE,
        lambda s, m, g: s.heartbeat(m[0], _complete(s, m)),
    ),
    "leave of an unknown group": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.leave((m[0], None), group="other")[0],
    ),
    "leave of an unknown member": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.leave(("nobody", None))[0],
    ),
    "leave of an unknown instance": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.leave(("", "i7"))[0],
    ),
    "leave of a fenced instance": (
        ErrorCode.FENCED_INSTANCE_ID,
        lambda s, m, g: s.leave(("old", "i0"))[0],
    ),
    "leave of an instance by its name alone": (
        ErrorCode.NONE,
        lambda s, m, g: s.leave(("", "i0"))[0],
    ),
    "commit of another generation": (
        ErrorCode.ILLEGAL_GENERATION,
        lambda s, m, g: s.commit({("t", 0): 1}, member=m[0], generation=g - 1),
    ),
    "commit of an unknown member": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.commit({("t", 0): 1}, member="nobody", generation=g),
    ),
    "commit without a member while there are members": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s, m, g: s.commit({("t", 0): 1}),
    ),
    "commit to an unknown group with a generation": (
        ErrorCode.GROUP_ID_NOT_FOUND,
        lambda s, m, g: s.commit({("t", 0): 1}, group="other", member="m", generation=1),
    ),
    "commit while the leader assigns": (
        ErrorCode.REBALANCE_IN_PROGRESS,
        lambda s, m, g: s.commit({("t", 0): 1}, member=m[0], generation=_complete(s, m)),
    ),
    "commit while members join is fine": (
        ErrorCode.NONE,
        lambda s, m, g: (_prepare(s), s.commit({("t", 0): 1}, member=m[0], generation=g))[1],
    ),
    "commit with too much metadata": (
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        lambda s, m, g: s.commit({("t", 0): 1}, member=m[0], generation=g, metadata="é" * 2_049),
    ),
    "consumer heartbeat to a classic group with members": (
        ErrorCode.GROUP_ID_NOT_FOUND,
        lambda s, m, g: s.beat(topics_of(t=1), "c", 0, names=("t",), owned=frozenset()).code,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_with_the_code_the_protocol_has_for_it(name: str) -> None:
    expected, case = CASES[name]
    shell = Shell()
    members, generation = shell.stable_group(2, instances=True)
    # Requests of these cases speak for instances only where they say so.
    assert case(shell, members, generation) == expected
    shell.check_replay()


def test_a_group_takes_only_so_many_members() -> None:
    shell = Shell(GroupSettings(initial_delay_ms=0, members_max=2))
    shell.stable_group(2)
    assert shell.join().code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert shell.join(confirms_id=True).code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_ids_handed_out_count_as_members() -> None:
    shell = Shell(GroupSettings(initial_delay_ms=0, members_max=2))
    codes = [shell.join(confirms_id=True).code for _ in range(3)]
    assert codes == [ErrorCode.MEMBER_ID_REQUIRED] * 2 + [ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_a_coordinator_takes_only_so_many_groups() -> None:
    shell = Shell(GroupSettings(initial_delay_ms=0, groups_max=1))
    shell.stable_group(1)
    assert shell.join("other").code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert shell.commit({("t", 0): 1}, group="other") == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_refused_join_leaves_no_group_behind() -> None:
    shell = Shell()
    assert shell.join(session_ms=1).code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert shell.groups.list_groups(calls.ListGroups()) == ()
