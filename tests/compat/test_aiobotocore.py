"""The asyncio SDK: the whole life of a message, many at once, and its own errors and paging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError
from tests.harness.server import Server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Any]:
    config = AioConfig(
        retries={"max_attempts": 0, "mode": "standard"}, read_timeout=30, max_pool_connections=50
    )
    async with get_session().create_client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=config,
    ) as made:
        yield made


async def test_a_message_lives_its_whole_life(client: Any, queue_name: Callable[..., str]) -> None:
    url = (await client.create_queue(QueueName=queue_name()))["QueueUrl"]
    sent = await client.send_message(
        QueueUrl=url,
        MessageBody="hällo ☃ \U0001f600",
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "greeting"}},
    )
    got = await client.receive_message(
        QueueUrl=url, MessageAttributeNames=["All"], AttributeNames=["All"], WaitTimeSeconds=5
    )
    (message,) = got["Messages"]
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == "hällo ☃ \U0001f600"
    assert message["MessageAttributes"]["kind"]["StringValue"] == "greeting"
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    await client.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
    )
    (again,) = (await client.receive_message(QueueUrl=url, WaitTimeSeconds=5))["Messages"]
    await client.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert "Messages" not in await client.receive_message(QueueUrl=url)
    await client.delete_queue(QueueUrl=url)
    with pytest.raises(client.exceptions.QueueDoesNotExist):
        await client.send_message(QueueUrl=url, MessageBody="late")


async def test_many_calls_at_once_lose_and_double_nothing(
    client: Any, queue_name: Callable[..., str]
) -> None:
    url = (await client.create_queue(QueueName=queue_name()))["QueueUrl"]

    async def send(number: int) -> None:
        entries = [{"Id": str(n), "MessageBody": f"{number}-{n}"} for n in range(10)]
        reply = await client.send_message_batch(QueueUrl=url, Entries=entries)
        assert len(reply["Successful"]) == 10

    bodies: list[str] = []
    all_here = asyncio.Event()

    async def consume() -> None:
        while not all_here.is_set():
            reply = await client.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1
            )
            messages = reply.get("Messages", [])
            if messages:
                bodies.extend(message["Body"] for message in messages)
                entries = [
                    {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]}
                    for n, message in enumerate(messages)
                ]
                await client.delete_message_batch(QueueUrl=url, Entries=entries)
            if len(bodies) >= 300:
                all_here.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(consume())
        for number in range(30):
            tasks.create_task(send(number))
    assert sorted(bodies) == sorted(f"{number}-{n}" for number in range(30) for n in range(10))
    await client.delete_queue(QueueUrl=url)


async def test_queues_are_listed_page_by_page(client: Any, queue_name: Callable[..., str]) -> None:
    prefix = queue_name("-page")
    names = [f"{prefix}-{number:02}" for number in range(7)]
    for name in names:
        await client.create_queue(QueueName=name)
    pages = [
        page.get("QueueUrls", [])
        async for page in client.get_paginator("list_queues").paginate(
            QueueNamePrefix=prefix, PaginationConfig={"PageSize": 3}
        )
    ]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [url.rsplit("/", 1)[1] for page in pages for url in page] == names
    for name in names:
        url = (await client.get_queue_url(QueueName=name))["QueueUrl"]
        await client.delete_queue(QueueUrl=url)


async def test_errors_are_the_ones_the_sdk_knows(
    client: Any, queue_name: Callable[..., str]
) -> None:
    with pytest.raises(client.exceptions.QueueDoesNotExist) as missing:
        await client.get_queue_url(QueueName=queue_name("-none"))
    assert missing.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    url = (await client.create_queue(QueueName=queue_name()))["QueueUrl"]
    with pytest.raises(client.exceptions.ReceiptHandleIsInvalid):
        await client.delete_message(QueueUrl=url, ReceiptHandle="nonsense")
    with pytest.raises(client.exceptions.EmptyBatchRequest):
        await client.send_message_batch(QueueUrl=url, Entries=[])
    with pytest.raises(ClientError) as range_error:
        await client.receive_message(QueueUrl=url, MaxNumberOfMessages=11)
    assert range_error.value.response["Error"]["Code"] == "InvalidParameterValue"
    await client.delete_queue(QueueUrl=url)


async def test_a_cancelled_poll_takes_no_message(
    client: Any, queue_name: Callable[..., str]
) -> None:
    url = (await client.create_queue(QueueName=queue_name()))["QueueUrl"]
    poll = asyncio.create_task(client.receive_message(QueueUrl=url, WaitTimeSeconds=20))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await poll
    await client.send_message(QueueUrl=url, MessageBody="for the next")
    (message,) = (
        await client.receive_message(QueueUrl=url, WaitTimeSeconds=5, AttributeNames=["All"])
    )["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    await client.delete_queue(QueueUrl=url)
