"""Topics of the node's own: made on the first start, found afterwards, never resized."""

from collections.abc import Callable

from penstock.model.errors import TopicExists
from penstock.model.ports import Catalog, Clock
from penstock.model.topic import Kind, Topic

# Rows are kept until they are overwritten, however old.
CONFIGS = {"cleanup.policy": "compact", "retention.ms": "-1"}
TOPIC_ID_BYTES = 16
RECEIPT_KEY_BYTES = 32


async def internal_topic(
    catalog: Catalog,
    namespace: tuple[str, str],
    name: str,
    *,
    partition_count: int,
    clock: Clock,
    entropy: Callable[[int], bytes],
) -> Topic:
    """``namespace``: account and region."""
    found = catalog.find(*namespace, name)
    if found is not None:
        return found
    now_ms = clock.wall_ms()
    account, region = namespace
    topic = Topic(
        topic_id=entropy(TOPIC_ID_BYTES).hex(),
        account=account,
        region=region,
        name=name,
        kind=Kind.STREAM,
        partition_count=partition_count,
        created_at_ms=now_ms,
        modified_at_ms=now_ms,
        receipt_key=entropy(RECEIPT_KEY_BYTES),
        configs=CONFIGS,
    )
    try:
        return await catalog.create(topic)
    except TopicExists:
        found = catalog.find(*namespace, name)
        if found is None:
            raise
        return found
