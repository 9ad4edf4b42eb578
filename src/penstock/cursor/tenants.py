"""Counts the groups, group configs, bytes of offsets and transactional ids of each tenant.

A tenant's quota applies to the sum over the partitions that this node coordinates. In addition,
each tenant may use only a part of the limit of each partition. Nodes do not exchange their sums, so
a tenant gets at most its quota from each node. An exact sum would need calls to other nodes before
each new group."""

from collections.abc import Hashable
from typing import Final

from penstock.model.names import ACCOUNT_DEFAULT, split_scoped
from penstock.model.ports import Identities
from penstock.model.quotas import NO_LIMIT, Quota, most_of


class CoordinatorUsage:
    def __init__(self, identities: Identities | None, *, own_account: str) -> None:
        self.own_account = own_account
        self.refused: dict[tuple[str, str], int] = {}  # by account and the quota's name
        self._identities = identities
        self._partitions: dict[Hashable, PartitionUsage] = {}

    def start(self, key: Hashable) -> "PartitionUsage":
        usage = self._partitions[key] = PartitionUsage(self)
        return usage

    def drop(self, key: Hashable) -> None:
        self._partitions.pop(key, None)

    def used(self, account: str, quota: Quota) -> int:
        return sum(usage.used(account, quota) for usage in self._partitions.values())

    def most(self, account: str, quota: Quota, bound: int = NO_LIMIT) -> int:
        if self._identities is None:
            return NO_LIMIT
        tenant = self._identities.tenant(account)
        return most_of(tenant, quota, own_account=self.own_account, bound=bound)

    def note_refused(self, account: str, quota: Quota) -> None:
        key = (account, quota.name)
        self.refused[key] = self.refused.get(key, 0) + 1


class PartitionUsage:
    __slots__ = ("_counts", "node")

    def __init__(self, node: CoordinatorUsage) -> None:
        self.node = node
        self._counts: dict[tuple[str, str], int] = {}  # by account and ``Quota.what``

    def account_of(self, scoped_id: str) -> str:
        return split_scoped(scoped_id, own_account=self.node.own_account)[0]

    def add(self, account: str, quota: Quota, change: int) -> None:
        key = (account, quota.what)
        count = self._counts.get(key, 0) + change
        if count:
            self._counts[key] = count
        else:
            self._counts.pop(key, None)

    def used(self, account: str, quota: Quota) -> int:
        return self._counts.get((account, quota.what), 0)

    def room(self, account: str, quota: Quota, *, bound: int = NO_LIMIT) -> int:
        """Return the unused part of a tenant's quota. ``bound`` is the limit of the partition."""
        most = self.node.most(account, quota)
        if most == NO_LIMIT:
            return NO_LIMIT
        left_here = self.node.most(account, quota, bound) - self.used(account, quota)
        return max(0, min(most - self.node.used(account, quota), left_here))

    def may_add(self, scoped_id: str, quota: Quota, bound: int) -> bool:
        """Return False, and count a rejection, if the tenant has used up the quota."""
        account = self.account_of(scoped_id)
        has_room = self.room(account, quota, bound=bound) > 0
        if not has_room:
            self.node.note_refused(account, quota)
        return has_room

    def reason(self, account: str, quota: Quota, *, bound: int = NO_LIMIT) -> str:
        most, used = self.node.most(account, quota), self.node.used(account, quota)
        if used < most:
            most, used = self.node.most(account, quota, bound), self.used(account, quota)
        return quota.exceeded(used, most)


NO_QUOTAS: Final = CoordinatorUsage(None, own_account=ACCOUNT_DEFAULT)
