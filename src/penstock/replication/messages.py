"""Requests and replies between the replicas of a partition. A follower sends a fetch, the leader
replies; every reply repeats its request, so that a late or duplicate one is recognised (R16)."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

B = TypeVar("B")  # the type of a batch: bytes on a node, smaller in a simulation


class Fetch(NamedTuple):
    node: int
    incarnation: int
    epoch: int
    offset: int  # the end of the follower's log: it requests what comes next
    durable_offset: int  # its end on disk; equal to ``offset`` if commits do not wait for disks
    last_epoch: int  # of its last batch
    number: int  # of the request
    low_watermark: int = 0  # of the follower's log, as stored on its disk


class Data(NamedTuple, Generic[B]):
    fetch: Fetch
    batches: Sequence[B]
    high_watermark: int


class Diverge(NamedTuple):
    """The leader's log does not contain the follower's: the leader's largest epoch up to the
    follower's last, and where that epoch ends."""

    fetch: Fetch
    epoch: int
    end_offset: int


class Behind(NamedTuple):
    """The requested offset, or the offset where the logs diverge, is not in the leader's log any
    more, which begins at ``start_offset``."""

    fetch: Fetch
    start_offset: int


class Fenced(NamedTuple):
    """The follower has an old epoch."""

    fetch: Fetch
    epoch: int


class NotYet(NamedTuple):
    """The receiver does not know the epoch yet, or does not lead."""

    fetch: Fetch


Reply = Data[B] | Diverge | Behind | Fenced | NotYet
