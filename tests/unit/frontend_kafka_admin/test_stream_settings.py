from penstock.model.limits import SEGMENT_AGE_MS_MAX, SEGMENT_BYTES_MAX
from penstock.model.stream import DEFAULTS, StreamSettings, settings_of
from penstock.model.topic import Kind, QueueSettings, Topic

DAY_MS = 24 * 3_600_000


def resolved(kind: Kind = Kind.STREAM, **configs: str) -> StreamSettings:
    return settings_of(
        Topic(
            topic_id="0" * 32,
            account="000000000000",
            region="us-east-1",
            name="t",
            kind=kind,
            partition_count=1,
            created_at_ms=1,
            modified_at_ms=1,
            receipt_key=b"k" * 32,
            settings=QueueSettings(retention_ms=60_000),
            configs={name.replace("_", "."): value for name, value in configs.items()},
        )
    )


def test_a_plain_stream_keeps_records_for_a_week() -> None:
    settings = resolved()
    assert settings is DEFAULTS
    assert (settings.retention_ms, settings.retention_bytes) == (7 * DAY_MS, None)
    assert (settings.is_deleted, settings.is_compacted) == (True, False)
    assert settings.message_bytes_max == 1_048_588
    assert not settings.is_append_time


def test_configs_override_the_defaults() -> None:
    settings = resolved(
        retention_ms="5",
        retention_bytes="6",
        max_message_bytes="7",
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms="8",
        message_timestamp_after_max_ms="9",
        segment_bytes="10",
        segment_ms="11",
        min_cleanable_dirty_ratio="0.25",
        min_compaction_lag_ms="12",
        max_compaction_lag_ms="13",
        delete_retention_ms="14",
    )
    assert settings == StreamSettings(
        retention_ms=5,
        retention_bytes=6,
        message_bytes_max=7,
        is_append_time=True,
        timestamp_before_ms_max=8,
        timestamp_after_ms_max=9,
        segment_bytes=10,
        segment_ms=11,
        dirty_ratio_min=0.25,
        compaction_lag_ms_min=12,
        compaction_lag_ms_max=13,
        tombstone_ms=14,
    )


def test_minus_one_keeps_records_forever() -> None:
    assert resolved(retention_ms="-1").retention_ms is None
    assert resolved(retention_ms="0").retention_ms == 0


def test_a_compacted_stream_loses_nothing_by_age_unless_it_says_both() -> None:
    compacted = resolved(cleanup_policy="compact", retention_ms="5", retention_bytes="6")
    assert (compacted.is_compacted, compacted.is_deleted) == (True, False)
    assert (compacted.retention_ms, compacted.retention_bytes) == (None, None)
    both = resolved(cleanup_policy="compact,delete", retention_ms="5", retention_bytes="6")
    assert (both.is_compacted, both.is_deleted) == (True, True)
    assert (both.retention_ms, both.retention_bytes) == (5, 6)


def test_segments_are_never_larger_than_ours() -> None:
    settings = resolved(segment_bytes="1073741824", segment_ms=str(30 * DAY_MS))
    assert (settings.segment_bytes, settings.segment_ms) == (SEGMENT_BYTES_MAX, SEGMENT_AGE_MS_MAX)


def test_a_queue_keeps_its_own_retention_and_the_times_of_its_appends() -> None:
    for kind in (Kind.STANDARD, Kind.FIFO):
        settings = resolved(kind)
        assert (settings.retention_ms, settings.retention_bytes) == (60_000, None)
        assert settings.is_append_time
        assert settings.is_deleted
        assert not settings.is_compacted
