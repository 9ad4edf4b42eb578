"""Collects a job's progress from Spark's events, for the status file and the display.

One listener per session gets an event for each batch of each query, after its offsets are in the
checkpoint. Other work is counted in tasks."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

_TASKS_LOOK_S = 0.5


class ProgressUpdate(NamedTuple):
    label: str
    done: int = 0
    total: int | None = None
    unit: str = "rows"
    rows_per_s: float = 0.0
    lag: int | None = None
    batch: int | None = None


class Display(Protocol):
    def show(self, reading: ProgressUpdate) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunCounts:
    batches: int = 0
    last_batch: int | None = None
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None


@dataclass(eq=False)
class JobProgress:
    """The ``Progress`` of a running job. Every method may be called from any thread."""

    display: Display
    log: Callable[[str], None]
    on_counts: Callable[[RunCounts], None]
    counts: RunCounts = RunCounts()
    _moved: threading.Condition = field(default_factory=threading.Condition)  # guards all fields
    _lags: dict[str, int] = field(default_factory=dict)
    _starts: dict[str, int] = field(default_factory=dict)
    _batches_of: dict[str, int] = field(default_factory=dict)  # finished batches of a query's run
    _running: set[str] = field(default_factory=set)  # runs that have started and not ended
    _spark: SparkSession | None = None

    def attach(self, spark: SparkSession) -> None:
        self._spark = spark
        with self._moved:
            for of_session in (self._starts, self._lags, self._batches_of, self._running):
                of_session.clear()
        spark.streams.addListener(_Listener(self))

    def note(self, text: str) -> None:
        self.log(text)
        self.display.note(text)

    @contextlib.contextmanager
    def tasks(self, label: str) -> Iterator[None]:
        assert self._spark is not None, "no session is open"
        done = threading.Event()
        watching = (self._spark, label, self.display, done)
        watcher = threading.Thread(
            target=_watch_tasks, args=watching, name=f"progress {label}", daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def batch_done(self, progress: StreamingQueryProgress) -> None:
        run, label = str(progress.runId), progress.name or "query"
        start, end, latest = _offsets(progress)
        with self._moved:
            began = self._starts.setdefault(run, start)
            self._batches_of[run] = self._batches_of.get(run, 0) + 1
            if latest is not None:
                self._lags[run] = max(0, latest - end)
            rate = progress.processedRowsPerSecond
            counts = self.counts = RunCounts(
                batches=self.counts.batches + 1,
                last_batch=progress.batchId,
                rows=self.counts.rows + progress.numInputRows,
                rows_per_s=rate if math.isfinite(rate) else 0.0,
                lag=sum(self._lags.values()) if self._lags else None,
            )
            self._moved.notify_all()
        self.on_counts(counts)
        self.display.show(
            ProgressUpdate(
                label,
                done=end - began,
                total=max(latest, end) - began if latest is not None else None,
                unit="offsets",
                rows_per_s=counts.rows_per_s,
                lag=counts.lag,
                batch=progress.batchId,
            )
        )

    def query_began(self, run: str) -> None:
        with self._moved:
            self._running.add(run)

    def query_ended(self, run: str) -> None:
        with self._moved:
            self._running.discard(run)
            self._moved.notify_all()

    def settle(self, *, timeout_s: float) -> None:
        """Wait until all queries have reported their end."""
        with self._moved:
            self._moved.wait_for(lambda: not self._running, timeout_s)

    def batches_of(self, run: str) -> int:
        return self._batches_of.get(run, 0)

    def wait_batch(self, run: str, *, beyond: int, timeout_s: float) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._batches_of.get(run, 0) > beyond, timeout_s)


class _Listener(StreamingQueryListener):
    def __init__(self, progress: JobProgress) -> None:
        self._progress = progress

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's names
        self._progress.query_began(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._progress.batch_done(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._progress.query_ended(str(event.runId))


def _offsets(progress: StreamingQueryProgress) -> tuple[int, int, int | None]:
    """Return start, end and latest offset of a batch's sources, each summed over partitions."""
    start = end = latest = 0
    is_known = bool(progress.sources)
    for source in progress.sources:
        end += _total(source.endOffset)
        # The first batch of a query has no start offset; it is estimated from the rows.
        start += _total(source.startOffset) or _total(source.endOffset) - source.numInputRows
        if source.latestOffset in (None, "null"):
            is_known = False
        else:
            latest += _total(source.latestOffset)
    return start, end, latest if is_known else None


def _total(offset: str | None) -> int:
    try:
        return _sum_of(json.loads(offset)) if offset is not None else 0
    except ValueError:
        return 0


def _sum_of(value: Any) -> int:
    """Return the sum of all integers in a JSON value. Only differences of such sums are used."""
    if isinstance(value, dict):
        return sum(map(_sum_of, value.values()))
    if isinstance(value, list):
        return sum(map(_sum_of, value))
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _watch_tasks(spark: SparkSession, label: str, display: Display, done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    while True:
        is_last = done.wait(_TASKS_LOOK_S)
        for job in tracker.getActiveJobsIds():
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else []:
                details = tracker.getStageInfo(stage)
                if details is not None:
                    seen[stage] = (details.numCompletedTasks, details.numTasks)
        total = sum(each for _, each in seen.values())
        # At the end, some stages may have finished since they were last polled.
        done_count = total if is_last else sum(each for each, _ in seen.values())
        display.show(ProgressUpdate(label, done=done_count, total=total or None, unit="tasks"))
        if is_last:
            return
