"""The transaction APIs as clients and tools see them: whole answers, in every form they have."""

from pathlib import Path

import pytest
from tests.unit.broker.coordination.transaction_stage import (
    ADD,
    DESCRIBE,
    LIST,
    Client,
    TxnRig,
    settled,
    transacting,
)

from penstock.cursor.coordinator_calls import DescribeTransaction
from penstock.model.calls import Ends
from penstock.model.topic import Topic
from penstock.wire.kafka.apis import API_VERSIONS, APIS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.kafka.generated.api_versions import ApiVersionsRequest
from penstock.wire.kafka.generated.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.kafka.generated.list_transactions import ListTransactionsRequest

INIT = 22


async def test_one_partition_that_cannot_be_added_keeps_the_others_out(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        await rig.stream("good", partitions=2)
        await rig.stage.topic("queue")
        client = Client(rig)
        await client.init()
        asked = AddPartitionsToTxnRequest(
            (),
            client.id,
            client.producer_id,
            client.epoch,
            [
                AddPartitionsToTxnTopic("good", [0, 2]),
                AddPartitionsToTxnTopic("absent", [0]),
                AddPartitionsToTxnTopic("queue", [0]),
                AddPartitionsToTxnTopic("__transactions", [0]),
            ],
        )
        found = await rig.ask(ADD, 3, asked)
        codes = [
            [each.partition_error_code for each in topic.results_by_partition]
            for topic in found.results_by_topic_v3_and_below
        ]
        assert codes == [
            [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            [ErrorCode.TOPIC_AUTHORIZATION_FAILED],
            [ErrorCode.TOPIC_AUTHORIZATION_FAILED],
        ]
        _, txn = await rig.host.call(DescribeTransaction(client.id))
        assert txn is not None
        assert txn.partitions == ()


@pytest.mark.parametrize("is_v2", [False, True])
async def test_a_queue_takes_no_transactional_batch(tmp_path: Path, is_v2: bool) -> None:
    async with transacting(tmp_path) as rig:
        queue = await rig.stage.topic("queue")
        client = Client(rig, is_v2=is_v2)
        await client.init()
        assert await client.produce(queue, "x") == ErrorCode.INVALID_REQUEST
        assert (await rig.stage.broker.call(Ends(queue, 0))).high_watermark == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_the_batched_form_adds_and_verifies(tmp_path: Path, version: int) -> None:
    async with transacting(tmp_path) as rig:
        await rig.stream("t", partitions=2)
        one, two = Client(rig, "one"), Client(rig, "two")
        await one.init()
        await two.init()

        def part(
            client: Client, *partitions: int, verify_only: bool = False
        ) -> AddPartitionsToTxnTransaction:
            return AddPartitionsToTxnTransaction(
                client.id,
                client.producer_id,
                client.epoch,
                verify_only,
                [AddPartitionsToTxnTopic("t", partitions)],
            )

        async def codes(*parts: AddPartitionsToTxnTransaction) -> dict[str, list[int]]:
            found = await rig.ask(ADD, version, AddPartitionsToTxnRequest(parts))
            assert found.error_code == 0
            return {
                each.transactional_id: [
                    partition.partition_error_code
                    for topic in each.topic_results
                    for partition in topic.results_by_partition
                ]
                for each in found.results_by_transaction
            }

        abortable = ErrorCode.INVALID_TXN_STATE if version < 5 else ErrorCode.TRANSACTION_ABORTABLE
        assert await codes(part(one, 0), part(two, 0, verify_only=True)) == {
            "one": [0],
            "two": [abortable],
        }
        assert await codes(part(one, 0, 1, verify_only=True)) == {"one": [0, abortable]}


async def open_one(rig: TxnRig) -> tuple[Client, Topic]:
    topic = await rig.stream("t", partitions=2)
    client = Client(rig, "open")
    await client.init()
    await client.send(topic, "x", partition=0)
    await client.send(topic, "y", partition=1)
    await client.send_offset("g", topic, 3)
    return client, topic


async def test_transactions_are_described(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        client, _ = await open_one(rig)
        asked = DescribeTransactionsRequest(["open", "nobody", ""])
        found = await rig.ask(DESCRIBE, 0, asked)
        known, unknown, empty = found.transaction_states
        assert (known.error_code, known.transactional_id, known.transaction_state) == (
            0,
            "open",
            "Ongoing",
        )
        assert known.transaction_timeout_ms == 60_000
        assert known.transaction_start_time_ms == rig.clock.wall
        assert (known.producer_id, known.producer_epoch) == (client.producer_id, client.epoch)
        topics = {each.topic: list(each.partitions) for each in known.topics}
        assert topics["t"] == [0, 1]
        assert len(topics["__consumer_offsets"]) == 1
        assert unknown == TransactionState(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "nobody")
        assert empty == TransactionState(ErrorCode.INVALID_REQUEST)
        await client.commit()
        await settled(rig, "open")
        found = await rig.ask(DESCRIBE, 0, asked)
        ended = found.transaction_states[0]
        assert (ended.transaction_state, ended.transaction_start_time_ms) == ("CompleteCommit", -1)
        assert list(ended.topics) == []


async def test_transactions_are_listed_and_filtered(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        client, _ = await open_one(rig)
        idle = Client(rig, "idle")
        await idle.init()
        rig.clock.advance(1_000)

        async def listed(version: int = 2, **filters: object) -> list[str]:
            found = await rig.ask(LIST, version, ListTransactionsRequest(**filters))  # type: ignore[arg-type]
            assert found.error_code == 0
            return sorted(each.transactional_id for each in found.transaction_states)

        assert await listed(0) == ["idle", "open"]
        assert await listed(0, state_filters=["Ongoing"]) == ["open"]
        assert await listed(0, producer_id_filters=[idle.producer_id]) == ["idle"]
        assert await listed(1, duration_filter=999) == ["open"]
        assert await listed(1, duration_filter=1_000) == []
        assert await listed(2, transactional_id_pattern="i.*") == ["idle"]
        found = await rig.ask(LIST, 2, ListTransactionsRequest(["Ongoing", "Nonsense"]))
        assert list(found.unknown_state_filters) == ["Nonsense"]
        assert [each.producer_id for each in found.transaction_states] == [client.producer_id]
        broken = await rig.ask(LIST, 2, ListTransactionsRequest(transactional_id_pattern="("))
        assert broken.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_an_epoch_is_raised_for_its_own_producer_only(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        client = Client(rig)
        await client.init()

        async def again(producer_id: int, epoch: int, version: int = 4) -> tuple[int, int]:
            asked = InitProducerIdRequest(client.id, 60_000, producer_id, epoch)
            found = await rig.ask(INIT, version, asked)
            return found.error_code, found.producer_epoch

        assert await again(client.producer_id, client.epoch) == (0, client.epoch + 1)
        assert await again(client.producer_id, client.epoch) == (0, client.epoch + 1)
        assert await again(client.producer_id, 9) == (ErrorCode.PRODUCER_FENCED, -1)
        assert await again(client.producer_id, 9, 3) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
        assert await again(client.producer_id, -1) == (ErrorCode.INVALID_REQUEST, -1)
        empty = await rig.ask(INIT, 4, InitProducerIdRequest("", 60_000))
        assert (empty.error_code, empty.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


async def test_the_second_form_of_transactions_is_announced(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        for version in (3, 4):
            found = await rig.ask(API_VERSIONS, version, ApiVersionsRequest("me", "1"))
            levels = {one.name: one.max_version_level for one in found.finalized_features}
            assert levels["transaction.version"] == 2
            assert found.finalized_features_epoch >= 0
            assert {ADD, 25, 26, 28, DESCRIBE, LIST} <= {each.api_key for each in found.api_keys}
        assert APIS[26].version_max == 5
