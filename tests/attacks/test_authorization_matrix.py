"""Who may do what: every SQS and SNS action, Kafka API and admin route, asked by nobody, by a user
of another tenant who may do everything there, by a user without any policy, by a user with a policy
for something else, and by a user who may do everything but is denied by the policy of the queue or
SNS topic.

Requests are made from the schemas and name what the victim has; ``PENSTOCK_MATRIX_SEED`` chooses
versions and optional fields. Nothing may be told, nothing may change, and the owner's same request
must succeed, so that a request which is merely malformed does not count as refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from tests.attacks.frames import KEYS
from tests.attacks.kit import EVERYTHING, REGION, ROOT, Operator, allow, send, sns_form
from tests.attacks.matrix import (
    CANARY,
    NODE_ACCOUNT,
    SNS_REQUEST_ID,
    Holdings,
    Someone,
    codes_in,
    holdings,
    kafka_request,
    plain,
    sns_request,
    sqs_request,
    state_of,
    text_of,
)
from tests.attacks.matrix_rows import ADMIN, KAFKA, SNS, SQS, For, On
from tests.harness.full import part
from tests.harness.server import Server

from penstock.frontend.admin.api import ADMIN_ROUTES
from penstock.frontend.aws.sns.actions import ACTIONS as SNS_ACTIONS
from penstock.frontend.aws.sns.actions import LINKS
from penstock.frontend.aws.sqs.actions import ACTIONS as SQS_ACTIONS
from penstock.frontend.kafka.actions import ACTIONS as KAFKA_ACTIONS
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.faults import ErrorCode

SEED = os.environ.get("PENSTOCK_MATRIX_SEED", "1")
VERSIONS_PER_API = 3
# Drawn by the server, the time of day, or the free space of the disk.
DRAWN = re.compile(
    r'"(\w*member_id|\w*topic_id|log_append_time_ms|timestamp|\w*session_id|producer_id'
    r'|usable_bytes)": '
    r'("[^"]*"|-?\d+)'
)
_numbers = itertools.count(1)


@dataclasses.dataclass
class Cast:
    server: Server
    operator: Operator
    root: Someone
    owner: Someone
    nobody: Someone
    bare: Someone
    elsewhere: Someone
    denied: Someone
    victim: Holdings
    before: dict[str, Any]
    made: list[Someone]

    def stranger(self) -> Someone:
        """Of a new tenant each time: what one request made must not answer the next."""
        _, credentials = self.operator.user(EVERYTHING, tenant=self.operator.tenant())
        self.made.append(Someone(self.server, "stranger", credentials))
        return self.made[-1]

    def twin(self) -> Holdings:
        """The like of what the victim has, for the owner to use up."""
        return holdings(self.owner, self.operator, f"matrix-twin-{next(_numbers)}")

    def check_unchanged(self) -> None:
        assert state_of(self.root, self.victim) == self.before


@pytest.fixture(scope="module")
def cast_(locked: Server, operator: Operator) -> Iterator[Cast]:
    def someone(name: str, *statements: dict[str, Any]) -> tuple[str, Someone]:
        user, credentials = operator.user(*statements)
        return user, Someone(locked, name, credentials)

    kafka = f"arn:penstock:kafka:{REGION}:{NODE_ACCOUNT}"
    others = [f"arn:aws:sqs:{REGION}:{NODE_ACCOUNT}:elsewhere", f"{kafka}:group/elsewhere"]
    others += [f"{kafka}:txn/elsewhere", f"arn:penstock:admin:*:{NODE_ACCOUNT}:user/elsewhere"]
    others += [f"arn:aws:sns:{REGION}:{NODE_ACCOUNT}:elsewhere"]
    others += [f"arn:penstock:admin:*:{NODE_ACCOUNT}:subscription/elsewhere"]
    root = Someone(locked, "root", ROOT)
    _, owner = someone("owner", EVERYTHING)
    denied_name, denied = someone("denied", EVERYTHING)
    victim = holdings(owner, operator, "matrix-victim", denied=denied_name)
    everybody = Cast(
        server=locked,
        operator=operator,
        root=root,
        owner=owner,
        nobody=Someone(locked, "nobody", None),
        bare=someone("bare")[1],
        elsewhere=someone("elsewhere", *(allow("*", arn) for arn in others))[1],
        denied=denied,
        victim=victim,
        before=state_of(root, victim),
        made=[],
    )
    yield everybody
    for one in (root, owner, denied, everybody.bare, everybody.elsewhere, *everybody.made):
        one.close()


def rng(name: str) -> random.Random:
    """The same for every caller of one row."""
    return random.Random(f"{SEED} {name}")


def test_every_action_api_and_route_has_a_row() -> None:
    assert set(SQS) == set(SQS_ACTIONS)
    assert set(SNS) == set(SNS_ACTIONS)
    assert set(KAFKA) == {APIS[key].name for key in KAFKA_ACTIONS}
    assert set(ADMIN) == set(ROUTES)


# ── SQS ──────────────────────────────────────────────────────────────────────────────────────


def ask_sqs(who: Someone, action: str, has: Holdings) -> tuple[int, str, str]:
    """Status, code and the whole reply."""
    row = SQS[action]
    given = {name: of(has) for name, of in row.given.items()}
    request = sqs_request(action, has, rng(action), **given)
    status, reply = who.sqs(
        action, {name: value for name, value in request.items() if name not in row.without}
    )
    code = "" if status == 200 else str(json.loads(reply)["__type"]).partition("#")[2]
    return status, code, reply


@pytest.mark.parametrize("action", sorted(SQS_ACTIONS))
def test_sqs(cast_: Cast, action: str) -> None:
    row, victim = SQS[action], cast_.victim
    status, code, _ = ask_sqs(cast_.nobody, action, victim)
    assert (status, code) == (403, "MissingAuthenticationTokenException")
    for who in (cast_.bare, cast_.elsewhere):
        status, code, reply = ask_sqs(who, action, victim)
        assert (status, code) == (403, "AccessDeniedException"), f"{who.name}: {reply}"
        assert CANARY not in reply
    if not row.is_general:
        status, code, reply = ask_sqs(cast_.denied, action, victim)
        assert (status, code) == (403, "AccessDeniedException"), reply
        assert CANARY not in reply
    stranger = cast_.stranger()
    status, code, reply = ask_sqs(stranger, action, victim)
    missing = ask_sqs(stranger, action, victim.missing())
    if row.is_own:
        assert (status, f"/{victim.account}/" in reply) == (200, False), reply
    else:
        assert code in ("QueueDoesNotExist", "ResourceNotFoundException"), reply
        assert (status, code) == missing[:2], "it tells that the queue exists"
        assert victim.hide(reply) == victim.missing().hide(missing[2])
    cast_.check_unchanged()
    status, _, reply = ask_sqs(cast_.owner, action, cast_.twin())
    assert status == 200, f"the owner's request must succeed: {reply}"


# ── SNS ──────────────────────────────────────────────────────────────────────────────────────

SNS_CODE = re.compile("<Code>([^<]*)</Code>")


def ask_sns(who: Someone, action: str, has: Holdings) -> tuple[int, str, str]:
    """Status, code and the whole reply, without the id of the request."""
    row = SNS[action]
    request = sns_request(action, has, {name: of(has) for name, of in row.given.items()})
    status, reply = who.sns(
        action, {name: value for name, value in request.items() if name not in row.without}
    )
    code = SNS_CODE.search(reply)
    return status, "" if code is None else code[1], SNS_REQUEST_ID.sub("", reply)


@pytest.mark.parametrize("action", sorted(SNS_ACTIONS))
def test_sns(cast_: Cast, action: str) -> None:
    row, victim = SNS[action], cast_.victim
    status, code, _ = ask_sns(cast_.nobody, action, victim)
    assert (status, code) == (403, "MissingAuthenticationToken")
    for who in (cast_.bare, cast_.elsewhere):
        status, code, reply = ask_sns(who, action, victim)
        assert (status, code) == (403, "AuthorizationError"), f"{who.name}: {reply}"
        assert CANARY not in reply
    if not row.is_general:
        status, code, reply = ask_sns(cast_.denied, action, victim)
        assert (status, code) == (403, "AuthorizationError"), reply
        assert CANARY not in reply
    stranger = cast_.stranger()
    status, code, reply = ask_sns(stranger, action, victim)
    missing = ask_sns(stranger, action, victim.missing())
    assert CANARY not in reply
    if row.is_own:
        assert status == 200 or code in row.passes, reply
        assert f":{victim.account}:" not in reply
    else:
        expected = (200, "") if row.is_idempotent else (404, "NotFound")
        assert (status, code) == expected, reply
        assert victim.hide(reply) == victim.missing().hide(missing[2]), "it tells what there is"
    cast_.check_unchanged()
    status, code, reply = ask_sns(cast_.owner, action, cast_.twin())
    assert status == 200 or code in row.passes, f"the owner's request must succeed: {reply}"


@pytest.mark.parametrize("action", sorted(SNS_ACTIONS))
def test_sns_links(cast_: Cast, action: str) -> None:
    """Two actions can be links without a signature, which change nothing unless the token or the id
    of the subscription is right."""
    request = sns_request(action, cast_.victim.missing(), {})
    if "SubscriptionArn" in request:  # the ARN of the topic is no secret
        request["SubscriptionArn"] = f"{cast_.victim.sns_arn}:{cast_.victim.missing().subscription}"
    if "TopicArn" in request:
        request["TopicArn"] = cast_.victim.sns_arn
    host = cast_.server.url.removeprefix("http://")
    link = f"/?{sns_form(action, request).decode()}"
    for method in ("GET", "POST"):
        status, reply, _ = send(host, method, link, None, {})
        found = SNS_CODE.search(reply.decode())
        code = "" if found is None else found[1]
        if action not in LINKS:
            assert (status, code) == (403, "MissingAuthenticationToken"), reply
        elif action == "ConfirmSubscription":
            assert (status, code) == (400, "InvalidParameter"), reply
        else:
            assert status == 200, reply
        assert CANARY.encode() not in reply
    cast_.check_unchanged()


# ── Kafka ────────────────────────────────────────────────────────────────────────────────────


def versions_of(name: str) -> Sequence[int]:
    """Return the oldest, the newest, and one in between; one of them except in a full run."""
    api = APIS[KEYS[name]]
    served = range(max(api.version_min, KAFKA[name].version_min), api.version_max + 1)
    chosen = {served[0], served[-1], *rng(name).sample(served, 1)}
    assert len(chosen) <= VERSIONS_PER_API
    return part(sorted(chosen), 1)


def ask_kafka(who: Someone, name: str, version: int, has: Holdings) -> Any:
    request = kafka_request(name, version, has, rng(f"{name} {version}"), KAFKA[name].given)
    return who.kafka(name, version, request)


def named(codes: set[int]) -> list[str]:
    return [ErrorCode(code).name for code in sorted(codes)]


def check_refused(who: Someone, reply: Any, allowed: set[int]) -> None:
    assert reply is not None, f"{who.name}: hung up on"
    codes = codes_in(plain(reply)) - {0}
    assert codes, f"{who.name} was not refused: {text_of(reply)}"
    assert codes <= allowed, f"{who.name}: {named(codes)}: {text_of(reply)}"
    text = text_of(reply)
    assert CANARY not in text
    assert CANARY.encode().hex() not in text


@pytest.mark.full_set
@pytest.mark.parametrize("name", [APIS[key].name for key in sorted(KAFKA_ACTIONS)])
def test_kafka(cast_: Cast, name: str) -> None:
    row, victim = KAFKA[name], cast_.victim
    if row.on is On.LOGIN:
        return
    stranger = cast_.stranger()
    for version in versions_of(name):
        if row.on is not On.NOTHING:
            assert ask_kafka(cast_.nobody, name, version, victim) is None, "served before a login"
            check_without_rights(cast_, name, version)
        if row.denied is not None:
            reply = ask_kafka(cast_.denied, name, version, victim)
            if row.denied:
                check_refused(cast_.denied, reply, set(row.denied))
            assert row.denied or victim.queue not in text_of(reply)
        reply = text_of(ask_kafka(stranger, name, version, victim))
        gone = victim.missing()
        missing = text_of(ask_kafka(stranger, name, version, gone))
        assert DRAWN.sub("", victim.hide(reply)) == DRAWN.sub("", gone.hide(missing))
        cast_.check_unchanged()
        passed = ask_kafka(cast_.owner, name, version, cast_.twin())
        codes = codes_in(plain(passed)) - {0}
        assert passed is not None
        assert codes <= row.passes, f"version {version}: {named(codes)}: {text_of(passed)}"


def check_without_rights(cast_: Cast, name: str, version: int) -> None:
    row, victim = KAFKA[name], cast_.victim
    for who in (cast_.bare, cast_.elsewhere):
        reply = ask_kafka(who, name, version, victim)
        if row.on is On.NAMES:
            text = text_of(reply)
            assert codes_in(plain(reply)) <= {0, *row.also}, text
            assert "matrix-" not in text
        else:
            code = cast(ErrorCode, row.on.value)
            check_refused(who, reply, {code, *row.also})


# ── Admin API ────────────────────────────────────────────────────────────────────────────────


def _paths() -> dict[str, tuple[str, tuple[str, ...]]]:
    found = {}
    for route in ADMIN_ROUTES:
        short = route.path[2:] if route.path[:2] == ("api", "v1") else route.path
        found[f"{route.method} {'/'.join(short)}"] = (route.method, route.path)
    return found


ROUTES = _paths()


def ask_admin(who: Someone, name: str, has: Holdings, backup: str) -> tuple[int, str]:
    row, (method, path) = ADMIN[name], ROUTES[name]
    names = {
        "queues": has.queue,
        "tenants": has.tenant,
        "quotas": has.tenant,
        "subscriptions": has.webhook,
        "users": has.user,
        "keys": has.key_id,
        "policies": has.user,
        "nodes": "1",
        "backups": backup,
        "coordinators": "__groups",
        "__groups": "0",
        has.user: "p",
    }
    filled: list[str] = []
    for segment in path:
        filled.append(names[filled[-1]] if segment == "*" else segment)
    query = "" if row.query is None else f"?{row.query(has)}"
    body: Any = {} if method in ("POST", "PUT", "PATCH") else None
    if row.body is not None:
        body = row.body(has)
    return who.admin(method, f"/{'/'.join(filled)}{query}", body)


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_admin(cast_: Cast, name: str) -> None:
    row, victim = ADMIN[name], cast_.victim
    twin, backup = cast_.twin(), ""
    if name.startswith(("GET backups", "DELETE backups")):
        backup = str(cast_.operator.ask("POST", "backups")["id"])
    status, reply = ask_admin(cast_.nobody, name, victim, backup)
    assert CANARY not in reply
    if row.for_ is For.EVERYBODY:
        cast_.check_unchanged()
        return
    assert status == 401, reply
    for who in (cast_.bare, cast_.elsewhere) if row.for_ is not For.KNOWN else ():
        status, reply = ask_admin(who, name, victim, backup)
        assert status == 403, f"{who.name}: {status} {reply}"
        assert CANARY not in reply
    if row.is_queue:
        status, reply = ask_admin(cast_.denied, name, victim, backup)
        assert status == 403, f"denied: {status} {reply}"
        assert CANARY not in reply
    stranger = cast_.stranger()
    status, reply = ask_admin(stranger, name, victim, backup)
    missing = ask_admin(stranger, name, victim.missing(), backup[::-1])
    if row.for_ is For.KNOWN or row.is_own:
        assert status == 200
    else:
        assert status in (403, 404), f"stranger: {status} {reply}"
        assert missing[0] == status, "it tells what there is"
        assert victim.hide(reply) == victim.missing().hide(missing[1])
    assert "matrix-" not in victim.hide(reply)
    cast_.check_unchanged()
    allowed = cast_.root if row.for_ is For.OPERATOR else cast_.owner
    status, reply = ask_admin(allowed, name, twin, backup)
    assert status < 300 or status in row.passes, f"{allowed.name}: {status} {reply}"
