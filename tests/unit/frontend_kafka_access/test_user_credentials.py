"""Passwords given, shown and taken away through Kafka's own API."""

from typing import Any

import pytest
from tests.unit.frontend_kafka_access.asks import NO_CLUSTER
from tests.unit.frontend_kafka_access.stage import (
    OTHER,
    OWN,
    SHA_256,
    SHA_512,
    Client,
    House,
    allow,
)

from penstock.wire.kafka import scram
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.wire.kafka.generated.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

DESCRIBE, ALTER = 50, 51
MECHANISMS = {1: SHA_256, 2: SHA_512}


def upsertion(name: str = "ann", mechanism: int = 1, **fields: Any) -> ScramCredentialUpsertion:
    salt = b"0123456789abcdef"
    salted = scram.salted_password(
        MECHANISMS.get(mechanism, SHA_256), b"new one", salt=salt, iterations=4_096
    )
    found = {"iterations": 4_096, "salt": salt, "salted_password": salted, **fields}
    return ScramCredentialUpsertion(name, mechanism, **found)


async def alter(client: Client, *changes: Any) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    found = await client.ask(ALTER, request)
    return {each.user: each.error_code for each in found.results}


async def shown(client: Client, *names: str) -> dict[str, Any]:
    users = [UserName(each) for each in names] if names else None
    found = await client.ask(DESCRIBE, DescribeUserScramCredentialsRequest(users))
    assert (found.error_code, found.error_message) == (0, "")  # not null, as in Kafka
    assert all(each.error_message == "" for each in found.results if not each.error_code)
    return {
        each.user: each.error_code
        or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in found.results
    }


async def test_a_password_lets_in_from_then_on_and_until_it_is_taken_away(house: House) -> None:
    root = await house.root()
    await house.user("ann", password=None)
    assert await alter(root, upsertion(), upsertion(mechanism=2, iterations=4_096)) == {"ann": 0}
    assert await shown(root) == {"ann": [(1, 4_096), (2, 4_096)], "root": [(1, 4_096)]}
    for mechanism in (SHA_256, SHA_512):
        client = Client(house)
        assert (await client.scram("ann", "new one", mechanism)).error_code == 0
    assert await alter(root, ScramCredentialDeletion("ann", 1)) == {"ann": 0}
    assert await shown(root, "ann") == {"ann": [(2, 4_096)]}
    assert (await Client(house).scram("ann", "new one", SHA_256)).error_code != 0
    assert (await Client(house).scram("ann", "new one", SHA_512)).error_code == 0


async def test_a_user_that_is_not_there_is_made_without_rights(house: House) -> None:
    root = await house.root()
    assert await alter(root, upsertion("new")) == {"new": 0}
    user = house.identities.user(OWN, "new")
    assert user is not None
    assert (user.policies, user.is_operator) == ({}, False)
    client = Client(house)
    assert (await client.scram("new", "new one")).error_code == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(iterations=4_095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=-1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("new", salt=bytes(256)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a/b"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("*"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x" * 201), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (ScramCredentialDeletion("ann", 1), ErrorCode.RESOURCE_NOT_FOUND),
        (ScramCredentialDeletion("nobody", 1), ErrorCode.RESOURCE_NOT_FOUND),
        (ScramCredentialDeletion("ann", 9), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(
    house: House, change: Any, code: ErrorCode
) -> None:
    root = await house.root()
    await house.user("ann", password=None)
    assert await alter(root, change, upsertion("bob")) == {change.name: code, "bob": 0}
    assert set(await shown(root)) == {"root", "bob"}
    names = {user.name for user in house.identities.users(OWN)}
    assert names == {"root", "ann", "bob"}, "a rejected change leaves no user behind"


@pytest.mark.parametrize("name", ["a b", "ü", "x" * 100, "a:b"])
@pytest.mark.parametrize("salt", [b"", b"1234", bytes(255)])
async def test_any_name_and_any_salt_do(house: House, name: str, salt: bytes) -> None:
    root = await house.root()
    salted = scram.salted_password(SHA_256, b"new one", salt=salt, iterations=4_096)
    assert await alter(root, upsertion(name, salt=salt, salted_password=salted)) == {name: 0}
    assert await shown(root, name) == {name: [(1, 4_096)]}
    if len(salt) >= 12:  # this SCRAM client rejects shorter ones
        assert (await Client(house).scram(name, "new one")).error_code == 0


async def test_a_user_whose_changes_do_not_all_make_sense_keeps_things_as_they_are(
    house: House,
) -> None:
    root = await house.root()
    for name in ("ann", "bob"):
        await house.user(name, password=None)
    found = await alter(
        root, upsertion(), upsertion(mechanism=2, iterations=1), upsertion("bob"), upsertion("bob")
    )
    assert found == {
        "ann": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "bob": ErrorCode.DUPLICATE_RESOURCE,
    }
    assert await shown(root) == {"root": [(1, 4_096)]}


async def test_users_are_described_by_name_once_each(house: House) -> None:
    root = await house.root()
    await house.user("ann")
    assert await shown(root, "ann", "nobody", "root", "root") == {
        "ann": [(1, 4_096), (2, 4_096)],
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
        "root": ErrorCode.DUPLICATE_RESOURCE,
    }


async def test_passwords_are_of_one_account(house: House) -> None:
    await house.root()
    await house.user("ann", allow("*"), account=OTHER)
    other = await house.client("ann", account=OTHER)
    assert await shown(other) == {"ann": [(1, 4_096), (2, 4_096)]}
    assert await alter(other, ScramCredentialDeletion("root", 1)) == {
        "root": ErrorCode.RESOURCE_NOT_FOUND
    }
    assert await alter(other, upsertion("root")) == {"root": 0}  # a root of its own
    assert house.identities.scram(OWN, "root", SHA_256) is not None
    assert (await Client(house).scram("root", "new one")).error_code != 0


async def test_an_operators_password_is_for_operators_to_change(house: House) -> None:
    root = await house.root()
    await house.user("ann", allow("*"))
    client = await house.client("ann")
    assert await alter(client, upsertion("root"), upsertion("bob")) == {
        "root": NO_CLUSTER,
        "bob": 0,
    }
    assert await alter(client, ScramCredentialDeletion("root", 1)) == {"root": NO_CLUSTER}
    assert await alter(root, upsertion("root", 2)) == {"root": 0}
