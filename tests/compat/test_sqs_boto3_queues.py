"""Queues as boto3 sees them: create, find, list, settings, tags, permissions, purge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.exceptions import ClientError
from tests.compat.answers import attributes_of, code_of, receive
from tests.compat.conftest import CREDENTIALS, MakeQueue, sqs_client
from tests.harness.server import Server

ACCOUNT = "000000000000"


# ── Create ───────────────────────────────────────────────────────────────────────────────────
def test_the_url_leads_back_to_where_the_client_came_from(
    sqs: Any, server: Server, queue_name: Callable[..., str], make_queue: MakeQueue
) -> None:
    name = queue_name()
    assert make_queue(name) == f"{server.url}/{ACCOUNT}/{name}"


def test_creating_again_is_harmless_while_nothing_contradicts(
    sqs: Any, queue_name: Callable[..., str], make_queue: MakeQueue
) -> None:
    name = queue_name()
    url = make_queue(name, VisibilityTimeout=5, tags={"a": "1"})
    assert make_queue(name) == url
    assert make_queue(name, VisibilityTimeout=5, DelaySeconds=0, tags={"b": "2"}) == url
    with pytest.raises(sqs.exceptions.QueueNameExists) as error:
        make_queue(name, VisibilityTimeout=6)
    assert code_of(error) == "QueueAlreadyExists"
    assert "VisibilityTimeout" in error.value.response["Error"]["Message"]


@pytest.mark.parametrize("name", ["with space", "a" * 81, "dot.ted", "ümlaut", "x.fifo"])
def test_names_that_break_the_grammar_are_refused(sqs: Any, name: str) -> None:
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=name)
    assert code_of(error) == "InvalidParameterValue"


def test_a_fifo_queue_needs_its_suffix(sqs: Any, queue_name: Callable[..., str]) -> None:
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName=queue_name(), Attributes={"FifoQueue": "true"})
    assert code_of(error) == "InvalidParameterValue"


def test_a_queue_cannot_be_declared_not_fifo(sqs: Any, queue_name: Callable[..., str]) -> None:
    with pytest.raises(sqs.exceptions.InvalidAttributeName) as error:
        sqs.create_queue(QueueName=queue_name(), Attributes={"FifoQueue": "false"})
    assert error.value.response["Error"]["Message"] == "Unknown Attribute FifoQueue."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VisibilityTimeout", "43201"),
        ("DelaySeconds", "901"),
        ("MaximumMessageSize", "1023"),
        ("MessageRetentionPeriod", "59"),
        ("ReceiveMessageWaitTimeSeconds", "21"),
        ("VisibilityTimeout", "soon"),
        ("Policy", "no json"),
        ("PenstockPartitions", "65"),
        ("PenstockFsync", "maybe"),
    ],
)
def test_values_out_of_range_are_refused(
    sqs: Any, queue_name: Callable[..., str], name: str, value: str
) -> None:
    with pytest.raises(sqs.exceptions.InvalidAttributeValue):
        sqs.create_queue(QueueName=queue_name(), Attributes={name: value})


@pytest.mark.parametrize("name", ["Colour", "QueueArn", "ContentBasedDeduplication"])
def test_attributes_a_standard_queue_does_not_have_are_refused(
    sqs: Any, queue_name: Callable[..., str], name: str
) -> None:
    with pytest.raises(sqs.exceptions.InvalidAttributeName):
        sqs.create_queue(QueueName=queue_name(), Attributes={name: "true"})


# ── Find and list ────────────────────────────────────────────────────────────────────────────
def test_a_queue_is_found_by_name(
    sqs: Any, queue_name: Callable[..., str], make_queue: MakeQueue
) -> None:
    name = queue_name()
    url = make_queue(name)
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    found = sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=ACCOUNT)
    assert found["QueueUrl"] == url
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId="999999999999")


@pytest.mark.parametrize(
    "form",
    [
        "http://anyhost.example:1/{account}/{name}",
        "https://sqs.us-east-1.amazonaws.com/{account}/{name}",
        "https://us-east-1.queue.amazonaws.com/{account}/{name}",
        "http://localhost.localstack.cloud:4566/queue/us-east-1/{account}/{name}",
        "{name}",
    ],
)
def test_a_queue_is_known_by_any_form_of_its_url(
    sqs: Any, queue_name: Callable[..., str], make_queue: MakeQueue, form: str
) -> None:
    name = queue_name()
    make_queue(name)
    url = form.format(account=ACCOUNT, name=name)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert attributes_of(sqs, url, "ApproximateNumberOfMessages") == {
        "ApproximateNumberOfMessages": "1"
    }


def test_lists_are_sorted_and_filtered_by_prefix(
    sqs: Any, queue_name: Callable[..., str], make_queue: MakeQueue
) -> None:
    prefix = queue_name("-list-")
    urls = [make_queue(prefix + letter) for letter in "cab"]
    assert sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"] == sorted(urls)
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=prefix + "none")


def test_lists_come_in_pages_when_a_size_is_given(
    sqs: Any, queue_name: Callable[..., str], make_queue: MakeQueue
) -> None:
    prefix = queue_name("-page-")
    urls = [make_queue(prefix + letter) for letter in "abcde"]
    first = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2)
    assert first["QueueUrls"] == urls[:2]
    assert "NextToken" not in sqs.list_queues(QueueNamePrefix=prefix)
    pages = sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}
    )
    assert [url for page in pages for url in page["QueueUrls"]] == urls


@pytest.mark.parametrize("more", [{"MaxResults": 0}, {"MaxResults": 1_001}])
def test_a_page_size_out_of_range_is_refused(sqs: Any, more: dict[str, int]) -> None:
    with pytest.raises(ClientError) as error:
        sqs.list_queues(**more)
    assert code_of(error) == "InvalidParameterValue"


def test_a_token_we_did_not_make_is_refused(sqs: Any) -> None:
    with pytest.raises(ClientError) as error:
        sqs.list_queues(MaxResults=1, NextToken="garbage")
    assert code_of(error) == "InvalidParameterValue"


def test_a_deleted_queue_is_gone_and_its_name_is_free(
    sqs: Any, queue_name: Callable[..., str], make_queue: MakeQueue
) -> None:
    name = queue_name()
    url = make_queue(name)
    sqs.send_message(QueueUrl=url, MessageBody="old")
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.delete_queue(QueueUrl=url)
    assert make_queue(name) == url
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


# ── Settings ─────────────────────────────────────────────────────────────────────────────────
def test_all_settings_of_a_new_queue(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    attributes = attributes_of(sqs, url)
    created = int(attributes.pop("CreatedTimestamp"))
    assert int(attributes.pop("LastModifiedTimestamp")) == created
    name = url.rsplit("/", 1)[1]
    assert attributes == {
        "QueueArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "30",
        "SqsManagedSseEnabled": "true",
    }


def test_no_names_no_attributes_and_unknown_names_are_refused(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)
    assert attributes_of(sqs, url, "Policy") == {}
    with pytest.raises(sqs.exceptions.InvalidAttributeName):
        attributes_of(sqs, url, "Colour")


def test_settings_change_and_show(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sqs.set_queue_attributes(
        QueueUrl=url, Attributes={"VisibilityTimeout": "7", "DelaySeconds": "3"}
    )
    assert attributes_of(sqs, url, "VisibilityTimeout", "DelaySeconds") == {
        "VisibilityTimeout": "7",
        "DelaySeconds": "3",
    }


def test_a_policy_is_kept_and_an_empty_one_removes_it(sqs: Any, make_queue: MakeQueue) -> None:
    policy = json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}],
        }
    )
    url = make_queue()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    assert attributes_of(sqs, url, "Policy") == {"Policy": policy}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert attributes_of(sqs, url, "Policy") == {}


def test_the_two_kinds_of_encryption_exclude_each_other(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    both = {"KmsMasterKeyId": "alias/key", "SqsManagedSseEnabled": "true"}
    with pytest.raises(sqs.exceptions.InvalidAttributeName):
        sqs.set_queue_attributes(QueueUrl=url, Attributes=both)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/key"})
    assert attributes_of(sqs, url, *both) == {
        "KmsMasterKeyId": "alias/key",
        "SqsManagedSseEnabled": "false",
    }


def test_our_own_attributes_show_only_by_name(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(PenstockPartitions=2, PenstockFsync="never")
    assert not any(name.startswith("Penstock") for name in attributes_of(sqs, url))
    assert attributes_of(sqs, url, "PenstockPartitions", "PenstockFsync") == {
        "PenstockPartitions": "2",
        "PenstockFsync": "never",
    }


def test_counts_follow_the_messages(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    for _ in range(3):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=900)
    sqs.receive_message(QueueUrl=url)
    counts = attributes_of(sqs, url)
    assert counts["ApproximateNumberOfMessages"] == "2"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "1"
    assert counts["ApproximateNumberOfMessagesDelayed"] == "1"


# ── Purge ────────────────────────────────────────────────────────────────────────────────────
def test_a_purge_takes_visible_delayed_and_leased_messages(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout=1)
    sqs.send_message(QueueUrl=url, MessageBody="leased")
    sqs.receive_message(QueueUrl=url)
    sqs.send_message(QueueUrl=url, MessageBody="visible")
    sqs.send_message(QueueUrl=url, MessageBody="delayed", DelaySeconds=1)
    sqs.purge_queue(QueueUrl=url)
    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)
    sqs.send_message(QueueUrl=url, MessageBody="after")
    [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)["Messages"]
    assert message["Body"] == "after"


def test_a_second_purge_within_a_minute_is_refused(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sqs.purge_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.PurgeQueueInProgress) as error:
        sqs.purge_queue(QueueUrl=url)
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


# ── Tags and permissions ─────────────────────────────────────────────────────────────────────
def test_tags_come_and_go(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(tags={"team": "a"})
    sqs.tag_queue(QueueUrl=url, Tags={"Team": "b", "empty": ""})
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "never"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"Team": "b", "empty": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["Team", "empty"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)


def test_no_tags_is_a_missing_parameter(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    with pytest.raises(ClientError) as error:
        sqs.tag_queue(QueueUrl=url, Tags={})
    assert code_of(error) == "MissingParameter"
    with pytest.raises(ClientError) as error:
        sqs.untag_queue(QueueUrl=url, TagKeys=[])
    assert code_of(error) == "InvalidParameterValue"


def test_fifty_tags_are_the_most(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(tags={f"k{number}": "v" for number in range(50)})
    with pytest.raises(ClientError) as error:
        sqs.tag_queue(QueueUrl=url, Tags={"one-more": "v"})
    assert code_of(error) == "InvalidParameterValue"


def test_a_permission_becomes_a_statement_of_the_policy(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    arn = attributes_of(sqs, url, "QueueArn")["QueueArn"]
    sqs.add_permission(
        QueueUrl=url, Label="share", AWSAccountIds=["111111111111"], Actions=["SendMessage"]
    )
    assert json.loads(attributes_of(sqs, url, "Policy")["Policy"]) == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "share",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
                "Action": "SQS:SendMessage",
                "Resource": arn,
            }
        ],
    }
    with pytest.raises(ClientError) as error:
        sqs.add_permission(
            QueueUrl=url, Label="share", AWSAccountIds=["111111111111"], Actions=["SendMessage"]
        )
    assert code_of(error) == "InvalidParameterValue"
    sqs.remove_permission(QueueUrl=url, Label="share")
    assert attributes_of(sqs, url, "Policy") == {}
    with pytest.raises(ClientError) as error:
        sqs.remove_permission(QueueUrl=url, Label="share")
    assert code_of(error) == "InvalidParameterValue"


def test_seven_actions_are_the_most(sqs: Any, make_queue: MakeQueue) -> None:
    actions = [
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "PurgeQueue",
        "ListDeadLetterSourceQueues",
    ]
    with pytest.raises(sqs.exceptions.OverLimit):
        sqs.add_permission(
            QueueUrl=make_queue(), Label="many", AWSAccountIds=["111111111111"], Actions=actions
        )


# ── Around the queues ────────────────────────────────────────────────────────────────────────
def test_sts_knows_the_account(server: Server) -> None:
    sts = boto3.client("sts", endpoint_url=server.url, region_name="us-east-1", **CREDENTIALS)
    assert sts.get_caller_identity()["Account"] == ACCOUNT


@pytest.mark.parametrize("path", ["/_penstock/health", "/_penstock/info", "/"])
def test_pages_for_probes_and_people(server: Server, path: str) -> None:
    with urlopen(Request(server.url + path), timeout=5) as reply:
        assert reply.status == 200
        assert isinstance(json.load(reply), dict)


def test_reset_empties_everything_for_test_suites(tmp_path: Path) -> None:
    with Server(tmp_path, fsync="never") as own:
        client = sqs_client(own.url)
        for name in ("one", "two.fifo"):
            fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
            client.create_queue(QueueName=name, Attributes=fifo)
        for path in ("/_penstock/reset", "/moto-api/reset"):
            with urlopen(Request(own.url + path, method="POST"), timeout=5) as reply:
                assert reply.status == 200
            assert "QueueUrls" not in client.list_queues()
            url = client.create_queue(QueueName="one")["QueueUrl"]
            assert receive(client, url, wait=0) == []
            client.send_message(QueueUrl=url, MessageBody="x")
        client.close()
        assert own.stop() == 0, own.stderr_tail()
