"""What replicas of a partition say to each other. A follower asks, the leader answers; every answer
repeats what it was asked with, so that a late or doubled one is recognised (R16)."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

B = TypeVar("B")  # whatever stands for a batch: bytes on a node, something smaller in a simulation


class Fetch(NamedTuple):
    node: int
    incarnation: int
    epoch: int
    offset: int  # the follower's end: what it wants is what comes next
    durable_offset: int  # what it has on disk; equal to its end where nobody waits for disks
    last_epoch: int  # of its last batch
    number: int  # of the request
    low_watermark: int = 0  # of the follower's log, as stored on its disk


class Data(NamedTuple, Generic[B]):
    asked: Fetch
    batches: Sequence[B]
    high_watermark: int


class Diverge(NamedTuple):
    """The leader's log does not contain the follower's: the leader's largest epoch up to the
    follower's last, and where it ends."""

    asked: Fetch
    epoch: int
    end_offset: int


class Behind(NamedTuple):
    """What the follower wants, or where the two logs part, is not in the leader's log any more;
    this is where that begins."""

    asked: Fetch
    start_offset: int


class Fenced(NamedTuple):
    """Who asks has an old epoch."""

    asked: Fetch
    epoch: int


class NotYet(NamedTuple):
    """Who is asked knows of no such epoch yet, or leads none."""

    asked: Fetch


Answer = Data[B] | Diverge | Behind | Fenced | NotYet
