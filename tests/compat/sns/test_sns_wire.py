"""The query protocol without an SDK: forms, query strings, XML and JSON replies, links."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import pytest
from tests.compat.sns.stage import ACCOUNT, Stage

NAMESPACE = "http://sns.amazonaws.com/doc/2010-03-31/"
VERSION = "2010-03-31"
Fields = dict[str, str]


class Forms:
    """An HTTP client that knows nothing about AWS."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def send(
        self, fields: Fields, *, method: str = "POST", accept: str = "*/*"
    ) -> tuple[int, str, str]:
        """Return status, content type and body."""
        text = urlencode(fields, quote_via=quote)
        headers = {"accept": accept}
        if method == "GET":
            self._connection.request("GET", f"/?{text}", headers=headers)
        else:
            headers["content-type"] = "application/x-www-form-urlencoded; charset=utf-8"
            self._connection.request("POST", "/", text.encode(), headers)
        reply = self._connection.getresponse()
        return reply.status, reply.headers["content-type"], reply.read().decode()

    def xml(self, action: str, *, method: str = "POST", **fields: str) -> str:
        """Return the result element of a successful reply, without the parts around it."""
        form = {"Action": action, "Version": VERSION, **_dotted(fields)}
        status, kind, body = self.send(form, method=method)
        assert (status, kind) == (200, "text/xml"), body
        begin = f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">'
        result, mark, end = body.removeprefix(begin).partition("<ResponseMetadata><RequestId>")
        assert body.startswith(begin)
        assert mark
        assert end.endswith(f"</RequestId></ResponseMetadata></{action}Response>")
        return result

    def close(self) -> None:
        self._connection.close()


def _dotted(fields: Fields) -> Fields:
    return {name.replace("__", "."): value for name, value in fields.items()}


@pytest.fixture(scope="module")
def forms(stage: Stage) -> Iterator[Forms]:
    made = Forms(stage.url)
    yield made
    made.close()


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_replies_are_spelled_as_sns_spells_them(stage: Stage, forms: Forms, method: str) -> None:
    name = stage.name()
    arn = f"arn:aws:sns:us-east-1:{ACCOUNT}:{name}"

    def ask(action: str, **fields: str) -> str:
        return forms.xml(action, method=method, **fields)

    fields = {"Attributes__entry__1__key": "DisplayName", "Attributes__entry__1__value": "d"}
    tags = {"Tags__member__1__Key": "k", "Tags__member__1__Value": "v"}
    made = ask("CreateTopic", Name=name, **fields, **tags)
    assert made == f"<CreateTopicResult><TopicArn>{arn}</TopicArn></CreateTopicResult>"
    shown = ask("GetTopicAttributes", TopicArn=arn)
    assert shown.startswith("<GetTopicAttributesResult><Attributes><entry><key>TopicArn</key>")
    assert "<entry><key>DisplayName</key><value>d</value></entry>" in shown
    assert f"<member><TopicArn>{arn}</TopicArn></member>" in ask("ListTopics")
    change = {"AttributeName": "DisplayName", "AttributeValue": "e"}
    assert ask("SetTopicAttributes", TopicArn=arn, **change) == ""
    permission = {"AWSAccountId__member__1": ACCOUNT, "ActionName__member__1": "Publish"}
    assert ask("AddPermission", TopicArn=arn, Label="l", **permission) == ""
    assert ask("RemovePermission", TopicArn=arn, Label="l") == ""
    assert ask("ListTagsForResource", ResourceArn=arn) == (
        "<ListTagsForResourceResult><Tags><member><Key>k</Key><Value>v</Value></member></Tags>"
        "</ListTagsForResourceResult>"
    )
    assert ask("TagResource", ResourceArn=arn, **tags) == "<TagResourceResult/>"
    untagged = ask("UntagResource", ResourceArn=arn, TagKeys__member__1="k")
    assert untagged == "<UntagResourceResult/>"
    empty = ask("ListTagsForResource", ResourceArn=arn)
    assert empty == "<ListTagsForResourceResult><Tags/></ListTagsForResourceResult>"
    assert ask("ListSubscriptionsByTopic", TopicArn=arn) == (
        "<ListSubscriptionsByTopicResult><Subscriptions/></ListSubscriptionsByTopicResult>"
    )
    queue = stage.names["<queue>"]
    subscribed = ask("Subscribe", TopicArn=arn, Protocol="sqs", Endpoint=queue)
    root = ElementTree.fromstring(subscribed)
    subscription = root.findtext("SubscriptionArn", "")
    assert subscription.startswith(f"{arn}:")
    assert ask("ListSubscriptionsByTopic", TopicArn=arn) == (
        "<ListSubscriptionsByTopicResult><Subscriptions><member>"
        f"<SubscriptionArn>{subscription}</SubscriptionArn><Owner>{ACCOUNT}</Owner>"
        f"<Protocol>sqs</Protocol><Endpoint>{queue}</Endpoint><TopicArn>{arn}</TopicArn>"
        "</member></Subscriptions></ListSubscriptionsByTopicResult>"
    )
    change = {"AttributeName": "RawMessageDelivery", "AttributeValue": "true"}
    assert ask("SetSubscriptionAttributes", SubscriptionArn=subscription, **change) == ""
    attribute = {
        "MessageAttributes__entry__1__Name": "n",
        "MessageAttributes__entry__1__Value__DataType": "String",
        "MessageAttributes__entry__1__Value__StringValue": "x",
    }
    published = ask("Publish", TopicArn=arn, Message="m", **attribute)
    assert published.startswith("<PublishResult><MessageId>")
    entry = "PublishBatchRequestEntries__member__1__"
    entries = {f"{entry}Id": "a", f"{entry}Message": "m"}
    entries |= {f"{entry}{name}": value for name, value in attribute.items()}
    batch = ask("PublishBatch", TopicArn=arn, **entries)
    assert batch.startswith("<PublishBatchResult><Successful><member><Id>a</Id><MessageId>")
    assert batch.endswith("</MessageId></member></Successful><Failed/></PublishBatchResult>")
    policy = ask("PutDataProtectionPolicy", ResourceArn=arn, DataProtectionPolicy='{"Name":"x"}')
    assert policy == ""
    assert ask("Unsubscribe", SubscriptionArn=subscription) == ""
    assert ask("DeleteTopic", TopicArn=arn) == ""


def test_errors_are_spelled_as_sns_spells_them(stage: Stage, forms: Forms) -> None:
    form = {"Action": "GetTopicAttributes", "Version": VERSION, "TopicArn": stage.names["<absent>"]}
    status, kind, body = forms.send(form)
    assert (status, kind) == (404, "text/xml")
    begin, _, end = body.partition("<RequestId>")
    assert begin == (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>Sender</Type>'
        "<Code>NotFound</Code><Message>Topic does not exist</Message></Error>"
    )
    assert end.endswith("</RequestId></ErrorResponse>")


@pytest.mark.parametrize(
    ("more", "accept"),
    [({"ContentType": "JSON"}, "*/*"), ({}, "application/json"), ({}, "text/x, application/json")],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_old_sdks_get_json(
    stage: Stage, forms: Forms, more: Fields, accept: str, method: str
) -> None:
    arn = stage.names["<topic>"]

    def ask(action: str, **fields: str) -> tuple[int, dict[str, object]]:
        form = {"Action": action, "Version": VERSION, **fields, **more}
        status, kind, body = forms.send(form, method=method, accept=accept)
        assert kind == "application/json"
        found: dict[str, object] = json.loads(body)
        return status, found

    status, found = ask("GetTopicAttributes", TopicArn=arn)
    response = found["GetTopicAttributesResponse"]
    assert status == 200
    assert isinstance(response, dict)
    assert response["GetTopicAttributesResult"]["Attributes"]["TopicArn"] == arn
    assert response["ResponseMetadata"]["RequestId"]
    status, found = ask("ListTagsForResource", ResourceArn=arn)
    response = found["ListTagsForResourceResponse"]
    assert isinstance(response, dict)
    assert response["ListTagsForResourceResult"] == {"Tags": []}
    status, found = ask("GetTopicAttributes", TopicArn=stage.names["<absent>"])
    assert status == 404
    error = {"Code": "NotFound", "Message": "Topic does not exist", "Type": "Sender"}
    assert found["Error"] == error
    assert found["RequestId"]


@pytest.mark.parametrize(
    ("fields", "is_sns"),
    [
        ({"Action": "ListTopics"}, True),
        ({"Action": "ListTopics", "Version": VERSION}, True),
        ({"Action": "ListQueues"}, False),
        ({"Action": "ListQueues", "Version": "2012-11-05"}, False),
        ({"Action": "Nonsense", "Version": VERSION}, True),
        ({"Action": "Nonsense"}, False),
        ({"Action": "RemovePermission", "TopicArn": "<topic>", "Label": "x"}, True),
        ({"Action": "RemovePermission", "QueueUrl": "<queue-url>", "Label": "x"}, False),
        ({"Action": "AddPermission", "TopicArn": "<topic>", "Label": "x"}, True),
        ({"Action": "AddPermission", "QueueUrl": "<queue-url>", "Label": "x"}, False),
        ({"Action": "Unsubscribe", "SubscriptionArn": "x"}, True),
        ({"Action": "ConfirmSubscription", "TopicArn": "x"}, True),
        ({"Version": VERSION}, True),
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_version_and_action_choose_the_service_of_an_unsigned_request(
    stage: Stage, forms: Forms, fields: Fields, is_sns: bool, method: str
) -> None:
    if method == "GET":
        fields = {"Action": ""} | fields  # without this field, it is not an API request
    _, _, body = forms.send(stage.fill(fields), method=method)
    assert (NAMESPACE in body) == is_sns


@pytest.mark.parametrize(
    "action",
    [
        "CheckIfPhoneNumberIsOptedOut", "CreatePlatformApplication", "CreatePlatformEndpoint",
        "CreateSMSSandboxPhoneNumber", "DeleteEndpoint", "DeletePlatformApplication",
        "DeleteSMSSandboxPhoneNumber", "GetEndpointAttributes", "GetPlatformApplicationAttributes",
        "GetSMSAttributes", "GetSMSSandboxAccountStatus", "ListEndpointsByPlatformApplication",
        "ListOriginationNumbers", "ListPhoneNumbersOptedOut", "ListPlatformApplications",
        "ListSMSSandboxPhoneNumbers", "OptInPhoneNumber", "SetEndpointAttributes",
        "SetPlatformApplicationAttributes", "SetSMSAttributes", "VerifySMSSandboxPhoneNumber",
    ],
)  # fmt: skip
def test_operations_on_phones_are_known(forms: Forms, action: str) -> None:
    _, _, body = forms.send({"Action": action, "Version": VERSION})
    assert NAMESPACE in body
    assert "is not valid for this endpoint" not in body


def test_an_unsubscribe_link_works_once_and_again(stage: Stage, forms: Forms) -> None:
    queue, url = stage.queue()
    topic = stage.topic()
    arn = stage.subscribe(topic, queue)
    stage.ask("Publish", TopicArn=topic, Message="m")
    [found] = stage.received(url)
    link = urlsplit(json.loads(found["Body"])["UnsubscribeURL"])
    for _ in range(2):
        connection = http.client.HTTPConnection(link.netloc, timeout=60)
        connection.request("GET", f"{link.path}?{link.query}")
        reply = connection.getresponse()
        body = reply.read().decode()
        connection.close()
        assert reply.status == 200
        assert body.startswith(f'<?xml version="1.0"?><UnsubscribeResponse xmlns="{NAMESPACE}">')
    assert stage.refusal("GetSubscriptionAttributes", {"SubscriptionArn": arn})[0] == 404
