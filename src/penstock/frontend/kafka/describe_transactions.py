"""DescribeTransactions: what transactional ids are doing, and in which partitions."""

from penstock.cursor.transactions import TxnValue
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.transaction_states import STATE_NAMES
from penstock.model.names import is_internal
from penstock.wire.kafka.generated.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

KEY = 65
_NONE = -1


async def run(
    context: KafkaContext, _call: KafkaCall, asked: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    states = [await _state(context, each) for each in asked.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


async def _state(context: KafkaContext, transactional_id: str) -> TransactionState:
    code, found = await context.transactions.describe(transactional_id)
    if found is None:
        return TransactionState(
            code,
            transactional_id,
            transaction_start_time_ms=_NONE,
            producer_id=_NONE,
            producer_epoch=_NONE,
        )
    return TransactionState(
        code,
        transactional_id,
        STATE_NAMES[found.state],
        found.timeout_ms,
        found.started_at_ms,
        found.producer_id,
        found.epoch,
        _topics(context, found),
    )


def _topics(context: KafkaContext, found: TxnValue) -> list[TopicData]:
    """By name; partitions of topics deleted meanwhile are left out."""
    by_name: dict[str, list[int]] = {}
    for topic_id, partition in found.partitions:
        name = topic_id
        if not is_internal(topic_id):  # groups are in it by the name of their topic
            topic = context.catalog.find_id(topic_id)
            if topic is None:
                continue
            name = topic.name
        by_name.setdefault(name, []).append(partition)
    return [TopicData(name, partitions) for name, partitions in by_name.items()]


ACTION = KafkaAction(KEY, run)
