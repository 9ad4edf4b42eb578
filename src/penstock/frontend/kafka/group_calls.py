"""The port of the group coordinators, as the group APIs see it.

Requests and replies are those of ``cursor.group``: the codes in them are the protocol's, and
choosing one is what a coordinator is for. Offsets are kept by topic id, so a topic that was deleted
and made anew starts without any; names end in this package.

Every call may answer COORDINATOR_NOT_AVAILABLE, upon which clients look for the coordinator and ask
again. None raises.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from penstock.cursor.group.assignors import TopicPartition
from penstock.cursor.group.classic_state import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    SyncReply,
    SyncRequest,
)
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import ConsumerHeartbeat, ConsumerReply
from penstock.cursor.group.decision import Reply
from penstock.cursor.group.describe import Description, Listing
from penstock.cursor.group.offsets import CommitReply, CommitRequest, FetchReply
from penstock.cursor.group.settings import ShareSettings
from penstock.cursor.group.share import ShareHeartbeat, ShareReply
from penstock.cursor.group.sight import Sight
from penstock.cursor.group.streams_requests import StreamsHeartbeat, StreamsReply


class GroupCalls(Protocol):
    """Implemented by ``broker/groups.py``."""

    async def join(self, group_id: str, request: JoinRequest) -> JoinReply:
        """Parks until the members of the next generation are known. A cancelled call answers
        nobody; the member itself stays until its time is over."""
        ...

    async def sync(self, group_id: str, request: SyncRequest) -> SyncReply:
        """Parks until the leader has assigned and that is committed."""
        ...

    async def heartbeat(
        self, group_id: str, *, member_id: str, generation: int, instance_id: str | None
    ) -> Reply: ...

    async def leave(
        self, group_id: str, leavers: Sequence[tuple[str, str | None]]
    ) -> LeaveReply: ...

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, *, sight: Sight | None = None
    ) -> ConsumerReply:
        """``sight``: which topics the member may see, and so be assigned by a pattern; None: all of
        its account."""
        ...

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareReply: ...

    async def streams_heartbeat(self, group_id: str, request: StreamsHeartbeat) -> StreamsReply:
        """UNSUPPORTED_VERSION below feature level 5."""
        ...

    async def make_share_group(self, group_id: str) -> Reply:
        """Make a share group without members. Nothing if it exists; GROUP_ID_NOT_FOUND if there is
        a group of another kind."""
        ...

    def share_settings(self, group_id: str) -> ShareSettings:
        """What holds for a share group of this name, whether there is one or not. From memory:
        needs no coordinator. Below feature level 3 a node that does not coordinate the group knows
        only the defaults."""
        ...

    @property
    def has_stored_configs(self) -> bool:
        """Whether configs are in the metadata store. If not, only those can be set that nodes of an
        older version know (``CONFIGS_OF_ROWS``)."""
        ...

    async def configs(self, group_id: str) -> tuple[Code, Mapping[str, str]]:
        """What is set for a group of this name, whether there is one or not."""
        ...

    async def change_configs(self, group_id: str, changes: Mapping[str, str | None]) -> Reply:
        """None goes back to the default. Values have been checked by who calls."""
        ...

    async def commit(self, group_id: str, request: CommitRequest) -> CommitReply:
        """When the reply has a code of its own it holds for all partitions of the request."""
        ...

    async def commit_in_transaction(
        self, group_id: str, request: CommitRequest, *, producer_id: int, producer_epoch: int
    ) -> CommitReply:
        """Not shown before the transaction is completed. Whoever calls has made sure that the group
        is part of the producer's transaction."""
        ...

    async def complete_transaction(
        self, group_id: str, *, producer_id: int, producer_epoch: int, is_commit: bool
    ) -> Reply:
        """The transaction has ended, for this group and all others of the same coordinator. Again
        is harmless."""
        ...

    async def fetch(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        *,
        requires_stable: bool,
        member_id: str | None,
        member_epoch: int,
    ) -> FetchReply:
        """``partitions`` None: all that have a committed offset. Waits for a coordinator that moves
        from one node to another, or that is still reading, for some seconds."""
        ...

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, str, int]]
    ) -> CommitReply:
        """(topic id, topic name, partition) each."""
        ...

    async def list_groups(
        self, *, states: Collection[str], kinds: Collection[str]
    ) -> tuple[Code, Sequence[Listing]]: ...

    async def describe(self, group_id: str) -> Description: ...

    async def delete_group(self, group_id: str) -> Reply: ...
