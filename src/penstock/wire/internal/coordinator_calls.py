"""Calls between coordinators of groups and of transactions on different nodes: 0x0400-0x04FF.

A group and a transaction that commits its offsets may be coordinated by different nodes, and so may
a transaction and the partitions it writes to. Clients find the coordinator of each; these are the
calls between the coordinators. Codes are Kafka's."""

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.wire.internal.calls import Call


class TransactionAdd(msgspec.Struct, frozen=True, array_like=True):
    """Add partitions to a transaction; ``is_check``: only check that they are in it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[tuple[str, int]]
    is_check: bool = False


class GroupComplete(msgspec.Struct, frozen=True, array_like=True):
    """A transaction has ended: its offsets for a group become valid, or are discarded."""

    group_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool


class GroupFetch(msgspec.Struct, frozen=True, array_like=True):
    """Read the committed offsets of a group. ``partitions`` None: all of them."""

    group_id: str
    partitions: Sequence[tuple[str, int]] | None
    requires_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class OffsetReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields here and below have the names of ``cursor.group.offsets``."""

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    code: int


class GroupFetched(msgspec.Struct, frozen=True, array_like=True):
    code: int
    partitions: tuple[OffsetReply, ...] = ()


class CodeReply(msgspec.Struct, frozen=True, array_like=True):
    code: int


TRANSACTION_ADD: Final = Call(
    0x0400, "transaction.add", TransactionAdd, CodeReply, is_idempotent=True
)
GROUP_COMPLETE: Final = Call(0x0401, "group.complete", GroupComplete, CodeReply, is_idempotent=True)
GROUP_FETCH: Final = Call(0x0402, "group.fetch", GroupFetch, GroupFetched, is_idempotent=True)
