"""Attacks on the links in messages to endpoints, which need no signature: forged tokens, links that
do more than they should, and web pages that follow them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from tests.attacks.kit import (
    EVERYTHING,
    REGION,
    ROOT,
    Operator,
    allow,
    code_of,
    policy,
    send,
    sns_form,
)
from tests.attacks.push_stage import OWN, Subscribed, first_seen, link, refusal, sns_as
from tests.harness.endpoint import Endpoint
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.model.limits import CONFIRMATION_MS
from penstock.node.keys.keyring import MasterKeyRing, read_master
from penstock.wire.aws.sns.tokens import Token, make_token

NO_TOKEN = (400, "Invalid parameter: Token")
CODE = re.compile("<Code>([^<]*)</Code>")


@pytest.fixture
def subscribed(sns: Any, endpoint: Endpoint, name: Callable[..., str]) -> Subscribed:
    return Subscribed(sns, endpoint, name())


def test_a_forged_token_confirms_nothing(
    locked: Server, sns: Any, endpoint: Endpoint, subscribed: Subscribed, name: Callable[..., str]
) -> None:
    token, other = subscribed.token, Subscribed(sns, endpoint, name()).token
    forged = [
        token[:at] + f"{int(token[at], 16) ^ 1:x}" + token[at + 1 :]
        for at in range(0, len(token), 7)
    ]
    # The head of one token and the MAC of another; all in upper case; too short; too long.
    forged += [other[:160] + token[160:], token[:18] + other[18:50] + token[50:]]
    forged += [token.upper(), token[:-2], token + "00", "", "0" * len(token), "\u0660" * 288]
    for text in forged:
        reply = link(locked, "ConfirmSubscription", TopicArn=subscribed.topic, Token=text)
        assert refusal(reply) == NO_TOKEN, text
    assert subscribed.is_pending()
    # The true token is accepted, so the others were refused for what they are.
    assert link(locked, "ConfirmSubscription", TopicArn=subscribed.topic, Token=token)[0] == 200


def test_a_token_of_another_server_confirms_nothing(
    locked: Server, open_server: Server, endpoint: Endpoint, subscribed: Subscribed
) -> None:
    client = sns_as(open_server, Credentials("x", "y"))
    foreign = Subscribed(client, endpoint, f"{subscribed.topic.rpartition(':')[2]}-foreign")
    client.close()
    reply = link(locked, "ConfirmSubscription", TopicArn=subscribed.topic, Token=foreign.token)
    assert refusal(reply) == NO_TOKEN
    assert subscribed.is_pending()


def test_an_expired_token_confirms_nothing(locked: Server, subscribed: Subscribed) -> None:
    """The test makes tokens with the key of the server, which no client has."""
    key = MasterKeyRing(read_master(locked.data / "master.key")).derive(b"sns confirmations")
    token = Token(subscribed.arn.rpartition(":")[2], REGION)
    now_ms = int(time.time() * 1_000)

    def confirm(made_at_ms: int, token: Token) -> tuple[int, str]:
        text = make_token(key, token, now_ms=made_at_ms)
        return link(locked, "ConfirmSubscription", TopicArn=subscribed.topic, Token=text)

    assert refusal(confirm(now_ms - CONFIRMATION_MS, token)) == NO_TOKEN
    assert refusal(confirm(now_ms, token._replace(region="eu-west-1"))) == (
        400,
        "Invalid parameter: Topic",
    )
    assert subscribed.is_pending()
    assert confirm(now_ms - CONFIRMATION_MS + 600_000, token)[0] == 200


def test_a_token_confirms_its_own_subscription_only(
    locked: Server, sns: Any, endpoint: Endpoint, subscribed: Subscribed, name: Callable[..., str]
) -> None:
    """Whatever topic the link names."""
    other = Subscribed(sns, endpoint, name())
    status, reply = link(
        locked, "ConfirmSubscription", TopicArn=other.topic, Token=subscribed.token
    )
    assert (status, subscribed.arn in reply) == (200, True), reply
    assert other.is_pending()
    assert not subscribed.is_pending()


def test_a_link_to_unsubscribe_needs_the_whole_arn(
    locked: Server, sns: Any, endpoint: Endpoint, subscribed: Subscribed, name: Callable[..., str]
) -> None:
    other = Subscribed(sns, endpoint, name())
    identifier = subscribed.arn.rpartition(":")[2]
    for arn in (
        f"{other.topic}:{identifier}",
        subscribed.arn.replace(f":{OWN}:", "::"),
        subscribed.arn.replace(f":{OWN}:", ":111111111111:"),
        subscribed.arn.replace(REGION, "eu-west-1"),
        subscribed.arn.upper(),
        f"{subscribed.topic}:*",
        f"{subscribed.topic}:{identifier}:",
    ):
        link(locked, "Unsubscribe", SubscriptionArn=arn)
        assert subscribed.is_pending(), arn
    assert link(locked, "Unsubscribe", SubscriptionArn=subscribed.arn)[0] == 200
    with pytest.raises(sns.exceptions.NotFoundException):
        subscribed.is_pending()


def test_a_link_does_not_delete_a_webhook_of_a_queue(
    locked: Server, operator: Operator, root: Any, name: Callable[..., str]
) -> None:
    queue = name()
    root.create_queue(QueueName=queue)
    made = operator.ask(
        "POST", "subscriptions", {"source": queue, "endpoint": "https://example.com/"}
    )
    for arn in (made["arn"], made["arn"].replace(":sqs:", ":sns:")):
        link(locked, "Unsubscribe", SubscriptionArn=arn)
    assert operator.ask("GET", f"subscriptions/{made['id']}")["id"] == made["id"]


@pytest.mark.parametrize("action", ["ConfirmSubscription", "Unsubscribe"])
def test_the_body_of_a_link_cannot_name_another_action(
    locked: Server, sns: Any, root: Any, action: str, subscribed: Subscribed
) -> None:
    name = subscribed.topic.rpartition(":")[2]
    url = root.create_queue(QueueName=name)["QueueUrl"]
    before = sns.get_topic_attributes(TopicArn=subscribed.topic)["Attributes"]
    publish = sns_form("Publish", {"TopicArn": subscribed.topic, "Message": "planted"})
    bodies = [
        publish,
        sns_form("DeleteTopic", {"TopicArn": subscribed.topic}),
        sns_form("SetTopicAttributes", {"TopicArn": subscribed.topic, "AttributeName": "Policy"}),
        sns_form("ListTopics", {}),
        sns_form("CreateTopic", {"Name": f"{name}-planted"}),
    ]
    others = [
        b"Action=DeleteQueue&Version=2012-11-05&QueueUrl=" + url.encode(),
        b"Action=GetCallerIdentity&Version=2011-06-15",
    ]
    for body in (*bodies, *others):
        status, reply = link(locked, action, body, Token="0", SubscriptionArn=subscribed.arn)
        code = CODE.search(reply)
        assert code is not None, reply
        expected = (403, "MissingAuthenticationToken")
        assert (status, code[1]) == (expected if body in bodies else (400, "InvalidAction")), reply
    host = urlsplit(locked.url).netloc
    for path in (f"/?Action={action}&{body.decode()}" for body in (*bodies, *others)):
        assert send(host, "GET", path, None, {})[0] in (400, 403), path
    target = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}
    assert send(host, "POST", f"/?Action={action}", "{}", target)[0] == 403
    assert sns.get_topic_attributes(TopicArn=subscribed.topic)["Attributes"] == before
    assert f"{name}-planted" not in str(sns.list_topics()["Topics"])
    assert root.get_queue_url(QueueName=name)["QueueUrl"] == url


# What Chromium sends when a person clicks a link on a page of another site, such as a web mail
# program. Only HTTPS and loopback addresses get the headers Sec-Fetch.
MAIL = "https://mail.example/inbox"
BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/156.0.0.0", "referer": MAIL}
CLICK = {
    **BROWSER,
    "sec-fetch-site": "cross-site",
    "sec-fetch-mode": "navigate",
    "sec-fetch-dest": "document",
    "sec-fetch-user": "?1",
}


@pytest.fixture(params=["open", "locked"])
def either(request: pytest.FixtureRequest) -> Server:
    """With authentication off, and with it on."""
    which = {"open": "open_server", "locked": "locked"}[request.param]
    server: Server = request.getfixturevalue(which)
    return server


@pytest.mark.parametrize("headers", [CLICK, BROWSER], ids=["loopback", "by name"])
def test_a_person_confirms_and_unsubscribes_by_a_click_in_a_mail_program(
    either: Server, endpoint: Endpoint, name: Callable[..., str], headers: dict[str, str]
) -> None:
    client, host = sns_as(either, ROOT), urlsplit(either.url).netloc
    one = Subscribed(client, endpoint, name())
    confirm = f"/?Action=ConfirmSubscription&TopicArn={one.topic}&Token={one.token}"
    unsubscribe = f"/?Action=Unsubscribe&SubscriptionArn={one.arn}"
    assert send(host, "GET", confirm, None, headers)[0] == 200
    assert not one.is_pending()
    assert send(host, "GET", unsubscribe, None, headers)[0] == 200
    assert not client.list_subscriptions_by_topic(TopicArn=one.topic)["Subscriptions"]
    client.close()


def test_a_page_gets_nothing_but_these_two_actions_and_only_by_a_click(
    either: Server, endpoint: Endpoint, name: Callable[..., str]
) -> None:
    client, host = sns_as(either, ROOT), urlsplit(either.url).netloc
    one = Subscribed(client, endpoint, name())
    confirm = f"/?Action=ConfirmSubscription&TopicArn={one.topic}&Token={one.token}"
    delete = f"Action=DeleteTopic&Version=2010-03-31&TopicArn={one.topic}"
    for path in (
        f"/?{delete}",
        f"{confirm}&{delete}",
        f"{confirm}&%41ction=DeleteTopic",
        f"/?Action=DeleteTopic&x=&Action=ConfirmSubscription&{delete}",
        "/?Action=CreateQueue&QueueName=by-click",
        "/?Action=confirmsubscription",
        "/?Action=Unsubscribe%00",
        "/?Action=%ff&Action=Unsubscribe",
        "/?Action=Unsubscribe" + "&" * 1_001,
    ):
        assert send(host, "GET", path, None, CLICK)[0] == 403, path[:99]
    for headers in (
        {**CLICK, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {**CLICK, "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        {"sec-fetch-site": "same-site"},
    ):
        assert send(host, "GET", confirm, None, headers)[0] == 403, headers
    for method in ("POST", "HEAD"):
        assert send(host, method, confirm, None, CLICK)[0] == 403, method
    form = {**CLICK, "content-type": "application/x-www-form-urlencoded"}
    assert send(host, "POST", "/", confirm[2:], form)[0] == 403
    assert one.is_pending()
    admin = urlsplit(either.admin_url).netloc
    assert send(admin, "GET", f"/api/v1/queues{confirm[1:]}", None, CLICK)[0] == 403
    client.close()


def allow_subscribe(sns: Any, topic: str, tenant: str) -> None:
    allowed = {
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:aws:iam::{tenant}:root"},
        "Action": ["SNS:Subscribe"],
        "Resource": topic,
    }
    sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy(allowed))


def test_a_subscriber_of_another_tenant_confirms_and_unsubscribes_what_nobody_else_may(
    locked: Server, operator: Operator, sns: Any, endpoint: Endpoint, name: Callable[..., str]
) -> None:
    """A signature has no less effect than a link without one, if the policies of the caller allow
    the action; and where a link has none, only the owners have."""
    tenant, topic = operator.tenant(), str(sns.create_topic(Name=name())["TopicArn"])
    allow_subscribe(sns, topic, tenant)
    theirs = sns_as(locked, operator.user(EVERYTHING, tenant=tenant)[1])
    weak = sns_as(locked, operator.user(allow("sns:Publish"), tenant=tenant)[1])
    stranger = sns_as(locked, operator.user(EVERYTHING, tenant=operator.tenant())[1])
    for may_unsubscribe in (theirs, sns):
        one = Subscribed(theirs, endpoint, name(), topic=topic)
        token = {"TopicArn": topic, "Token": one.token, "AuthenticateOnUnsubscribe": "true"}
        assert code_of(weak.confirm_subscription, **token) == "AuthorizationError"
        assert theirs.confirm_subscription(**token)["SubscriptionArn"] == one.arn
        for client in (weak, stranger):
            code = code_of(client.unsubscribe, SubscriptionArn=one.arn)
            assert code == "AuthorizationError", client
        assert link(locked, "Unsubscribe", SubscriptionArn=one.arn)[0] == 403
        listed = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        assert [each["SubscriptionArn"] for each in listed] == [one.arn]
        may_unsubscribe.unsubscribe(SubscriptionArn=one.arn)
        assert not sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    for client in (theirs, weak, stranger):
        client.close()


def test_a_token_may_be_sent_with_a_signature_for_another_region(
    locked: Server, subscribed: Subscribed
) -> None:
    """But only for the region of its topic."""
    elsewhere, token = sns_as(locked, ROOT, "eu-west-1"), subscribed.token
    moved = subscribed.topic.replace(REGION, "eu-west-1")
    with pytest.raises(ClientError, match=r"Invalid parameter: Topic$"):
        elsewhere.confirm_subscription(TopicArn=moved, Token=token)
    assert subscribed.is_pending()
    elsewhere.confirm_subscription(TopicArn=subscribed.topic, Token=token)
    assert not subscribed.is_pending()
    elsewhere.close()


def test_a_tenant_whose_right_was_withdrawn_reads_nothing_by_its_subscription(
    locked: Server, operator: Operator, sns: Any, endpoint: Endpoint, name: Callable[..., str]
) -> None:
    """A subscription to a topic of another tenant stays, but gives no right to older messages."""
    topic = str(sns.create_topic(Name=name())["TopicArn"])
    tenant = operator.tenant()
    _, credentials = operator.user(EVERYTHING, tenant=tenant)
    allow_subscribe(sns, topic, tenant)
    sns.publish(TopicArn=topic, Message="before")
    theirs, admin = sns_as(locked, credentials), Operator(locked, credentials)
    path = f"/{topic.rpartition(':')[2]}"
    theirs.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url(path))
    theirs.close()
    first_seen(endpoint, path)
    (listed,) = admin.ask("GET", "subscriptions")["subscriptions"]
    admin.ask("POST", f"subscriptions/{listed['id']}/confirm", {})
    replay = ("POST", f"subscriptions/{listed['id']}/replay", {"earliest": True})
    eventually(lambda: admin.try_(*replay)[0] == 200, seconds=60, what="an allowed replay")
    sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue="")
    for route, body in (
        ("replay", {"earliest": True}),
        ("redeliver", {"partition": 0, "offset": 0}),
        ("test", {}),
    ):
        status, reply = admin.try_("POST", f"subscriptions/{listed['id']}/{route}", body)
        assert status == 403, f"{route}: {status} {reply!r}"
