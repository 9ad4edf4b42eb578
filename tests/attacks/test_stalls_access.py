"""A tenant with as many access rules or delegation tokens as it may have keeps the event loop busy
for no more than 20 ms at a stretch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.attacks.frames import Wire
from tests.attacks.kit import EVERYTHING, Operator
from tests.attacks.stall_requests import ENTRIES_MAX, Shape, frame
from tests.attacks.stalls import LoopServer
from tests.attacks.test_policies import EVERY_RULE
from tests.attacks.test_stalls import wire_of

from penstock.model.limits import ACLS_PER_TENANT_MAX, TOKENS_PER_TENANT_MAX
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_acls import AclCreation
from penstock.wire.kafka.generated.delete_acls import DeleteAclsFilter

WATCHED = 20  # the last tokens that are created: a tenant with more tokens is more work


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("locked"), is_auth_on=True) as running:
        yield running


@contextmanager
def new_tenant(server: LoopServer) -> Iterator[Wire]:
    """Yield the connection of a user of a new tenant. Not a fixture: a test that is repeated needs
    another tenant each time."""
    operator = Operator(server, server.root)
    _, credentials = operator.user(EVERYTHING, tenant=operator.tenant())
    login = (str(credentials.access_key), str(credentials.secret_key))
    with wire_of(server, login) as connection:
        connection.socket.settimeout(120)
        yield connection


def test_rules_are_created_matched_shown_and_deleted(server: LoopServer) -> None:
    """A check looks at each length of prefixes, so prefixes have every length."""
    rules = [
        AclCreation(2, f"{'a' * (number % 240 + 1)}{number}", 4, "User:*", "*", operation, 2)
        for number in range(ACLS_PER_TENANT_MAX // 10)
        for operation in range(3, 13)
    ]
    every = {**EVERY_RULE, "principal_filter": None}
    with new_tenant(server) as wire, server.watch() as turns:
        for start in range(0, len(rules), ENTRIES_MAX):
            made = wire.ask("CreateAcls", 3, creations=rules[start : start + ENTRIES_MAX])
            assert {each.error_code for each in made.results} == {0}
        more = AclCreation(2, "one-more", 3, "User:*", "*", 2, 2)
        (full,) = wire.ask("CreateAcls", 3, creations=[more]).results
        assert full.error_code == ErrorCode.POLICY_VIOLATION
        found = wire.ask("DescribeAcls", 3, **every)
        assert sum(len(resource.acls) for resource in found.resources) == len(rules)
        names = {"topics.name": lambda number: f"{'a' * 240}-{number}"}
        wire.send(frame("Metadata", Shape("topics", 12), ENTRIES_MAX, names))
        assert wire.read_frame() is not None
        (gone,) = wire.ask("DeleteAcls", 3, filters=[DeleteAclsFilter(**every)]).filter_results
        assert len(gone.matching_acls) == len(rules)
    turns.check()


def test_tokens_are_created_and_shown(server: LoopServer) -> None:
    create = {"owner_principal_name": None, "renewers": ()}
    with new_tenant(server) as wire:
        for _ in range(TOKENS_PER_TENANT_MAX - WATCHED):
            assert wire.ask("CreateDelegationToken", 3, **create).error_code == 0
        with server.watch() as turns:
            for _ in range(WATCHED):
                assert wire.ask("CreateDelegationToken", 3, **create).error_code == 0
            full = wire.ask("CreateDelegationToken", 3, **create)
            found = wire.ask("DescribeDelegationToken", 3, owners=None)
    assert full.error_code == ErrorCode.POLICY_VIOLATION
    assert len(found.tokens) == TOKENS_PER_TENANT_MAX
    turns.check()
