"""What tenants may hold at coordinators: quotas over partitions, shares of each."""

from tests.unit.frontend.memory import MemoryIdentities

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.groups.decision import Decision
from penstock.cursor.groups.offsets import CommitReply, CommitRequest, PartitionCommit
from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.tenants import CoordinatorUsage
from penstock.cursor.transaction_values import TxnDecision
from penstock.cursor.transactions import Transactions
from penstock.model.identity import Quotas, Tenant
from penstock.model.quotas import GROUPS, OFFSET_BYTES, TRANSACTIONAL_IDS
from penstock.wire.kafka.faults import ErrorCode

OWN = "000000000000"
A, B = "111111111111", "222222222222"
SETTINGS = GroupSettings(groups_max=50, configs_max=50)


def usage(**quotas: int) -> CoordinatorUsage:
    identities = MemoryIdentities()
    for account in (OWN, A):
        identities.enter(Tenant(account, f"t{account}", 0))
    identities.enter(Tenant(B, "b", 0, quotas=Quotas(**quotas)))
    return CoordinatorUsage(identities, own_account=OWN)


def commit(groups: Groups, group_id: str) -> ErrorCode:
    request = CommitRequest((PartitionCommit("topic", 0, 1),))
    decision = Decision(1)
    groups.commit(calls.Commit(group_id, request), decision)
    reply = decision.replies[0].reply
    assert isinstance(reply, CommitReply)
    return reply.partitions[0][2]


def made(groups: Groups, account: str, count: int) -> int:
    """How many of so many groups that a tenant asks for it gets."""
    names = (f"g{n}" if account == OWN else f"{account}/g{n}" for n in range(count))
    return sum(commit(groups, name) is ErrorCode.NONE for name in names)


def test_a_tenant_has_a_tenth_of_each_partition_and_the_nodes_own_all_of_it() -> None:
    counted = usage()
    groups = Groups(SETTINGS, counted.start("p0"))
    assert made(groups, B, 20) == 5
    assert "5 of 5 groups" in groups._no_group(
        f"{B}/x", ErrorCode.GROUP_MAX_SIZE_REACHED, "consumer"
    )
    assert made(groups, A, 20) == 5
    assert made(groups, OWN, 100) == 40
    assert counted.refused == {(B, "groups"): 15, (A, "groups"): 15}


def test_a_quota_that_is_set_replaces_the_share_and_counts_over_partitions() -> None:
    counted = usage(groups_max=12)
    first, second = (Groups(SETTINGS, counted.start(key)) for key in ("p0", "p1"))
    assert made(first, B, 8) == 8
    assert made(second, B, 8) == 4
    assert counted.used(B, GROUPS) == 12
    counted.drop("p0")  # another node coordinates it from now on
    assert made(second, B, 16) == 12, "four of them were there"
    assert made(Groups(SETTINGS, usage(groups_max=0).start("p0")), B, 60) == 50, "no limit"


def test_whatever_goes_makes_room() -> None:
    counted = usage(groups_max=2, offset_bytes_max=300)
    groups = Groups(SETTINGS, counted.start("p0"))
    assert made(groups, B, 3) == 2
    assert counted.used(B, OFFSET_BYTES) == 256
    groups.delete_group(calls.DeleteGroup(f"{B}/g0"), Decision(1))
    assert (counted.used(B, GROUPS), counted.used(B, OFFSET_BYTES)) == (1, 128)
    assert commit(groups, f"{B}/g3") is ErrorCode.NONE
    groups.forget_topics(frozenset(("topic",)), Decision())
    assert (counted.used(B, GROUPS), counted.used(B, OFFSET_BYTES)) == (0, 0)


def test_rows_that_are_read_again_count_as_before() -> None:
    counted = usage()
    groups = Groups(SETTINGS, counted.start("p0"))
    request = CommitRequest((PartitionCommit("topic", 0, 1, metadata="é"),))
    decision = Decision(1)
    for name in (f"{B}/one", f"{B}/two"):
        groups.commit(calls.Commit(name, request), decision)
        groups.commit(calls.Commit(name, request), decision, producer=(7, 0))
    groups.change_configs(calls.ChangeConfigs(f"{B}/one", {"share.isolation.level": "x"}), decision)
    before = {quota: counted.used(B, quota) for quota in (GROUPS, OFFSET_BYTES)}
    assert before == {GROUPS: 2, OFFSET_BYTES: 4 * 130}
    again = Groups(SETTINGS, counted.start("p0"))
    for key, value in decision.rows:
        again.replay(key, value, now_ms=0)
    assert {quota: counted.used(B, quota) for quota in before} == before
    again.complete_transaction(calls.CompleteTransaction("g", 7, 0, is_commit=False), Decision(1))
    assert counted.used(B, OFFSET_BYTES) == 2 * 130


def test_transactional_ids_by_share_and_by_quota() -> None:
    def begun(txns: Transactions, count: int) -> list[ErrorCode]:
        return [
            txns.init(calls.InitProducer(f"{B}/t{n}", -1, -1, 1), TxnDecision(0, 0, n)).code
            for n in range(count)
        ]

    counted = usage()
    txns = Transactions(coordinator_epoch=0, ids_max=20, usage=counted.start("p0"))
    assert begun(txns, 3) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    assert counted.used(B, TRANSACTIONAL_IDS) == 2
    limited = usage(transactional_ids_max=3)
    both = [Transactions(coordinator_epoch=0, usage=limited.start(key)) for key in ("p0", "p1")]
    assert begun(both[0], 2) == [ErrorCode.NONE] * 2
    assert begun(both[1], 2) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
