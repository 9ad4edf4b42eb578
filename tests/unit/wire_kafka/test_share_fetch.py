"""ShareFetch's reply by hand against the generated codec, which the recorded vectors vouch for."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.file_slice import in_memory
from penstock.wire.kafka.fetch import (
    AcquiredRange,
    ShareFetchReply,
    SharePartitionReply,
    ShareTopicReply,
    encode_share_fetch_reply,
)
from penstock.wire.kafka.generated.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
    decode_share_fetch_response,
    encode_share_fetch_response,
)
from penstock.wire.kafka.primitives import Unencodable, UnsupportedVersion

_TEXTS = st.none() | st.text(max_size=8)
_I64 = st.integers(0, 2**63 - 1)
_PARTITIONS = st.builds(
    SharePartitionReply,
    index=st.integers(0, 2**31 - 1),
    error_code=st.integers(-1, 133),
    acknowledge_error_code=st.integers(-1, 133),
    records=st.lists(st.binary(min_size=1, max_size=200), max_size=3),
    acquired=st.lists(st.builds(AcquiredRange, _I64, _I64, st.integers(1, 32_767)), max_size=3),
    error_message=_TEXTS,
    acknowledge_error_message=_TEXTS,
)
_TOPICS = st.builds(
    ShareTopicReply,
    topic_id=st.binary(min_size=16, max_size=16),
    partitions=st.lists(_PARTITIONS, max_size=3),
)
_REPLIES = st.builds(
    ShareFetchReply,
    topics=st.lists(_TOPICS, max_size=3),
    error_code=st.integers(-1, 133),
    error_message=_TEXTS,
    lock_ms=st.integers(0, 2**31 - 1),
    throttle_time_ms=st.integers(0, 1_000),
)


def generated(reply: ShareFetchReply) -> ShareFetchResponse:
    return ShareFetchResponse(
        reply.throttle_time_ms,
        reply.error_code,
        reply.error_message,
        reply.lock_ms,
        tuple(
            ShareFetchableTopicResponse(
                topic.topic_id,
                tuple(
                    PartitionData(
                        each.index,
                        each.error_code,
                        each.error_message,
                        each.acknowledge_error_code,
                        each.acknowledge_error_message,
                        LeaderIdAndEpoch(-1, -1),
                        b"".join(each.records),
                        tuple(
                            AcquiredRecords(*msgspec.structs.astuple(one)) for one in each.acquired
                        ),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )


@pytest.mark.parametrize("version", [1, 2])
@settings(max_examples=80)
@given(reply=_REPLIES)
def test_the_bytes_are_those_of_the_generated_codec(version: int, reply: ShareFetchReply) -> None:
    buffers = encode_share_fetch_reply(reply, version)
    body = b"".join(in_memory(buffers))
    assert body == encode_share_fetch_response(generated(reply), version)
    assert decode_share_fetch_response(body, 0, version) == generated(reply)


def test_batches_are_not_copied() -> None:
    batches: list[bytes | memoryview] = [b"x" * 100, memoryview(b"y" * 100)]
    partition = SharePartitionReply(0, records=batches, acquired=[AcquiredRange(0, 1, 1)])
    reply = ShareFetchReply([ShareTopicReply(bytes(16), [partition])])
    buffers = encode_share_fetch_reply(reply, 1)
    assert any(buffer is batches[0] for buffer in buffers)
    assert any(buffer is batches[1] for buffer in buffers)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(UnsupportedVersion):
        encode_share_fetch_reply(ShareFetchReply(), 3)
    with pytest.raises(Unencodable):
        encode_share_fetch_reply(ShareFetchReply(lock_ms=2**31), 1)
    with pytest.raises(Unencodable):
        encode_share_fetch_reply(ShareFetchReply([ShareTopicReply(b"short", ())]), 1)
