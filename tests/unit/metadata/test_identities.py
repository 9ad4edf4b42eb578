"""Tenants, users and policies over the real store, on one node and on two."""

import asyncio

import msgspec
import pytest

from penstock.metadata.security import identities as module
from penstock.metadata.security import identity_entries as entries
from penstock.metadata.security.identities import StoredIdentities
from penstock.model.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    Throttled,
)
from penstock.model.identity import (
    ADMIN_POLICY,
    Limits,
    Quotas,
    Rate,
    Tenant,
    User,
)
from penstock.model.ports import Identities

from .conftest import ACCOUNT, DENY, OTHER, make_tenant, until

# ── Tenants ──────────────────────────────────────────────────────────────────────────────────


async def test_it_is_what_the_stages_ask(here: StoredIdentities) -> None:
    port: Identities = here
    assert port.tenant(ACCOUNT) is None
    assert port.key("nobody") is None
    assert not port.users(ACCOUNT)
    assert not port.keys(ACCOUNT, "ann")


async def test_a_tenant_is_there_at_once_and_its_account_is_taken(
    here: StoredIdentities, there: StoredIdentities
) -> None:
    tenant = await here.create_tenant(make_tenant())
    assert here.tenant(ACCOUNT) == tenant
    for node in (here, there):
        with pytest.raises(Conflict, match="exists already"):
            await node.create_tenant(make_tenant(name="other"))
    await here.create_tenant(make_tenant(OTHER))
    assert [one.account for one in here.tenants()] == [ACCOUNT, OTHER]


async def test_a_name_belongs_to_one_tenant(here: StoredIdentities) -> None:
    await here.create_tenant(make_tenant(name="acme"))
    with pytest.raises(Conflict, match=f"{ACCOUNT} already has the name acme"):
        await here.create_tenant(make_tenant(OTHER, name="acme"))
    await here.create_tenant(make_tenant(OTHER))
    with pytest.raises(Conflict, match="acme"):
        await here.change_tenant(OTHER, lambda t: msgspec.structs.replace(t, name="acme"))


@pytest.mark.parametrize(
    "changes",
    [
        {"account": "1"},
        {"account": "../../../etc"},
        {"name": ""},
        {"name": " x"},
        {"name": "x "},
        {"name": "a/b"},
        {"name": "a\nb"},
        {"name": "x" * 65},
        {"limits": Limits(tenant_requests=Rate(per_s=-1))},
        {"limits": Limits(user_requests=Rate(per_s=float("nan")))},
        {"limits": Limits(queue_requests=Rate(per_s=float("inf")))},
        {"limits": Limits(tenant_bytes=Rate(burst=5))},
        {"limits": Limits(operations={"nonsense": Rate(1, 1)})},
        {
            "limits": Limits(
                operations={f"sqs:A{'x' * n}": Rate(1) for n in range(60)} | {"a:": Rate()}
            )
        },
        {"quotas": Quotas(queues_max=-1)},
    ],
)
async def test_a_tenant_that_makes_no_sense_is_refused(
    here: StoredIdentities, changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        await here.create_tenant(msgspec.structs.replace(make_tenant(), **changes))
    assert here.tenants() == []


async def test_limits_and_suspension_are_changes_of_the_tenant(here: StoredIdentities) -> None:
    await here.create_tenant(make_tenant())
    limits = Limits(tenant_requests=Rate(100, 200), operations={"sqs:SendMessage": Rate(5, 5)})

    def change(tenant: Tenant) -> Tenant:
        return msgspec.structs.replace(
            tenant, is_suspended=True, limits=limits, quotas=Quotas(queues_max=3)
        )

    epoch = here.epoch
    after = await here.change_tenant(ACCOUNT, change)
    assert here.tenant(ACCOUNT) == after
    assert after.limits == limits
    assert here.epoch > epoch
    epoch = here.epoch
    await here.change_tenant(ACCOUNT, change)  # nothing new
    assert here.epoch == epoch


async def test_a_tenant_with_users_cannot_be_deleted(here: StoredIdentities, ann: User) -> None:
    with pytest.raises(Conflict, match="still has 1 users"):
        await here.delete_tenant(ACCOUNT)
    await here.delete_user(ACCOUNT, "ann")
    await here.delete_tenant(ACCOUNT)
    assert here.tenant(ACCOUNT) is None
    with pytest.raises(NotFound):
        await here.delete_tenant(ACCOUNT)


async def test_a_tenant_deleted_elsewhere_takes_no_user(
    here: StoredIdentities, there: StoredIdentities, ann: User
) -> None:
    """The one memory is behind the other: the store decides."""
    await until(lambda: there.user(ACCOUNT, "ann") is not None)
    await here.delete_user(ACCOUNT, "ann")
    await here.delete_tenant(ACCOUNT)
    with pytest.raises(NotFound, match="no tenant"):
        await there.create_user(User(ACCOUNT, "bob", 1))


async def test_a_user_made_elsewhere_keeps_its_tenant(
    here: StoredIdentities, there: StoredIdentities
) -> None:
    await here.create_tenant(make_tenant())
    results = await asyncio.gather(
        here.create_user(User(ACCOUNT, "ann", 1)),
        there.delete_tenant(ACCOUNT),
        return_exceptions=True,
    )
    # Whichever came first, the other has heard of it.
    failed = [type(result) for result in results if isinstance(result, BaseException)]
    assert failed in ([Conflict], [NotFound])


async def test_a_new_account_is_twelve_digits_that_nobody_has(here: StoredIdentities) -> None:
    account = here.free_account()
    assert len(account) == 12
    assert account.isdigit()
    assert account[0] != "0"


async def test_tenants_are_bounded(here: StoredIdentities, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "TENANTS_MAX", 1)
    await here.create_tenant(make_tenant())
    with pytest.raises(Conflict, match="1 tenants"):
        await here.create_tenant(make_tenant(OTHER))


# ── Users and policies ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["", "a/b", "../x", "*", "x" * 201, "a\n", "a\0", "\u2028"])
async def test_a_name_that_could_mean_something_else_is_refused(
    here: StoredIdentities, name: str
) -> None:
    await here.create_tenant(make_tenant())
    with pytest.raises(InvalidRequest):
        await here.create_user(User(ACCOUNT, name, 1))
    assert not any(here.users(tenant.account) for tenant in here.tenants())


async def test_users_are_listed_by_name_in_their_tenant(here: StoredIdentities, ann: User) -> None:
    await here.create_tenant(make_tenant(OTHER))
    for account, name in ((ACCOUNT, "zoe"), (ACCOUNT, "bob"), (OTHER, "ann")):
        await here.create_user(User(account, name, 1))
    assert [user.name for user in here.users(ACCOUNT)] == ["ann", "bob", "zoe"]
    assert [user.name for user in here.users(OTHER)] == ["ann"]
    with pytest.raises(Conflict, match="exists already"):
        await here.create_user(User(ACCOUNT, "bob", 2))


async def test_users_of_a_tenant_are_bounded_on_all_nodes_together(
    here: StoredIdentities, there: StoredIdentities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "USERS_PER_TENANT_MAX", 5)
    await here.create_tenant(make_tenant())
    results = await asyncio.gather(
        *(
            node.create_user(User(ACCOUNT, f"u{number}", 1))
            for number, node in enumerate([here, there] * 5)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(result, User) for result in results) == 5
    assert all(isinstance(result, User | Conflict) for result in results)


async def test_a_user_without_a_tenant_is_refused(here: StoredIdentities) -> None:
    with pytest.raises(NotFound, match="no tenant"):
        await here.create_user(User(ACCOUNT, "ann", 1))


async def test_policies_are_put_replaced_and_removed(here: StoredIdentities, ann: User) -> None:
    await here.put_policy(ACCOUNT, "ann", "admin", ADMIN_POLICY)
    epoch = here.epoch
    await here.put_policy(ACCOUNT, "ann", "admin", DENY)
    await here.put_policy(ACCOUNT, "ann", "more", ADMIN_POLICY)
    user = here.user(ACCOUNT, "ann")
    assert user is not None
    assert user.policies == {"admin": DENY, "more": ADMIN_POLICY}
    assert here.epoch > epoch
    await here.remove_policy(ACCOUNT, "ann", "admin")
    user = here.user(ACCOUNT, "ann")
    assert user is not None
    assert user.policies == {"more": ADMIN_POLICY}
    with pytest.raises(NotFound, match="no policy admin"):
        await here.remove_policy(ACCOUNT, "ann", "admin")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p", ""),
        ("p", "[]"),
        ("p", '{"Statement": [{"Effect": "Maybe", "Action": "*", "Resource": "*"}]}'),
        ("", ADMIN_POLICY),
        ("a/b", ADMIN_POLICY),
        ("x" * 129, ADMIN_POLICY),
        ("p", ADMIN_POLICY + " " * entries.POLICY_BYTES_MAX),
        ("p", "ü" * 11_000),
    ],
)
async def test_a_policy_that_is_none_is_refused_and_nothing_changes(
    here: StoredIdentities, ann: User, name: str, text: str
) -> None:
    with pytest.raises(InvalidRequest):
        await here.put_policy(ACCOUNT, "ann", name, text)
    with pytest.raises(InvalidRequest):
        await here.create_user(User(ACCOUNT, "bob", 1, policies={name: text}))
    assert here.user(ACCOUNT, "ann") == ann


async def test_policies_are_bounded_in_number_and_together(
    here: StoredIdentities, ann: User
) -> None:
    long = ADMIN_POLICY + " " * (entries.POLICY_BYTES_MAX - len(ADMIN_POLICY))
    for number in range(10):
        await here.put_policy(ACCOUNT, "ann", f"p{number}", long)
    with pytest.raises(InvalidRequest, match="together"):
        await here.put_policy(ACCOUNT, "ann", "one-more", ADMIN_POLICY)
    for number in range(10):
        await here.remove_policy(ACCOUNT, "ann", f"p{number}")
    for number in range(entries.POLICIES_PER_USER_MAX):
        await here.put_policy(ACCOUNT, "ann", f"p{number}", ADMIN_POLICY)
    with pytest.raises(InvalidRequest, match="at most 20 policies"):
        await here.put_policy(ACCOUNT, "ann", "one-more", ADMIN_POLICY)


async def test_the_list_of_kafka_rules_may_be_longer_and_fits_its_entry(
    here: StoredIdentities, ann: User
) -> None:
    statement = '{"Effect":"Allow","Action":"kafka:Read","Resource":"arn:aws:sqs:r:1:%04d"}'
    statements = ",".join(statement % number for number in range(1_000))
    text = '{"Version":"2012-10-17","Statement":[' + statements + "]}"
    await here.put_policy(ACCOUNT, "ann", entries.ACLS_POLICY, text)
    with pytest.raises(InvalidRequest, match="longer"):
        await here.put_policy(ACCOUNT, "ann", "mine", text)


async def test_two_nodes_changing_one_user_lose_nothing(
    here: StoredIdentities, there: StoredIdentities, ann: User
) -> None:
    await asyncio.gather(
        *(
            node.put_policy(ACCOUNT, "ann", f"p{number}", ADMIN_POLICY)
            for number, node in enumerate([here, there] * 5)
        )
    )
    await until(lambda: there.epoch > 1 and there.user(ACCOUNT, "ann") == here.user(ACCOUNT, "ann"))
    user = here.user(ACCOUNT, "ann")
    assert user is not None
    assert len(user.policies) == 10


async def test_who_is_overtaken_forever_is_told_so(
    here: StoredIdentities,
    there: StoredIdentities,
    ann: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TRIES_MAX", 1)
    await until(lambda: there.user(ACCOUNT, "ann") is not None)
    await there.stop()  # it hears of nothing from now on
    await here.put_policy(ACCOUNT, "ann", "p", ADMIN_POLICY)
    with pytest.raises(Throttled, match="changed by another request"):
        await there.put_policy(ACCOUNT, "ann", "p", DENY)
