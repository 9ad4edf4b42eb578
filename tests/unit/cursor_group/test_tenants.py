"""What tenants may hold at coordinators: quotas over partitions, shares of each."""

from tests.unit.frontend.memory import MemoryIdentities

from penstock.cursor.group.codes import Code
from penstock.cursor.group.groups import Groups
from penstock.cursor.group.offsets import CommitReply, CommitRequest, PartitionCommit
from penstock.cursor.group.rows import Row
from penstock.cursor.group.settings import GroupSettings
from penstock.cursor.tenants import TenantRooms
from penstock.cursor.transactions import Transactions
from penstock.model.identity import Quotas, Tenant
from penstock.model.quotas import GROUPS, OFFSET_BYTES, TRANSACTIONAL_IDS

OWN = "000000000000"
A, B = "111111111111", "222222222222"
SETTINGS = GroupSettings(groups_max=50, configs_max=50)


def rooms(**quotas: int) -> TenantRooms:
    identities = MemoryIdentities()
    for account in (OWN, A):
        identities.enter(Tenant(account, f"t{account}", 0))
    identities.enter(Tenant(B, "b", 0, quotas=Quotas(**quotas)))
    return TenantRooms(identities, own_account=OWN)


def commit(groups: Groups, group_id: str) -> Code:
    request = CommitRequest((PartitionCommit("topic", 0, 1),))
    decision = groups.commit(group_id, request, ticket=1, now_ms=0, wall_ms=0)
    reply = decision.answers[0].reply
    assert isinstance(reply, CommitReply)
    return reply.partitions[0][2]


def made(groups: Groups, account: str, count: int) -> int:
    """How many of so many groups that a tenant asks for it gets."""
    names = (f"g{n}" if account == OWN else f"{account}/g{n}" for n in range(count))
    return sum(commit(groups, name) is Code.NONE for name in names)


def test_a_tenant_has_a_tenth_of_each_partition_and_the_nodes_own_all_of_it() -> None:
    counted = rooms()
    groups = Groups(SETTINGS, counted.hold("p0"))
    assert made(groups, B, 20) == 5
    assert "5 of 5 groups" in groups._no_group(f"{B}/x", Code.GROUP_MAX_SIZE_REACHED, "consumer")
    assert made(groups, A, 20) == 5
    assert made(groups, OWN, 100) == 40
    assert counted.refused == {(B, "groups"): 15, (A, "groups"): 15}


def test_a_quota_that_is_set_replaces_the_share_and_counts_over_partitions() -> None:
    counted = rooms(groups_max=12)
    first, second = (Groups(SETTINGS, counted.hold(key)) for key in ("p0", "p1"))
    assert made(first, B, 8) == 8
    assert made(second, B, 8) == 4
    assert counted.used(B, GROUPS) == 12
    counted.drop("p0")  # another node coordinates it from now on
    assert made(second, B, 16) == 12, "four of them were there"
    assert made(Groups(SETTINGS, rooms(groups_max=0).hold("p0")), B, 60) == 50, "no limit"


def test_whatever_goes_makes_room() -> None:
    counted = rooms(groups_max=2, offset_bytes_max=300)
    groups = Groups(SETTINGS, counted.hold("p0"))
    assert made(groups, B, 3) == 2
    assert counted.used(B, OFFSET_BYTES) == 256
    groups.delete_group(f"{B}/g0", ticket=1)
    assert (counted.used(B, GROUPS), counted.used(B, OFFSET_BYTES)) == (1, 128)
    assert commit(groups, f"{B}/g3") is Code.NONE
    groups.forget_topics(frozenset(("topic",)))
    assert (counted.used(B, GROUPS), counted.used(B, OFFSET_BYTES)) == (0, 0)


def test_rows_that_are_read_again_count_as_before() -> None:
    counted = rooms()
    groups = Groups(SETTINGS, counted.hold("p0"))
    request = CommitRequest((PartitionCommit("topic", 0, 1, metadata="é"),))
    rows: list[Row] = []
    for name in (f"{B}/one", f"{B}/two"):
        rows += groups.commit(name, request, ticket=1, now_ms=0, wall_ms=0).rows
        producer = {"producer_id": 7, "producer_epoch": 0}
        rows += groups.commit_in_transaction(
            name, request, **producer, ticket=1, now_ms=0, wall_ms=0
        ).rows
    rows += groups.change_configs(f"{B}/one", {"share.isolation.level": "x"}, ticket=1).rows
    before = {quota: counted.used(B, quota) for quota in (GROUPS, OFFSET_BYTES)}
    assert before == {GROUPS: 2, OFFSET_BYTES: 4 * 130}
    again = Groups(SETTINGS, counted.hold("p0"))
    for key, value in rows:
        again.replay(key, value, now_ms=0)
    assert {quota: counted.used(B, quota) for quota in before} == before
    again.complete_transaction(7, 0, is_commit=False, ticket=1, wall_ms=0)
    assert counted.used(B, OFFSET_BYTES) == 2 * 130


def test_transactional_ids_by_share_and_by_quota() -> None:
    def begun(txns: Transactions, count: int) -> list[Code]:
        return [
            txns.init(f"{B}/t{n}", timeout_ms=1, fresh_producer_id=n, wall_ms=0).reply.code
            for n in range(count)
        ]

    counted = rooms()
    txns = Transactions(coordinator_epoch=0, ids_max=20, held=counted.hold("p0"))
    assert begun(txns, 3) == [Code.NONE, Code.NONE, Code.POLICY_VIOLATION]
    assert counted.used(B, TRANSACTIONAL_IDS) == 2
    limited = rooms(transactional_ids_max=3)
    both = [Transactions(coordinator_epoch=0, held=limited.hold(key)) for key in ("p0", "p1")]
    assert begun(both[0], 2) == [Code.NONE] * 2
    assert begun(both[1], 2) == [Code.NONE, Code.POLICY_VIOLATION]
