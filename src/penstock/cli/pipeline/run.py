"""The commands that run pipeline jobs, such as ``penstock pipeline run JOB``, one for every job in
the registry. Options that all jobs have are defined here; a job declares its other options."""

import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.clients.kafka import ADDRESS_DEFAULT, failure_of
from penstock.cli.command import Session, Verb
from penstock.cli.pipeline import watch
from penstock.cli.terminal.failure import Conflict, ExitCode, Failure, Misuse, Unhealthy
from penstock.cli.terminal.options import seconds
from penstock.cli.terminal.output import Column, is_drawing
from penstock.cli.topics.offsets import time_of
from penstock.net.kafka_client.client import KafkaTrouble
from penstock.pipeline.job import TRIGGER_S_DEFAULT, Job, JobMisused, Mode, NotFound, Unsound
from penstock.pipeline.registry import NoSuchJob, find_job, jobs_of
from penstock.pipeline.runs.status import JobRunning, Kind
from penstock.pipeline.session import MASTER_DEFAULT, SessionFailed
from penstock.pipeline.spark.java import JavaMissing

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from penstock.pipeline.runs.progress import ProgressUpdate
    from penstock.pipeline.runs.runner import Outcome, RunRequest

_EVERY_S_MAX = 86_400
_TIMES = "cannot start or end at"
_LINE_S_MIN = 5.0
_LABELS_MAX = 32  # further labels are not shown


class JobGroup(click.Group):
    """A group with one command per job. A job of another package is named ``module:ATTRIBUTE``."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        watch.require_extra()
        return list(jobs_of(str(self.name)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        watch.require_extra()
        try:
            return command_of(find_job(str(self.name), cmd_name), group=str(self.name))
        except NoSuchJob as error:
            known = ", ".join(self.list_commands(ctx)) or "none"
            raise click.UsageError(f"{error}. Known jobs: {known}.", ctx=ctx) from None


run = JobGroup(
    "run", help="Run a job, once over all available data or continuously. Ctrl-C stops it."
)
report = JobGroup("report", help="Write a report from the data in the lake.")


verify = JobGroup("verify", help="Verify the data in the lake. Exit code 8 if a check fails.")
cluster = JobGroup("cluster", help="Run a Spark cluster of several processes on this machine.")


class _Replay(click.Command):
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        command = run.get_command(click.Context(run), "replay")
        assert command is not None
        return command.make_context(*args, **extra)


replay = _Replay("replay", help="Send archived messages again; the same as `run replay`.")


def command_of(job: Job, *, group: str) -> click.Command:
    """Return the command of a job. Options of the job replace common options of the same name."""
    taken = {name for option in job.options for name in option.opts}

    def callback(session: Session, /, **given: Any) -> None:
        watch.require_extra()
        request = _request(session, job, group, given)
        outcome = _run(session, request)
        if outcome.error is not None:
            raise _failure(request, outcome) from outcome.error
        if outcome.signal is not None:
            raise click.exceptions.Exit(128 + outcome.signal)
        counts = outcome.counts
        if counts.batches:
            session.remark(f"{counts.rows:,} rows in {counts.batches:,} batches")

    params = [*_options(job, taken), *job.options]
    command = Verb(job.name, params=params, callback=callback, help=job.summary)
    own = set(map(id, job.options))
    command.params = [p for p in command.params if id(p) in own or not taken & set(p.opts)]
    return command


def _options(job: Job, taken: set[str]) -> list[click.Option]:
    options = watch.place_params()
    for names, text in (
        (["--from", "--since"], "start time of the data, inclusive"),
        (["--to", "--until"], "end time of the data, exclusive"),
    ):
        free = [name for name in names if name not in taken]
        options.append(click.Option([*free, names[1].lstrip("-")], metavar="TIME", help=text))
    text = "Kafka bootstrap server; the same as --kafka"
    options.append(click.Option(["--server"], metavar="HOST:PORT", help=text))
    if Mode.CONTINUOUS in job.modes:
        text = "process all available data once [default], or run until stopped"
        once = click.Option(["--once/--continuous", "is_once"], default=True, help=text)
        every = click.Option(
            ["--every"],
            type=seconds(0, _EVERY_S_MAX),
            metavar="DURATION",
            default=TRIGGER_S_DEFAULT,
            help=f"with --continuous: time between batches [default {TRIGGER_S_DEFAULT}s]",
        )
        options += [once, every]
    if job.needs_spark:
        text = f"Spark master: {MASTER_DEFAULT} [default], spark://HOST:PORT, yarn, k8s://URL"
        master = click.Option(["--master"], default=MASTER_DEFAULT, metavar="URL", help=text)
        text = "Spark setting, such as spark.executor.memory=4g; repeatable"
        conf = click.Option(["--conf"], multiple=True, metavar="KEY=VALUE", help=text)
        options += [master, conf]
    return options


def _request(session: Session, job: Job, group: str, given: dict[str, Any]) -> "RunRequest":
    from penstock.pipeline.runs.runner import RunRequest

    lake = given.pop("lake")
    folder = watch.folder_of(lake, option="--lake")
    checkpoints = watch.checkpoints_of(lake, given.pop("checkpoint"))
    watch.require_writable(folder, option="--lake")
    watch.require_writable(checkpoints, option="--checkpoint")
    is_once = given.pop("is_once", Mode.ONCE in job.modes)
    server, security = _server(session, given.pop("server"))
    for name in ("endpoint", "region"):  # global options that the job has too
        if given.get(name, "") is None:
            given[name] = getattr(session.settings, name)
    return RunRequest(
        job=job,
        kind=Kind.JOB if group == "run" else Kind(group),
        lake=folder,
        checkpoints=checkpoints,
        mode=Mode.ONCE if is_once else Mode.CONTINUOUS,
        trigger_s=given.pop("every", TRIGGER_S_DEFAULT),
        since_ms=time_of(given.pop("since"), what=_TIMES, option="--from"),
        until_ms=time_of(given.pop("until"), what=_TIMES, option="--to"),
        master=given.pop("master", MASTER_DEFAULT),
        conf=_conf(given.pop("conf", ())),
        server=server,
        security=security,
        arguments=given,
    )


def _run(session: Session, request: "RunRequest") -> "Outcome":
    from penstock.pipeline.runs.runner import run_job

    def show(rows: Iterable[Mapping[str, Any]]) -> None:
        found = list(rows)
        names = dict.fromkeys(name for row in found for name in row)
        numbers = {n for n in names if all(isinstance(r.get(n, 0), int | float) for r in found)}
        columns = [Column(n, n.upper().replace("_", " "), is_number=n in numbers) for n in names]
        display.close()  # so that bars do not mix with results
        session.out.many(found, columns=columns, name=next(iter(names), "name"))

    is_quiet = session.settings.quiet
    is_plain = is_quiet or os.environ.get("NO_COLOR") or not is_drawing(sys.stderr)
    display = Lines(is_quiet=is_quiet) if is_plain else Bars()
    try:
        return run_job(request, display, show=show)
    except JobRunning as error:
        raise Conflict(
            f"job '{request.job.name}' is already running",
            str(error),
            "stop that run first, or use another --checkpoint DIR",
        ) from None
    except JobMisused as error:
        raise _misused(request, error) from None
    except KafkaTrouble as trouble:
        raise failure_of(trouble, _cannot(request)) from None
    except (JavaMissing, SessionFailed) as error:
        raise Unhealthy(str(error)) from None
    finally:
        display.close()


def _cannot(request: "RunRequest") -> str:
    what = {"job": "run job", "report": "write report", "verify": "verify", "cluster": "run"}
    return f"cannot {what[request.kind]} '{request.job.name}'"


def _misused(request: "RunRequest", error: JobMisused) -> Failure:
    if isinstance(error, NotFound):
        code = ExitCode.NOT_FOUND
        return Failure(_cannot(request), error.reason, f"run `{error.fix}`", exit_code=code)
    return Misuse(_cannot(request), str(error))


def _failure(request: "RunRequest", outcome: "Outcome") -> Failure:
    error = outcome.error
    assert error is not None
    if isinstance(error, Unsound):
        return Unhealthy(outcome.reason)
    if isinstance(error, JobMisused):
        return _misused(request, error)
    return Failure(
        f"{request.kind} '{request.job.name}' failed",
        outcome.reason,
        f"see `penstock pipeline logs {request.name}`;"
        " the next run continues where this run stopped",
        exit_code=ExitCode.UNREACHABLE if outcome.is_transient else ExitCode.FAILED,
    )


def _conf(pairs: Iterable[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            why = "a Spark setting has the form spark.NAME=VALUE"
            raise Misuse(f"cannot use --conf '{pair}'", why)
        found[key] = value
    return found


def _server(session: Session, given: str | None) -> tuple[str, dict[str, str]]:
    """Return the Kafka listener's address, and its security settings as options for Spark."""
    if given is not None:
        session.settings.kafka = given
    try:
        kafka = session.kafka
    except Failure as failure:
        if session.settings.kafka is None and failure.exit_code is ExitCode.UNREACHABLE:
            return ADDRESS_DEFAULT, {}  # a job that needs the server will report that it is missing
        raise
    security = kafka.security
    properties = {
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.user,
        "sasl.password": security.password,
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.certificate_file,
        "ssl.key.location": security.key_file,
    }
    return kafka.address, {f"kafka.{key}": value for key, value in properties.items() if value}


# ── Progress: bars on a terminal, otherwise lines ────────────────────────────────────────────
# Both go to stderr; stdout is for results. A log file gets a line only when something has changed
# and some seconds have passed, so that a job that runs for months does not fill it.


def figures(reading: "ProgressUpdate") -> str:
    parts = []
    if reading.batch is not None:
        parts.append(f"batch {reading.batch:,}")
    if reading.rows_per_s:
        parts.append(f"{reading.rows_per_s:,.0f} rows/s")
    if reading.lag is not None:
        parts.append(f"lag {reading.lag:,}")
    return ", ".join(parts)


class Lines:
    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._stream = sys.stderr  # bound now: while a job runs, sys.stderr is the job's log
        self._said: dict[str, float] = {}
        self._lock = threading.Lock()

    def show(self, reading: "ProgressUpdate") -> None:
        now = time.monotonic()
        with self._lock:
            is_whole = reading.total is not None and reading.done >= reading.total
            said = self._said.get(reading.label)
            if said is not None and now - said < _LINE_S_MIN and not is_whole:
                return
            if said is None and len(self._said) >= _LABELS_MAX:
                return
            self._said[reading.label] = now
        of = f" of {reading.total:,}" if reading.total is not None else ""
        rest = figures(reading)
        done = f"{reading.label}: {reading.done:,}{of} {reading.unit}"
        self.note(f"{done}, {rest}" if rest else done)

    def note(self, text: str) -> None:
        if not self._is_quiet:
            click.echo(text, file=self._stream)

    def close(self) -> None:
        pass


class Bars:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bars: RichProgress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=Console(file=sys.stderr),  # bound now, as in Lines
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        # Spark takes seconds to start: show movement until there is progress to show.
        self._waiting: TaskID | None = self._bars.add_task("starting", total=None, figures="")
        self._bars.start()

    def show(self, reading: "ProgressUpdate") -> None:
        with self._lock:
            if self._waiting is not None:
                self._bars.remove_task(self._waiting)
                self._waiting = None
            task = self._tasks.get(reading.label)
            if task is None:
                if len(self._tasks) >= _LABELS_MAX:
                    return
                task = self._bars.add_task(reading.label, total=None, figures="")
                self._tasks[reading.label] = task
        changes: dict[str, Any] = {"completed": reading.done, "figures": figures(reading)}
        self._bars.update(task, total=reading.total, **changes)

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bars.stop()
