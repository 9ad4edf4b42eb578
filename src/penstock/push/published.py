"""A message of a topic, in the forms in which subscriptions get it."""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property

from penstock.model.message import Attribute, Record
from penstock.model.names import STRUCTURE, SUBJECT, uuid_text
from penstock.model.ports import Fetched
from penstock.model.topic import Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, parse_header, split_batches
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_batch
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns.book_rules import text_for
from penstock.wire.aws.sns.filter_match import PreparedMessage
from penstock.wire.aws.sns.notification import Envelope, Notification, Signer, envelope
from penstock.wire.aws.sns.publish_checks import texts_of

log_ = logging.getLogger(__name__)


class Published:
    """``body`` and ``attributes`` are what a subscription of this protocol gets. The envelope is
    made, and signed, when it is needed."""

    def __init__(
        self,
        record: Record,
        topic: Topic,
        partition: int,
        signer: Signer | None,
        *,
        protocol: str = "sqs",
        endpoint: str = "",
        is_replayed: bool = False,
    ) -> None:
        self.record, self.partition = record, partition
        self.topic, self._signer, self._is_replayed = topic, signer, is_replayed
        message = record.message
        self.body = message.body
        self.subject: str | None = None
        self.attributes: dict[str, Attribute] = {}
        if message.attributes:
            self.attributes = dict(message.attributes)
            subject = self.attributes.pop(SUBJECT, None)
            if subject is not None and subject.value:  # SNS has no empty subjects
                self.subject = subject.value.decode("utf-8", "replace")
            if self.attributes.pop(STRUCTURE, None) is not None:
                with suppress(Fault):  # a Kafka producer may write any body: it is sent as it is
                    texts = texts_of(message.body)
                    self.body = text_for(texts, protocol, endpoint).encode()

    @cached_property
    def prepared(self) -> PreparedMessage:
        return PreparedMessage(self.attributes, self.body)

    @cached_property
    def envelope(self) -> Envelope:
        topic, record = self.topic, self.record
        return envelope(
            Notification(
                uuid_text(record.message.message_id),
                topic.sns_arn or topic.arn,
                self.body.decode("utf-8", "replace"),
                record.sent_at_ms,
                self.subject,
                self.attributes or None,
                f"{record.offset:017d}{self.partition:03d}" if topic.is_fifo else None,
                self._is_replayed,
            ),
            self._signer,
        )


def records_of(fetched: Fetched, topic: Topic, partition: int, *, begin: int) -> Iterator[Record]:
    """Decode fetched batches, and return their records from offset ``begin`` on, without those of
    aborted transactions."""
    origin = f"{topic.topic_id}-{partition}".encode("ascii")
    # Sorted by the first offset of each transaction, which ends with a marker.
    aborted, gone = deque(fetched.aborted), set[int]()
    for batch in split_batches(fetched.buffers):
        header = parse_header(batch)
        while aborted and aborted[0][1] <= header.base_offset:
            gone.add(aborted.popleft()[0])
        is_transactional = bool(header.attributes & ATTR_TRANSACTIONAL)
        if header.is_control:
            if is_transactional:
                gone.discard(header.producer_id)
            continue
        if is_transactional and header.producer_id in gone:
            continue
        try:
            yield from decode_batch(batch, origin=origin, from_offset=begin)
        except MalformedBatch as error:
            about = {"topic": topic.name, "offset": header.base_offset, "reason": str(error)}
            log_.error("skipping records that cannot be read", extra=about)
