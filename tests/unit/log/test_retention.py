from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.retention import droppable
from penstock.log.storage.segment import SegmentInfo
from penstock.model.stream import StreamSettings

SEGMENTS = [
    SegmentInfo(0, 10, 100, 1_000),
    SegmentInfo(10, 20, 100, 2_000),
    SegmentInfo(20, 30, 100, 3_000),
    SegmentInfo(30, 35, 50, 4_000),
]


def drop(
    *,
    low_offset: int = 0,
    retention_ms: int | None = None,
    retention_bytes: int | None = None,
    keep_after_ms: int | None = None,
    now_ms: int = 5_000,
) -> int:
    return droppable(
        SEGMENTS,
        StreamSettings(retention_ms=retention_ms, retention_bytes=retention_bytes),
        low_offset=low_offset,
        keep_after_ms=keep_after_ms,
        now_ms=now_ms,
    )


def test_finished_segments_may_go() -> None:
    assert [drop(low_offset=low) for low in (0, 9, 10, 25, 30, 99)] == [0, 0, 10, 20, 30, 30]


def test_old_segments_may_go() -> None:
    assert drop(retention_ms=4_000) == 0
    assert drop(retention_ms=3_999) == 10
    assert drop(retention_ms=1_500) == 30


def test_a_log_over_its_size_loses_the_oldest() -> None:
    assert drop(retention_bytes=350) == 0
    assert drop(retention_bytes=349) == 10
    assert drop(retention_bytes=250) == 10
    assert drop(retention_bytes=0) == 30


def test_segments_with_live_dedup_ids_stay_whatever_else() -> None:
    assert drop(low_offset=35, keep_after_ms=2_000) == 20
    assert drop(low_offset=35, retention_ms=0, retention_bytes=0, keep_after_ms=999) == 0


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 40),
    st.none() | st.integers(0, 6_000),
    st.none() | st.integers(0, 400),
    st.none() | st.integers(0, 6_000),
)
def test_the_answer_is_a_segments_edge_and_the_active_one_stays(
    low_offset: int, retention_ms: int | None, retention_bytes: int | None, keep: int | None
) -> None:
    answer = drop(
        low_offset=low_offset,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        keep_after_ms=keep,
    )
    assert answer in (0, 10, 20, 30)


def test_no_segments_nothing_to_drop() -> None:
    assert (
        droppable(
            [],
            StreamSettings(),
            low_offset=3,
            keep_after_ms=None,
            now_ms=0,
        )
        == 3
    )
