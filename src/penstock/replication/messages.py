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
    """The leader lacks a part of the follower's log; its epoch up to the follower's last."""

    fetch: Fetch
    epoch: int
    end_offset: int


class Behind(NamedTuple):
    """The requested offset, or where the logs diverge, is before the leader's log begins."""

    fetch: Fetch
    start_offset: int


class Fenced(NamedTuple):
    fetch: Fetch
    epoch: int


class NotYet(NamedTuple):
    """The receiver does not know the epoch yet, or does not lead."""

    fetch: Fetch


Reply = Data[B] | Diverge | Behind | Fenced | NotYet
