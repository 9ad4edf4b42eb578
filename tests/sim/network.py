"""What is on its way between simulated nodes, and from them to the store."""

from typing import NamedTuple

from tests.sim.disk import Entry

from penstock.replication.messages import Fetch, Reply
from penstock.replication.row import Change


class DropRequest(NamedTuple):
    """May this node's copy go? (R22)"""

    node: int
    epoch: int
    number: int


class DropReply(NamedTuple):
    number: int


What = Fetch | Reply[Entry] | Change | DropRequest | DropReply


class Sent(NamedTuple):
    """On its way; a node's life ends what it was waiting for."""

    source: int
    target: int
    what: What
    life: int
    leader_start: int = 0  # with data: where the leader's log begins
    leader_low_watermark: int = 0
