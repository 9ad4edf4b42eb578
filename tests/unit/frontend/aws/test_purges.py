import pytest

from penstock.frontend.aws import context
from penstock.frontend.aws.context import PurgeGuard
from penstock.model.errors import PurgeInProgress


def test_a_second_purge_within_the_minute_is_refused() -> None:
    guard = PurgeGuard()
    guard.begin("t", name="q", now_ms=0)
    with pytest.raises(PurgeInProgress, match="q"):
        guard.begin("t", name="q", now_ms=59_999)
    guard.begin("t", name="q", now_ms=60_000)


def test_a_refused_purge_does_not_start_another_minute() -> None:
    guard = PurgeGuard()
    guard.begin("t", name="q", now_ms=0)
    with pytest.raises(PurgeInProgress):
        guard.begin("t", name="q", now_ms=30_000)
    guard.begin("t", name="q", now_ms=60_000)


def test_queues_do_not_share_a_minute_and_a_failed_purge_has_none() -> None:
    guard = PurgeGuard()
    guard.begin("t", name="q", now_ms=0)
    guard.begin("u", name="r", now_ms=0)
    guard.cancel("t")
    guard.begin("t", name="q", now_ms=1)


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "PURGES_MAX", 10)
    guard = PurgeGuard()
    for number in range(100):
        guard.begin(str(number), name="q", now_ms=number)
        assert len(guard._purged_at_ms) <= 10
