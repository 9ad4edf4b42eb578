"""Who asks: with authentication on, only those whose signature is good."""

import hmac
import json
from typing import Any

import msgspec
import pytest
from tests.unit.frontend.memory import Rig
from tests.unit.frontend.signing import (
    HOST,
    OWN,
    REGION,
    SECRET,
    Client,
    locked,
    read,
    url,
)

from penstock.frontend.aws import context as signers
from penstock.frontend.aws import incoming
from penstock.frontend.aws.context import FrontendConfig, Signers
from penstock.model.calls import Lease
from penstock.model.identity import ADMIN_POLICY, KeyStatus
from penstock.net.http.exchange import HttpRequest
from penstock.wire.aws import sigv4


async def test_a_good_signature_is_let_in_and_names_account_region_and_sender() -> None:
    rig, _ = locked()
    client = Client(rig)
    answer = await client.call("CreateQueue", QueueName="q")
    assert answer == {"QueueUrl": url("q")}
    (topic,) = rig.catalog.all_topics()
    assert (topic.account, topic.region) == (OWN, REGION)
    await client.call("SendMessage", QueueUrl=url("q"), MessageBody="x")
    got = await client.call("ReceiveMessage", QueueUrl=url("q"), AttributeNames=["SenderId"])
    assert got["Messages"][0]["Attributes"] == {"SenderId": f"{OWN}:root"}


async def test_sts_tells_who_the_caller_is() -> None:
    rig, identities = locked()
    identities.put(OWN, "alice", "AKALICE", "hers")
    client = Client(rig, "AKALICE", "hers")
    reply = await client.send(client.signed("GetCallerIdentity", {}, service="sts"))
    assert json.loads(reply.body) == {
        "Arn": f"arn:aws:iam::{OWN}:user/alice",
        "UserId": f"{OWN}:alice",
        "Account": OWN,
    }


async def test_a_signature_for_another_service_is_refused() -> None:
    rig, _ = locked()
    client = Client(rig)
    as_sts = client.signed("GetCallerIdentity", {}, service="sts")
    headers = {**as_sts.headers, "x-amz-target": "AmazonSQS.ListQueues"}
    answer = read(await client.send(msgspec.structs.replace(as_sts, headers=headers)))
    assert (answer["code"], answer["status"]) == ("SignatureDoesNotMatch", 403)
    assert "correct service: 'sqs'" in answer["message"]


async def test_the_region_of_the_host_must_be_that_of_the_signature() -> None:
    rig, _ = locked()
    client = Client(rig)
    same = client.signed("ListQueues", {}, host=f"sqs.{REGION}.queues.test")
    assert read(await client.send(same)) == {}
    other = client.signed("ListQueues", {}, host="sqs.us-east-1.queues.test")
    answer = read(await client.send(other))
    assert answer["code"] == "SignatureDoesNotMatch"
    assert "scoped to a valid region" in answer["message"]


@pytest.mark.parametrize(
    ("key_id", "secret", "code"),
    [
        ("AKOWN", "wrong", "SignatureDoesNotMatch"),
        ("AKNOBODY", SECRET, "InvalidClientTokenId"),
        (OWN, SECRET, "InvalidClientTokenId"),  # an account is no key
    ],
)
async def test_others_are_refused(key_id: str, secret: str, code: str) -> None:
    rig, identities = locked()
    answer = await Client(rig, key_id, secret).call("ListQueues")
    assert (answer["code"], answer["status"]) == (code, 403)
    assert identities.used == []
    assert SECRET not in answer["message"]


async def test_a_request_without_a_signature_is_refused() -> None:
    rig, _ = locked()
    request = HttpRequest(
        "POST", "/", "", {"host": HOST, "x-amz-target": "AmazonSQS.ListQueues"}, b"{}", "", "r"
    )
    answer = read(await rig.frontend.handle(request))
    assert (answer["code"], answer["status"]) == ("MissingAuthenticationToken", 403)


@pytest.mark.parametrize("change", [{"body": b'{"QueueName":"other"}'}, {"method": "PUT"}])
async def test_a_request_that_was_changed_on_its_way_is_refused(change: dict[str, Any]) -> None:
    rig, _ = locked()
    client = Client(rig)
    request = msgspec.structs.replace(client.signed("CreateQueue", {"QueueName": "q"}), **change)
    assert read(await client.send(request))["code"] == "SignatureDoesNotMatch"
    assert rig.catalog.all_topics() == []


async def test_an_old_signature_is_refused() -> None:
    rig, _ = locked()
    client = Client(rig)
    request = client.signed("ListQueues", {})
    assert read(await client.send(request)) == {}
    rig.clock.now_ms += 16 * 60_000
    answer = read(await client.send(request))
    assert answer["code"] == "SignatureDoesNotMatch"
    assert answer["message"].startswith("Signature expired: ")


# ── Keys come and go ─────────────────────────────────────────────────────────────────────────


async def test_a_key_that_is_disabled_ends_with_the_next_request() -> None:
    rig, identities = locked()
    client = Client(rig)
    assert await client.code("ListQueues") == "OK"
    identities.put(OWN, "root", "AKOWN", SECRET, ADMIN_POLICY, status=KeyStatus.DISABLED)
    assert await client.code("ListQueues") == "InvalidClientTokenId"
    assert await Client(rig, secret="wrong").code("ListQueues") == "InvalidClientTokenId"


async def test_a_user_that_is_gone_takes_its_keys_along() -> None:
    rig, identities = locked()
    identities.remove_user(OWN, "root")
    assert await Client(rig).code("ListQueues") == "InvalidClientTokenId"


async def test_a_suspended_account_is_refused_but_only_told_so_when_genuine() -> None:
    rig, identities = locked()
    identities.put(OWN, "root", "AKOWN", SECRET, ADMIN_POLICY, is_suspended=True)
    answer = await Client(rig).call("ListQueues")
    assert (answer["code"], answer["status"]) == ("AccessDenied", 403)
    assert await Client(rig, secret="wrong").code("ListQueues") == "SignatureDoesNotMatch"


async def test_after_a_rotation_the_new_secret_counts() -> None:
    rig, identities = locked()
    old, new = Client(rig), Client(rig, secret="rotated")
    assert (await old.code("ListQueues"), await new.code("ListQueues")) == (
        "OK",
        "SignatureDoesNotMatch",
    )
    identities.put(OWN, "root", "AKOWN", "rotated", ADMIN_POLICY)
    assert (await old.code("ListQueues"), await new.code("ListQueues")) == (
        "SignatureDoesNotMatch",
        "OK",
    )


async def test_a_receive_that_waited_is_not_answered_to_a_key_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, identities = locked()
    client = Client(rig)
    await client.call("CreateQueue", QueueName="q")
    await client.call("SendMessage", QueueUrl=url("q"), MessageBody="secret")
    lease = rig.backend.lease

    async def slow_lease(call: Lease) -> Any:
        identities.put(OWN, "root", "AKOWN", SECRET, ADMIN_POLICY, status=KeyStatus.DISABLED)
        return await lease(call)

    monkeypatch.setattr(rig.backend, "lease", slow_lease)
    answer = await client.call("ReceiveMessage", QueueUrl=url("q"), WaitTimeSeconds=20)
    assert answer["code"] == "InvalidClientTokenId"


async def test_a_receive_that_waited_is_not_answered_without_the_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, identities = locked()
    client = Client(rig)
    await client.call("CreateQueue", QueueName="q")
    lease = rig.backend.lease

    async def slow_lease(call: Lease) -> Any:
        identities.put(OWN, "root", "AKOWN", SECRET)
        return await lease(call)

    monkeypatch.setattr(rig.backend, "lease", slow_lease)
    assert await client.code("ReceiveMessage", QueueUrl=url("q")) == "AccessDenied"


# ── What is remembered ───────────────────────────────────────────────────────────────────────


async def test_a_secret_is_opened_once_a_day_and_use_is_noted_once_a_minute() -> None:
    rig, identities = locked()
    client = Client(rig)
    for _ in range(3):
        await client.code("ListQueues")
        rig.clock.now_ms += 25_000
    assert identities.opened == 1
    assert len(identities.used) == 1
    rig.clock.now_ms += 86_400_000
    await client.code("ListQueues")
    assert identities.opened == 2
    assert [key for key, _ in identities.used] == ["AKOWN", "AKOWN"]


async def test_inventing_keys_neither_grows_without_end_nor_pushes_out_real_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signers, "SIGNERS_MAX", 10)
    monkeypatch.setattr(incoming, "SCOPES_MAX", 10)
    rig, identities = locked()
    client = Client(rig)
    await client.code("ListQueues")
    for number in range(25):
        await Client(rig, f"AKNOBODY{number}").code("ListQueues")
    await client.code("ListQueues")
    assert identities.opened == 1
    kept: Signers = rig.frontend.signers
    assert len(kept._unknown) <= 10
    assert len(rig.frontend.scopes) <= 10


async def test_an_unknown_key_is_refused_after_the_same_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, _ = locked()
    checked: list[str] = []
    genuine = sigv4.is_genuine

    def counted(request: Any, scope: sigv4.CredentialScope, **how: Any) -> bool:
        checked.append(scope.access_key)
        return genuine(request, scope, **how)

    monkeypatch.setattr(sigv4, "is_genuine", counted)
    await Client(rig, secret="wrong").code("ListQueues")
    await Client(rig, "AKNOBODY").code("ListQueues")
    assert checked == ["AKOWN", "AKNOBODY"]


async def test_parts_of_the_header_in_another_order_are_read_as_well() -> None:
    rig, _ = locked()
    client = Client(rig)
    for _ in range(2):  # from memory the second time
        request = client.signed("ListQueues", {})
        algorithm, _, rest = request.headers["authorization"].partition(" ")
        credential, headers, signature = rest.split(", ")
        request.headers["authorization"] = f"{algorithm} {signature}, {credential}, {headers}"
        assert read(await client.send(request)) == {}


async def test_nothing_that_is_kept_shows_a_secret() -> None:
    rig, _ = locked()
    await Client(rig).code("ListQueues")
    (kept,) = rig.frontend.signers._known.values()
    derived = b"AWS4" + SECRET.encode()
    for part in (kept.signing_key._scope).split("/"):
        derived = hmac.digest(derived, part.encode(), "sha256")
    for shown in (repr(kept), repr(kept.signing_key), str(kept.signing_key)):
        assert SECRET not in shown
        assert derived.hex() not in shown


# ── Off ──────────────────────────────────────────────────────────────────────────────────────


async def test_with_authentication_off_callers_are_trusted_and_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.frontend.aws.incoming.TRUSTED_MAX", 3)
    rig = Rig(FrontendConfig())
    for key in ("a", "b", "c", "d", "333333333333"):
        assert await Client(rig, key, "any").code("CreateQueue", QueueName="q") == "OK"
    trusted = rig.frontend.trusted
    assert len(trusted) <= 3
    assert trusted["333333333333"].account == "333333333333"
    assert all(caller.is_trusted for caller in trusted.values())
