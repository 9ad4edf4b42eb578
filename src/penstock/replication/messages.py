"""Requests and replies between the replicas of a partition. A follower sends a fetch, and the
leader replies. Every reply contains its fetch, so late and duplicate replies are recognised."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

B = TypeVar("B")  # type of a batch: bytes on a node, smaller in a simulation


class Fetch(NamedTuple):
    node: int
    incarnation: int
    epoch: int
    offset: int  # end of the follower's log, from which it fetches
    durable_offset: int  # end on disk; equal to ``offset`` unless commits wait for fsync
    last_epoch: int  # epoch of the last batch
    number: int  # number of the request
    low_watermark: int = 0  # as stored on the follower's disk


class Data(NamedTuple, Generic[B]):
    fetch: Fetch
    batches: Sequence[B]
    high_watermark: int


class Diverge(NamedTuple):
    """The follower has records that the leader lacks. The logs can only be equal up to
    ``end_offset``, where the leader's ``epoch`` ends."""

    fetch: Fetch
    epoch: int
    end_offset: int


class Behind(NamedTuple):
    """The follower must start over at ``start_offset``, where the leader's log starts."""

    fetch: Fetch
    start_offset: int


class Fenced(NamedTuple):
    fetch: Fetch
    epoch: int


class NotYet(NamedTuple):
    """The receiver of the fetch does not know the epoch yet, or is not the leader."""

    fetch: Fetch


Reply = Data[B] | Diverge | Behind | Fenced | NotYet
