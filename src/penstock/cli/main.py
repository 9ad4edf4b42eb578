"""The ``penstock`` command with the table of its subcommands. Only this module turns errors into
exit codes. A failure prints three lines to stderr (what failed, why, what to do), and a traceback
with ``--debug``. It is not a failure if the reader of a pipe closes it early, as ``head`` does."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from penstock import __version__
from penstock.cli.clients.contexts import Settings
from penstock.cli.command import LazyGroup, Table, global_options
from penstock.cli.terminal.failure import ExitCode, Failure

COMMANDS: Table = {
    "Run": {
        "serve": ("setup.serve", "Start a server."),
        "cluster": ("cluster.up", "Show and change a cluster; run one on this machine with `up`."),
    },
    "Queues and messages": {
        "queue": (
            "queues.queue",
            "Create, list, show, set, delete, purge queues; show their counts.",
        ),
        "message": ("messages.message", "Send, receive, peek, tail, delete messages."),
        "dlq": ("queues.dlq", "List dead-letter queues and redrive messages."),
    },
    "Topics and groups": {
        "topic": ("topics.topic", "Create, list, show, set, delete topics; publish to SNS topics."),
        "group": ("topics.group", "List, show, reset, delete consumer groups; show their lag."),
        "subscription": (
            "topics.subscription",
            "Create, list, show, set, pause, test, replay, delete webhooks and subscriptions.",
        ),
    },
    "Servers, tenants and access": {
        "context": ("access.context", "Add, use, list, remove contexts (saved servers)."),
        "tenant": ("access.users", "Create, list, show, suspend, resume, delete tenants."),
        "user": ("access.users", "Create, list, show, delete users; set passwords."),
        "key": ("access.users", "Create, list, rotate, disable, delete access keys."),
        "policy": ("access.users", "Show, put, remove, test policies of users."),
        "quota": ("access.quota", "Show and set quotas of a tenant."),
    },
    "Operate": {
        "bench": ("operate.bench", "Measure the speed of a server."),
        "doctor": ("operate.doctor", "Check this machine, the settings and the server."),
        "storage": ("data.storage", "Inspect and verify a data folder on disk."),
        "coordinator": (
            "cluster.status",
            "Show or skip an unreadable row in the log of a group or transaction coordinator.",
        ),
        "definitions": ("data.definitions", "Export and import queues and topics as a JSON file."),
        "backup": ("data.backup", "Create, list, verify and restore backups."),
        "audit": ("operate.reports", "Show the audit trail."),
        "debug": ("operate.debug", "Collect the data for a bug report, without secrets."),
        "usage": ("operate.reports", "Report requests, messages and bytes of tenants."),
        "generate": (
            "setup.generate",
            "Generate configuration, certificates and deployment files.",
        ),
    },
    "Pipeline": {"pipeline": ("main", "Run and watch Spark jobs. Requires penstock[spark].")},
    "Learn": {
        "examples": ("setup.generate", "Print examples of code and commands to copy."),
        "completion": ("setup.generate", "Print the tab completion script for a shell."),
    },
}
# Only commands that need Spark import it, so the others work without the extra ``spark``.
PIPELINE: Table = {
    "Run": {
        "list": ("pipeline.watch:list_jobs", "List jobs."),
        "run": ("pipeline.run", "Run one job, once or continuously."),
        "replay": ("pipeline.run", "Send archived messages again (`run replay`)."),
    },
    "Watch": {
        "status": ("pipeline.watch", "Show the status of jobs."),
        "logs": ("pipeline.watch", "Show or follow the log of a job."),
    },
    "Ask": {
        "report": ("pipeline.run", "Write a report from the data in the lake."),
        "verify": ("pipeline.run", "Verify the data in the lake."),
    },
    "Prepare": {
        "doctor": ("pipeline.watch", "Check the requirements of the pipeline."),
        "warm": ("pipeline.watch", "Make Spark sessions start faster."),
        "cluster": ("pipeline.run", "Run a Spark cluster on this machine."),
    },
}
pipeline = LazyGroup(
    "pipeline",
    help="Run Spark jobs (archive, billing, audit, analysis) on the data in a folder, the lake.",
    table=PIPELINE,
)


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    params=global_options(from_environment=True),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", message="penstock %(version)s")
def root() -> None:
    """Penstock: a message queue for SQS and Kafka clients.

    Start a server with `penstock serve`, then try `penstock queue create jobs`."""


def run(args: Sequence[str]) -> int:
    settings = Settings()
    try:
        with root.make_context("penstock", list(args), obj=settings) as ctx:
            root.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        # stdout becomes /dev/null: flushing the closed pipe at exit would print an error.
        with suppress(OSError, ValueError), open(os.devnull, "w") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return ExitCode.OK
    except (KeyboardInterrupt, click.Abort) as error:
        _show_traceback(settings)
        if isinstance(error, click.Abort) or sys.stderr.isatty():
            click.echo(err=True)  # end the line on which the terminal wrote ^C
        return ExitCode.INTERRUPTED
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        _show_traceback(settings)
        failure = _as_failure(error)
        for line in failure.lines():
            click.echo(line, err=True)
        return failure.exit_code
    return ExitCode.OK


def main() -> NoReturn:
    if "_PENSTOCK_COMPLETE" in os.environ:
        root.main(prog_name="penstock")
    sys.exit(run(sys.argv[1:]))


def _as_failure(error: Exception) -> Failure:
    from penstock.cli.clients.kafka import failure_of
    from penstock.model import errors
    from penstock.net.kafka_client.errors import KafkaTrouble

    if isinstance(error, Failure):
        return error
    if isinstance(error, KafkaTrouble):
        return failure_of(error)
    if isinstance(error, errors.PenstockError):
        if isinstance(error, errors.SetupError):
            return Failure(error.what, error.why, error.do, exit_code=ExitCode(error.code))
        codes: dict[type[errors.PenstockError], ExitCode] = {
            errors.NotFound: ExitCode.NOT_FOUND,
            errors.Conflict: ExitCode.CONFLICT,
            errors.AccessDenied: ExitCode.DENIED,
            errors.Overloaded: ExitCode.UNREACHABLE,
            errors.Damaged: ExitCode.UNHEALTHY,
        }
        code = next((codes[kind] for kind in codes if isinstance(error, kind)), ExitCode.FAILED)
        return Failure("the command failed", str(error), exit_code=code)
    if isinstance(error, OSError) and error.strerror:
        place = f" '{error.filename}'" if error.filename else ""
        return Failure(f"cannot access{place or ' a file or socket'}", error.strerror)
    return Failure(
        "an unexpected error occurred",
        f"{type(error).__name__}: {error}",
        "run the command again with --debug and report the traceback",
    )


def _show_traceback(settings: Settings) -> None:
    if settings.debug:
        import traceback

        click.echo(traceback.format_exc(), err=True, nl=False)


if __name__ == "__main__":
    main()
