"""``penstock pipeline run JOB`` and similar groups: a command for every job in the registry.

Options that all jobs have are defined here; a job declares its other options. The job is run by
``penstock.pipeline.runner``; here its outcome becomes text and an exit code."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column
from penstock.cli.pipeline_place import (
    checkpoint_option,
    checkpoints_of,
    folder_of,
    lake_option,
    require_extra,
    require_writable,
)
from penstock.cli.quantity import seconds
from penstock.cli.session import Session, Verb, pass_session

if TYPE_CHECKING:
    from penstock.net.kafka_login import Security
    from penstock.pipeline.job import Job, JobMisused
    from penstock.pipeline.runner import Ending, Wish

_EVERY_S_MAX = 86_400


class JobGroup(click.Group):
    """The jobs of one group as its commands; a job of another package is ``module:ATTRIBUTE``."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        require_extra()
        from penstock.pipeline.registry import jobs_of

        return list(jobs_of(str(self.name)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        require_extra()
        from penstock.pipeline.registry import NoSuchJob, find_job

        try:
            return command_of(find_job(str(self.name), cmd_name), group=str(self.name))
        except NoSuchJob as error:
            known = ", ".join(self.list_commands(ctx)) or "none"
            raise click.UsageError(f"{error}. There are: {known}.", ctx=ctx) from None


@click.group(cls=JobGroup)
def run() -> None:
    """Run one job: once over all that is there, or continuously."""


@click.group(cls=JobGroup)
def report() -> None:
    """Write a report from what the jobs have put into the lake."""


@click.group(cls=JobGroup)
def verify() -> None:
    """Check what is in the lake; exit code 8 when something is wrong."""


@click.group(cls=JobGroup)
def cluster() -> None:
    """Run a Spark cluster of several processes on this machine."""


class _Replay(click.Command):
    """``pipeline replay`` is ``pipeline run replay``."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        command = run.get_command(click.Context(run), "replay")
        assert command is not None
        return command.make_context(info_name, args, parent, **extra)


replay = _Replay("replay", help="Send archived messages again; as `run replay`.")


def command_of(job: "Job", *, group: str) -> click.Command:
    """Return the command of a job. An option of the job replaces ours of the same name; ``--since``
    and ``--until`` exist for jobs that use ``--from`` and ``--to`` for something else."""
    taken = {name for option in job.options for name in option.opts}
    command = Verb(
        job.name,
        params=[*_options(job, taken), *job.options],
        callback=pass_session(_Callback(job, group)),
        help=job.summary,
    )
    own = set(map(id, job.options))
    command.params = [p for p in command.params if id(p) in own or not taken & set(p.opts)]
    return command


def _times(taken: set[str]) -> list[click.Option]:
    return [
        click.Option(
            [*(name for name in names if name not in taken), names[1].lstrip("-")],
            metavar="TIME",
            help=text,
        )
        for names, text in (
            (("--from", "--since"), "what is from TIME or later"),
            (("--to", "--until"), "what is from before TIME"),
        )
    ]


def _options(job: "Job", taken: set[str]) -> list[click.Option]:
    from penstock.pipeline.job import TRIGGER_S_DEFAULT, Mode
    from penstock.pipeline.session import MASTER_DEFAULT

    options = [lake_option(), checkpoint_option(), *_times(taken)]
    options += [
        click.Option(["--server"], metavar="HOST:PORT", help="Kafka listener; as --kafka"),
    ]
    if Mode.CONTINUOUS in job.modes:
        options += [
            click.Option(
                ["--once/--continuous", "is_once"],
                default=True,
                help="all that is there, then end [default]; or go on until stopped",
            ),
            click.Option(
                ["--every"],
                type=seconds(0, _EVERY_S_MAX),
                metavar="DURATION",
                default=TRIGGER_S_DEFAULT,
                help=f"look for new records so often [default {TRIGGER_S_DEFAULT}s]",
            ),
        ]
    if job.needs_spark:
        options += [
            click.Option(
                ["--master"],
                default=MASTER_DEFAULT,
                metavar="URL",
                help=f"of Spark: {MASTER_DEFAULT} [default], spark://HOST:PORT, yarn, k8s://URL",
            ),
            click.Option(
                ["--conf"], multiple=True, metavar="KEY=VALUE", help="setting of Spark; repeatable"
            ),
        ]
    return options


class _Callback:
    """The callback of click, which turns options into the parameters of a job."""

    def __init__(self, job: "Job", group: str) -> None:
        self._job = job
        self._group = group
        self.__name__ = job.name

    def __call__(self, session: Session, /, **given: Any) -> None:
        require_extra()
        wish = self._wish(session, given)
        ending = _run(session, wish)
        if ending.error is not None:
            raise _failure(wish, ending) from ending.error
        if ending.signal is not None:
            raise click.exceptions.Exit(128 + ending.signal)
        tally = ending.tally
        if tally.batches:
            session.remark(f"{tally.rows:,} rows in {tally.batches:,} batches")

    def _wish(self, session: Session, given: dict[str, Any]) -> "Wish":
        from penstock.pipeline.job import TRIGGER_S_DEFAULT, Mode
        from penstock.pipeline.runner import Wish
        from penstock.pipeline.session import MASTER_DEFAULT
        from penstock.pipeline.status import Kind

        job = self._job
        lake = given.pop("lake")
        folder = folder_of(lake, option="--lake")
        checkpoints = checkpoints_of(lake, given.pop("checkpoint"))
        require_writable(folder, option="--lake")
        require_writable(checkpoints, option="--checkpoint")
        is_once = given.pop("is_once", Mode.ONCE in job.modes)
        server, security = _server(session, given.pop("server"))
        return Wish(
            job=job,
            kind=Kind.JOB if self._group == "run" else Kind(self._group),
            lake=folder,
            checkpoints=checkpoints,
            mode=Mode.ONCE if is_once else Mode.CONTINUOUS,
            trigger_s=given.pop("every", TRIGGER_S_DEFAULT),
            since_ms=_moment(given.pop("since"), option="--from"),
            until_ms=_moment(given.pop("until"), option="--to"),
            master=given.pop("master", MASTER_DEFAULT),
            conf=_conf(given.pop("conf", ())),
            server=server,
            security=security,
            arguments={**given, **_shared(session, given)},
        )


def _shared(session: Session, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return global options that the job has too and that were not given to it."""
    settings = session.settings
    known = {"endpoint": settings.endpoint, "region": settings.region}
    return {name: value for name, value in known.items() if given.get(name, "") is None}


def _run(session: Session, wish: "Wish") -> "Ending":
    from penstock.cli.kafka_client import failure_of
    from penstock.cli.pipeline_display import display_for
    from penstock.net.kafka_client import KafkaTrouble
    from penstock.pipeline.java import JavaMissing
    from penstock.pipeline.job import JobMisused
    from penstock.pipeline.runner import run_job
    from penstock.pipeline.session import SessionFailed
    from penstock.pipeline.status import JobRunning

    def show(rows: Iterable[Mapping[str, Any]]) -> None:
        found = list(rows)
        names = dict.fromkeys(name for row in found for name in row)
        numbers = {n for n in names if all(isinstance(r.get(n, 0), int | float) for r in found)}
        columns = [Column(n, n.upper().replace("_", " "), is_number=n in numbers) for n in names]
        display.close()  # results must not be mixed with bars
        session.out.many(found, columns=columns, name=next(iter(names), "name"))

    display = display_for(is_quiet=session.settings.quiet)
    try:
        return run_job(wish, display, show=show)
    except JobRunning as error:
        raise Failure(
            f"job '{wish.job.name}' is running already",
            str(error),
            "stop that one first, or give this one another --checkpoint",
            exit_code=ExitCode.CONFLICT,
        ) from None
    except JobMisused as error:
        raise _misused(wish, error) from None
    except KafkaTrouble as trouble:
        raise failure_of(trouble, _cannot(wish)) from None
    except (JavaMissing, SessionFailed) as error:
        raise Failure(str(error), exit_code=ExitCode.UNHEALTHY) from None
    finally:
        display.close()


def _cannot(wish: "Wish") -> str:
    what = {"job": "run job", "report": "write report", "verify": "verify", "cluster": "run"}
    return f"cannot {what[wish.kind]} '{wish.job.name}'"


def _misused(wish: "Wish", error: "JobMisused") -> Failure:
    from penstock.pipeline.job import NotFound

    if isinstance(error, NotFound):
        code = ExitCode.NOT_FOUND
        return Failure(_cannot(wish), error.why, f"run `{error.fix}`", exit_code=code)
    return Failure(_cannot(wish), str(error), exit_code=ExitCode.USAGE)


def _failure(wish: "Wish", ending: "Ending") -> Failure:
    from penstock.pipeline.job import JobMisused, Unsound

    error = ending.error
    assert error is not None
    if isinstance(error, Unsound):
        return Failure(ending.reason, exit_code=ExitCode.UNHEALTHY)
    if isinstance(error, JobMisused):
        return _misused(wish, error)
    return Failure(
        f"{wish.kind} '{wish.job.name}' failed",
        ending.reason,
        f"`penstock pipeline logs {wish.name}` has the details; the next run goes on where it was",
        exit_code=ExitCode.UNREACHABLE if ending.is_transient else ExitCode.FAILED,
    )


# ── Parsing ──────────────────────────────────────────────────────────────────────────────────


def _moment(text: str | None, *, option: str) -> int | None:
    import time

    from penstock.cli.kafka_client import EARLIEST, LATEST
    from penstock.cli.log_place import target_of

    if text is None:
        return None
    target = target_of(text, int(time.time() * 1_000), what="cannot begin or end at", option=option)
    if target.time is None:
        raise Failure(
            f"cannot use {option} '{text}'",
            "that is a place in a log and not a time",
            "write a time like 2026-01-31T12:00:00Z, or -90m for so long ago",
            exit_code=ExitCode.USAGE,
        )
    return None if target.time in (EARLIEST, LATEST) else target.time


def _conf(pairs: Iterable[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise Failure(
                f"cannot use --conf '{pair}'",
                "a setting of Spark is spark.NAME=VALUE",
                exit_code=ExitCode.USAGE,
            )
        found[key] = value
    return found


def _server(session: Session, given: str | None) -> tuple[str, dict[str, str]]:
    """Return address and credentials of the Kafka listener, found as by other commands; credentials
    as options of the source."""
    from penstock.cli.kafka_client import ADDRESS_DEFAULT

    if given is not None:
        session.settings.kafka = given
    try:
        kafka = session.kafka
    except Failure as failure:
        if session.settings.kafka is None and failure.exit_code is ExitCode.UNREACHABLE:
            return ADDRESS_DEFAULT, {}  # a job that needs the server will report that it is missing
        raise
    return kafka.address, source_security(kafka.security)


def source_security(security: "Security") -> dict[str, str]:
    """Return the options of the source that ``penstock.net.kafka_login.security_from`` reads."""
    properties = {
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.user,
        "sasl.password": security.password,
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.certificate_file,
        "ssl.key.location": security.key_file,
    }
    return {f"kafka.{key}": value for key, value in properties.items() if value}
