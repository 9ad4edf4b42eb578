"""The ``penstock`` command: the tree of nouns, and the only code that turns errors into exit codes.

A user never sees a traceback, except with ``--debug``: a failure is three lines on stderr (what,
why, what to do) and an exit code from ``failure.ExitCode``. If the reader of a pipe closes it
early, as ``head`` does, the command ends silently and this is not a failure."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from penstock import __version__
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.lazy import Entry, LazyGroup
from penstock.cli.session import Settings, global_options

_RUN = "Run"
_USE = "Queues and messages"
_STREAM = "Topics and groups"
_ACCESS = "Who may do what"
_LOOK = "Measure and look after"
_PIPE = "Pipeline"
_LEARN = "Learn"

_ENTRIES = {
    "serve": Entry("penstock.cli.serve:serve", "Start a server on embedded defaults.", _RUN),
    "cluster": Entry(
        "penstock.cli.cluster:cluster",
        "Several nodes: status, drain, safe restarts; try one here with `up`.",
        _RUN,
    ),
    "queue": Entry(
        "penstock.cli.queue:queue",
        "Create, list, show, set, delete, purge queues; watch their numbers.",
        _USE,
    ),
    "message": Entry(
        "penstock.cli.message:message",
        "Send, receive, peek, tail, delete messages.",
        _USE,
    ),
    "dlq": Entry("penstock.cli.dlq:dlq", "Dead letters: list them and move them back.", _USE),
    "topic": Entry(
        "penstock.cli.topic:topic",
        "Create, list, show, set, delete topics; open one as a queue.",
        _STREAM,
    ),
    "group": Entry(
        "penstock.cli.group:group",
        "Consumer groups: list, show, lag, reset, delete.",
        _STREAM,
    ),
    "context": Entry(
        "penstock.cli.context:context", "Servers under a name: add, use, list, remove.", _ACCESS
    ),
    "tenant": Entry(
        "penstock.cli.tenant:tenant",
        "Create, list, show, suspend, resume, delete tenants.",
        _ACCESS,
    ),
    "user": Entry(
        "penstock.cli.user:user", "Create, list, show, delete users; set passwords.", _ACCESS
    ),
    "key": Entry(
        "penstock.cli.key:key", "Access keys: create, list, rotate, disable, delete.", _ACCESS
    ),
    "policy": Entry(
        "penstock.cli.policy:policy", "Show, put, remove policies; test who may do what.", _ACCESS
    ),
    "quota": Entry("penstock.cli.quota:quota", "How much and how fast a tenant may.", _ACCESS),
    "bench": Entry("penstock.cli.bench:bench", "Measure rate and latency of a server.", _LOOK),
    "doctor": Entry("penstock.cli.doctor:doctor", "Check machine, settings and server.", _LOOK),
    "storage": Entry(
        "penstock.cli.storage:storage", "Inspect and verify a data folder, offline.", _LOOK
    ),
    "coordinator": Entry(
        "penstock.cli.coordinator:coordinator",
        "Logs of coordinators: show an unreadable row, and skip it.",
        _LOOK,
    ),
    "definitions": Entry(
        "penstock.cli.definitions:definitions",
        "Queues and topics as a JSON file: export, import.",
        _LOOK,
    ),
    "backup": Entry(
        "penstock.cli.backup:backup", "Copy everything, verify copies, restore from one.", _LOOK
    ),
    "audit": Entry("penstock.cli.audit:audit", "The audit trail: who did what, and when.", _LOOK),
    "debug": Entry(
        "penstock.cli.debug:debug", "Collect what a bug report needs, without secrets.", _LOOK
    ),
    "usage": Entry("penstock.cli.usage:usage", "What tenants have used, added up.", _LOOK),
    "generate": Entry(
        "penstock.cli.generate:generate",
        "Write configuration, certificates, and files for systemd, Docker and Kubernetes.",
        _LOOK,
    ),
    "pipeline": Entry(
        "penstock.cli.pipeline:pipeline",
        "Spark jobs: run, watch, report, verify; needs penstock[spark].",
        _PIPE,
    ),
    "examples": Entry("penstock.cli.examples:examples", "Recipes to copy and paste.", _LEARN),
    "completion": Entry(
        "penstock.cli.completion:completion", "Tab completion for bash, zsh, fish.", _LEARN
    ),
}


@click.group(
    cls=LazyGroup,
    entries=_ENTRIES,
    params=global_options(from_environment=True),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", message="penstock %(version)s")
def root() -> None:
    """Penstock: a message queue that SQS clients already know.

    Start a server with `penstock serve`, then try `penstock queue create jobs`.
    """


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises."""
    settings = Settings()
    try:
        with root.make_context("penstock", list(args), obj=settings) as ctx:
            root.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        _forget_stdout()
        return ExitCode.OK
    except (KeyboardInterrupt, click.Abort) as error:
        _show_traceback(settings)
        if isinstance(error, click.Abort) or sys.stderr.isatty():
            click.echo(err=True)  # ends the line that the terminal wrote ^C on
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
    from penstock.model import errors

    if isinstance(error, Failure):
        return error
    if isinstance(error, errors.PenstockError):
        codes: tuple[tuple[type[errors.PenstockError], ExitCode], ...] = (
            (errors.NotFound, ExitCode.NOT_FOUND),
            (errors.Conflict, ExitCode.CONFLICT),
            (errors.AccessDenied, ExitCode.DENIED),
            (errors.Overloaded, ExitCode.UNREACHABLE),
            (errors.Damaged, ExitCode.UNHEALTHY),
        )
        if isinstance(error, errors.SetupError):
            return Failure(error.what, error.why, error.do, exit_code=ExitCode(error.code))
        code = next((code for kind, code in codes if isinstance(error, kind)), ExitCode.FAILED)
        return Failure("the command failed", str(error), exit_code=code)
    if isinstance(error, OSError) and error.strerror:
        place = f" '{error.filename}'" if error.filename else ""
        return Failure(f"cannot use{place or ' a file or socket'}", error.strerror)
    return Failure(
        "something unforeseen happened",
        f"{type(error).__name__}: {error}",
        "run it again with --debug and report what it shows",
    )


def _show_traceback(settings: Settings) -> None:
    if settings.debug:
        import traceback

        click.echo(traceback.format_exc(), err=True, nl=False)


def _forget_stdout() -> None:
    """Point stdout at /dev/null: flushing the closed pipe at exit would print an error."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
    except (OSError, ValueError):
        pass


if __name__ == "__main__":
    main()
