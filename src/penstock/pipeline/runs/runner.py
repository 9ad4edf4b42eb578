"""Runs one job in this process, from its claim on the checkpoint folder to its last status.

    claim ─► log ─► session ─► job.run ──► done
                       ▲          ├──► Stopped      a signal: the current batch was finished
                       └── pause ─┤    transient    retried from the same checkpoint, with a limit
                                  └──► failed       any other error

Spark reports errors as text, so the text is searched for known transient errors, after which the
checkpoint is intact; all other errors count as permanent.

A stream is stopped between two batches, because Spark's ``stop`` would discard the current one.
Signals are read from a pipe (``set_wakeup_fd``): a Python handler runs in the main thread, which
usually waits for Spark, and it could interrupt any line, even one that holds a lock."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.net.kafka_client.errors import KafkaRefused, KafkaTrouble
from penstock.pipeline.job import (
    TRIGGER_S_DEFAULT,
    Job,
    JobContext,
    JobMisused,
    Mode,
    Stopped,
    Unsound,
)
from penstock.pipeline.lake import Lake
from penstock.pipeline.runs.logs import JobLog
from penstock.pipeline.runs.progress import Display, JobProgress, RunCounts
from penstock.pipeline.runs.status import (
    ERROR_CHARACTERS_MAX,
    Claim,
    Kind,
    State,
    Status,
    write_status,
)
from penstock.pipeline.session import MASTER_DEFAULT, close_session, jvm_pid, open_session
from penstock.wire.kafka.faults import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ERRORS = re.escape(KafkaTrouble.__module__)  # tracebacks show classes with their module
_REFUSALS = "|".join(code.name for code in ErrorCode if KafkaRefused(code).is_passing)
_PASSING = re.compile(
    r"Python worker exited unexpectedly"
    r"|Python worker failed to connect back"
    r"|Connection (?:refused|reset)"
    r"|Connection(?:Refused|Reset|Aborted)Error"
    r"|BrokenPipeError|Broken pipe"
    r"|java\.io\.EOFException"
    r"|java\.net\.Socket(?:Timeout)?Exception"
    r"|Answer from Java side is empty|Error while (?:sending|receiving)"  # the JVM has ended
    rf"|\b{_ERRORS}\.(?:Unreachable|HungUp|TimedOut)\b"
    rf"|\b{_ERRORS}\.KafkaRefused: .*\((?:{_REFUSALS})\)"
)
_PYTHON_END = re.compile(r"[A-Za-z_][\w.]*: ")
_FRAME = re.compile(
    r"^\[STREAM_FAILED\] Query .*? terminated with exception:|SQLSTATE: \w+$|^JVM stacktrace:"
)
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_CAUSES_MAX = 16  # a chain of causes may be cyclic


def is_transient(error: BaseException) -> bool:
    for cause in _chain(error):
        if isinstance(cause, KafkaTrouble):
            return cause.is_passing
        if isinstance(cause, ConnectionError) or _PASSING.search(_text(cause)):
            return True
    return False


def reason_of(error: BaseException) -> str:
    """Return the cause of an error in one line: the last line of a Python traceback, else the first
    line of Spark's text without prefix and SQLSTATE, else the innermost exception of the JVM."""
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    in_python = [line for line in lines if _PYTHON_END.match(line)]
    if in_python and any(line.startswith("Traceback (most recent") for line in lines):
        chosen = in_python[-1]
    else:
        chosen = _FRAME.sub("", lines[0]).strip() if lines else ""
    if not chosen:
        causes = [found for each in _chain(error) for found in _CAUSED_BY.findall(_text(each))]
        chosen = causes[-1] if causes else type(error).__name__
    return " ".join(chosen.split())[:ERROR_CHARACTERS_MAX]


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _text(error: BaseException) -> str:
    """Return an error's text, or a substitute if the text was in a JVM that has ended."""
    try:
        return str(error)
    except Exception:
        return str(getattr(error, "_desc", "") or type(error).__name__)


RESTARTS_MAX = 5  # consecutive, without a finished batch between them
_PAUSE_S, _PAUSE_S_MAX = 1.0, 30.0
_DRAIN_S_MAX = 300.0  # for the current batch; after that it is discarded, and repeated next time
_SETTLE_S_MAX = 60.0  # for the last events of Spark, which come late on a busy machine
_LOOK_S = 0.1
_STATUS_S_MIN = 0.5  # between two writes of the status
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class RunRequest:
    job: Job
    server: str
    lake: Path
    checkpoints: Path  # contains the job's folder
    mode: Mode = Mode.ONCE
    trigger_s: int = TRIGGER_S_DEFAULT
    since_ms: int | None = None
    until_ms: int | None = None
    master: str = MASTER_DEFAULT
    conf: Mapping[str, str] = field(default_factory=dict)
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_short: bool = False
    kind: Kind = Kind.JOB

    @property
    def name(self) -> str:
        """Return the name of the job's folder. ``pipeline logs`` takes the same name."""
        return self.job.name if self.kind is Kind.JOB else f"{self.kind}-{self.job.name}"

    @property
    def folder(self) -> Path:
        return self.checkpoints / self.name


class Outcome(NamedTuple):
    state: State
    counts: RunCounts
    signal: int | None = None  # the signal that stopped the job
    error: Exception | None = None
    reason: str = ""
    is_transient: bool = False  # more retries might have succeeded


def run_job(
    request: RunRequest,
    display: Display,
    *,
    show: Callable[[Iterable[Mapping[str, Any]]], None],
) -> Outcome:
    """Run a job to its end. Meanwhile ``sys.stderr`` is the job's log; a display that draws to the
    original stderr must have saved it before. Raises JobMisused, KafkaTrouble, JobRunning,
    JavaMissing, SessionFailed before the job starts; the outcome contains later errors."""
    if request.job.check is not None:
        request.job.check(_context(request))
    claim = Claim(request.folder)
    try:
        with JobLog(request.folder) as log:
            run = _Run(request, display, log, show)
            with run.listening(), contextlib.redirect_stderr(log.text()):
                return run.to_the_end()
    finally:
        claim.close()


def _context(request: RunRequest, **rest: Any) -> JobContext:
    nothing: Any = None
    return JobContext(
        **{"spark": nothing, "progress": nothing, **rest},
        server=request.server,
        lake=Lake(request.lake),
        checkpoint=request.folder,
        mode=request.mode,
        since_ms=request.since_ms,
        until_ms=request.until_ms,
        trigger_s=request.trigger_s,
        arguments=request.arguments,
        security=request.security,
    )


@dataclass(eq=False)
class _Run:
    _request: RunRequest
    _display: Display
    _log: JobLog
    _show: Callable[[Iterable[Mapping[str, Any]]], None]
    _restarts: int = 0
    _started_at_ms: int = field(default_factory=lambda: _now_ms())
    _written_at: float = 0.0
    _state: State = State.STARTING
    _error: str = ""
    _status_lock: threading.Lock = field(default_factory=threading.Lock)
    _spark: SparkSession | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _signal: int | None = None
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.progress = JobProgress(self._display, self._log.line, self._on_counts)

    def to_the_end(self) -> Outcome:
        self._log.line(f"job {self._request.job.name} starts, mode {self._request.mode.value}")
        self._enter(State.STARTING)
        outcome = Outcome(State.FAILED, RunCounts(), reason="the runner was interrupted")
        try:
            outcome = self._attempts()
        except Exception as error:
            outcome = self._outcome(State.FAILED, error, reason_of(error))
            raise
        finally:
            self._close()
            self._enter(outcome.state, error=outcome.reason)
            self._log.line(
                f"job {self._request.job.name} ends: {outcome.state.value} {outcome.reason}"
            )
        return outcome

    def _attempts(self) -> Outcome:
        in_a_row = 0
        while True:
            batches_before = self.progress.counts.batches
            try:
                try:
                    self._run_once()
                finally:
                    if jvm_pid() is not None:  # a dead JVM sends no more events
                        self.progress.settle(timeout_s=_SETTLE_S_MAX)
            except Stopped:
                return self._outcome(State.STOPPED)
            except (Unsound, JobMisused) as error:
                return self._outcome(State.FAILED, error, str(error))
            except Exception as error:
                if self._signal is not None:
                    return self._outcome(State.STOPPED)
                if self._spark is None and self._request.job.needs_spark and not self._restarts:
                    raise  # no session: the job has not started
                reason, is_passing = reason_of(error), is_transient(error)
                in_a_row = 1 if self.progress.counts.batches > batches_before else in_a_row + 1
                if not is_passing or in_a_row > RESTARTS_MAX:
                    self._log.text().write("".join(traceback.format_exception(error)))
                    return self._outcome(State.FAILED, error, reason, is_passing=is_passing)
                self._pause(in_a_row, reason)
            else:
                is_stopped = self._signal is not None
                return self._outcome(State.STOPPED if is_stopped else State.DONE)

    def _run_once(self) -> None:
        spark = self._session() if self._request.job.needs_spark else None
        if self._stopping.is_set():
            raise Stopped
        self._enter(State.RUNNING)
        self._request.job.run(
            _context(
                self._request,
                spark=spark,
                progress=self.progress,
                stopping=self._stopping,
                show=self._show,
            )
        )

    def _outcome(
        self,
        state: State,
        error: Exception | None = None,
        reason: str = "",
        *,
        is_passing: bool = False,
    ) -> Outcome:
        signal_number = self._signal if state is State.STOPPED else None
        return Outcome(state, self.progress.counts, signal_number, error, reason, is_passing)

    def _pause(self, in_a_row: int, reason: str) -> None:
        self._restarts += 1
        pause_s = min(_PAUSE_S * 2 ** (in_a_row - 1), _PAUSE_S_MAX)
        self._enter(State.RESTARTING, error=reason)
        self.progress.note(
            f"{reason}; trying again in {pause_s:g} s ({in_a_row} of {RESTARTS_MAX})"
        )
        self._stopping.wait(pause_s)

    def _session(self) -> SparkSession:
        if self._spark is not None and jvm_pid() is None:
            self._close()  # the JVM has ended, and this attempt needs a new one
        if self._spark is None:
            request = self._request
            self._spark = open_session(
                f"penstock {request.job.name}",
                master=request.master,
                conf=request.conf,
                is_short=request.is_short,
                output=self._log.descriptor,
                log_level="warn",
            )
            self.progress.attach(self._spark)
        return self._spark

    def _close(self) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            close_session(spark)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Stop the job on signals: the first stops it after the current batch, the second at once.
        Outside the main thread, signals are left to the caller."""
        reader, writer = os.pipe()  # the number of each signal, as a byte
        os.set_blocking(writer, False)  # required by signal.set_wakeup_fd
        thread = threading.Thread(target=self._listen, args=(reader,), name="stopper", daemon=True)
        thread.start()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            writer_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            before = {number: signal.signal(number, _heard_already) for number in SIGNALS}
        try:
            yield
        finally:
            if is_main:
                for number, handler in before.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(writer_before)
            self._is_over.set()
            os.close(writer)
            thread.join()
            os.close(reader)

    def _listen(self, reader: int) -> None:
        while heard := os.read(reader, 1):
            if heard[0] not in SIGNALS:
                continue  # a signal with another handler
            if self._signal is not None:
                self._end_at_once(heard[0])
            self._signal = heard[0]
            self._stopping.set()
            threading.Thread(target=self._drain, name="drain", daemon=True).start()

    def _drain(self) -> None:
        """Stop each query after its current batch, and repeat this until the job has ended."""
        self._enter(State.STOPPING)
        self.progress.note("stopping after the current batch; stop again to end it at once")
        while not self._is_over.wait(_LOOK_S):
            spark = self._spark
            if spark is None:
                continue
            try:
                active = spark.streams.active
                for query in active:
                    self._finish_batch(query)
                    query.stop()
                if not active and not self._request.job.is_draining:
                    spark.sparkContext.cancelAllJobs()
            except Exception as error:
                # The session is closing or closed, so there is nothing to stop.
                self._log.line(f"error while stopping: {reason_of(error)[:500]}")

    def _finish_batch(self, query: Any) -> None:
        run = str(query.runId)
        finished = self.progress.batches_of(run)
        deadline = time.monotonic() + _DRAIN_S_MAX
        while query.isActive and query.status["isTriggerActive"]:
            self.progress.wait_batch(run, beyond=finished, timeout_s=_LOOK_S)
            if self.progress.batches_of(run) > finished or time.monotonic() > deadline:
                return

    def _end_at_once(self, number: int) -> None:
        pid = jvm_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._enter(State.STOPPED, error="the job was ended within a batch")
        self._display.close()
        os._exit(128 + number)

    def _on_counts(self, _counts: RunCounts) -> None:
        if time.monotonic() - self._written_at >= _STATUS_S_MIN:
            self._write()

    def _enter(self, state: State, *, error: str | None = None) -> None:
        self._state = state
        if error is not None:
            self._error = error
        self._write()

    def _write(self) -> None:
        with self._status_lock:
            counts = self.progress.counts
            self._written_at = time.monotonic()
            status = Status(
                job=self._request.job.name,
                state=self._state,
                pid=os.getpid(),
                mode=self._request.mode.value,
                started_at_ms=self._started_at_ms,
                updated_at_ms=_now_ms(),
                restarts=self._restarts,
                error=self._error[:ERROR_CHARACTERS_MAX],
                kind=self._request.kind,
                **{**asdict(counts), "rows_per_s": round(counts.rows_per_s, 1)},
            )
            try:
                write_status(self._request.folder, status)
            except OSError as error:
                self._log.line(f"cannot write the status file: {error}")  # the job continues


def _heard_already(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. Signals are read from a pipe, but without a handler they end the process."""


def _now_ms() -> int:
    return int(time.time() * 1_000)
