"""One step of a member towards its target assignment. Consumer groups move partitions, streams
groups move tasks; the rule is the same: give up first, then take what no other member has.
"""

from collections.abc import Callable

from penstock.cursor.group.assignors import Partitions, TopicPartition
from penstock.cursor.group.consumer_fold import Current, MemberState


def reconcile(
    current: Current,
    target: Partitions,
    *,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicPartition], bool],
) -> Current:
    """Return the member's next state. ``owned``: the partitions it reports; None: no report.
    ``is_free``: whether the member may take a partition now, because no other member has it."""
    if current.state is MemberState.UNREVOKED:
        if owned is None or owned & current.revoking:
            return current  # not given up yet
        # Given up: the partitions are free from here on, and the member may move.
    elif current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    keep = current.assigned & target
    revoke = current.assigned - target
    if revoke and (owned is None or owned & revoke):
        # The first revocation keeps the epoch, so that a lost reply is noticed.
        is_settled = current.state is MemberState.UNREVOKED
        epoch = current.epoch + 1 if is_settled else current.epoch
        epoch = min(epoch, target_epoch)
        previous = current.epoch if is_settled else current.previous_epoch
        return Current(epoch, previous, MemberState.UNREVOKED, keep, revoke)
    wanted = target - keep
    taken = frozenset(filter(is_free, wanted))
    state = MemberState.STABLE if taken == wanted else MemberState.UNRELEASED
    previous = current.epoch if target_epoch != current.epoch else current.previous_epoch
    return Current(target_epoch, previous, state, keep | taken, frozenset())


def epoch_text(kind: str, epoch: int, known: int) -> str:
    """Return, in Kafka's words, why a member with another epoch than the known one is fenced."""
    size = "greater" if epoch > known else "smaller"
    return (
        f"The {kind} group member has a {size} member epoch ({epoch}) than the one known by the"
        f" group coordinator ({known}). The member must abandon all its partitions and rejoin."
    )
