"""ReplayPolicy: ``{"PointType": "Timestamp", "StartingPoint": T, "EndingPoint": T}``, which asks to
send the messages between two times again. Without EndingPoint, it ends with the newest message."""

from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.frontend.aws.sns.rules.topic_attributes import json_object
from penstock.model.subscription import REPLAYS_MAX, Replay, ReplayState, Subscription
from penstock.wire.aws.sns.faults import cut, fault

REPLAY: Final = "ReplayPolicy"
STATUS: Final = "ReplayStatus"
_MEMBERS: Final = frozenset(("PointType", "StartingPoint", "EndingPoint"))
_STATUSES: Final = {
    ReplayState.WAITING: "Pending",
    ReplayState.RUNNING: "In progress",
    ReplayState.COMPLETED: "Completed",
    ReplayState.FAILED: "Failed",
}


class Times(msgspec.Struct, frozen=True):
    start_ms: int
    end_ms: int | None  # the last millisecond to send; None: now


def read_policy(text: str, *, prefix: str, now_ms: int) -> Times:
    """Read a policy that is not empty. ``prefix`` is ON_SET or ON_CREATE of ``faults.py``."""

    def bad(reason: str) -> Exception:
        return fault("InvalidParameter", f"{prefix}{REPLAY}: {reason}")

    document = json_object(text)
    if document is None:
        raise bad("failed to parse JSON. The policy must be an object")
    unknown = sorted(document.keys() - _MEMBERS)
    if unknown:
        raise bad(f"Unexpected JSON member: {cut(unknown[0])}")
    if document.get("PointType") != "Timestamp":
        raise bad("PointType must be Timestamp")
    start_ms = _time_ms(document.get("StartingPoint"))
    if start_ms is None:
        raise bad("StartingPoint must be a time such as 2026-01-31T12:00:00.000Z")
    if start_ms > now_ms:
        raise bad("StartingPoint must be in the past")
    if document.get("EndingPoint") is None:
        return Times(start_ms, None)
    end_ms = _time_ms(document["EndingPoint"])
    if end_ms is None:
        raise bad("EndingPoint must be a time such as 2026-01-31T12:00:00.000Z")
    if end_ms < start_ms:
        raise bad("EndingPoint must not be before StartingPoint")
    return Times(start_ms, None if end_ms >= now_ms else end_ms)


def _time_ms(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return max(0, int(at.timestamp() * 1_000))
    except (ValueError, OverflowError):
        return None


def with_replay(
    one: Subscription, *, starts: tuple[int, ...], until: tuple[int, ...], now_ms: int
) -> Subscription:
    """Add a replay. The oldest completed ones are removed if there are too many."""
    kept, room = list(one.replays), REPLAYS_MAX - 1
    for old in [each for each in kept if not each.is_open][: max(0, len(kept) - room)]:
        kept.remove(old)
    if len(kept) > room:
        text = f"The subscription has {REPLAYS_MAX} replays that are not completed: wait for them."
        raise fault("ReplayLimitExceeded", text)
    number = max((each.number for each in one.replays), default=0) + 1
    new = Replay(number, starts, until, now_ms)
    return msgspec.structs.replace(one, replays=(*kept, new))


def without_replays(one: Subscription) -> Subscription:
    """End the replays of a subscription whose policy is removed."""
    ended = tuple(
        msgspec.structs.replace(each, state=ReplayState.FAILED) if each.is_open else each
        for each in one.replays
    )
    return msgspec.structs.replace(one, replays=ended)


def status(one: Subscription) -> str:
    """Return the state of the newest replay. A pending subscription has none yet."""
    return _STATUSES[one.replays[-1].state if one.replays else ReplayState.WAITING]
