"""Creation of internal streams, which nodes make for themselves, perhaps several nodes at once."""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.model.errors import TopicExists
from penstock.model.ports import Catalog, Clock
from penstock.model.topic import Kind, Topic

TOPIC_ID_BYTES: Final = 16
RECEIPT_KEY_BYTES: Final = 32


async def make_internal_topic(
    catalog: Catalog,
    namespace: tuple[str, str],
    name: str,
    *,
    partition_count: int,
    configs: Mapping[str, str],
    clock: Clock,
    entropy: Callable[[int], bytes],
) -> Topic:
    """Create a stream and return it, or return the existing one. ``namespace``: account, region."""
    account, region = namespace
    now_ms = clock.wall_ms()
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
        configs=dict(configs),
    )
    try:
        return await catalog.create(topic)
    except TopicExists:  # created by another node
        found = catalog.find(account, region, name)
        if found is None:
            raise
        return found
