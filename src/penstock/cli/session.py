"""What every command gets: the global options, the three clients, and the output.

Global options are accepted before the noun and after the verb (``penstock -o json queue list`` and
``penstock queue list -o json``); the one nearer to the verb wins. Clients are created at first use,
so a command that only reads a file opens no connection."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.types import StringParamType

from penstock.cli import contexts, quantity
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import FORMATS, Output

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from penstock.cli.client import Admin, Sqs
    from penstock.cli.kafka_client import Kafka

ENDPOINT_DEFAULT = "http://127.0.0.1:9324"
REGION_DEFAULT = "us-east-1"
TIMEOUT_S_DEFAULT = 30.0


@dataclasses.dataclass(slots=True)
class Settings:
    endpoint: str = ENDPOINT_DEFAULT
    admin: str | None = None  # None: reported by the endpoint
    kafka: str | None = None  # None: reported by the endpoint, or by the admin API if that is given
    region: str = REGION_DEFAULT
    account: str | None = None  # None: the server's default
    timeout_s: float = TIMEOUT_S_DEFAULT
    output: str | None = None  # None: depends on stdout
    quiet: bool = False
    debug: bool = False
    context: str | None = None  # None: the current one
    explicit: set[str] = dataclasses.field(default_factory=set)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    settings = ctx.find_root().ensure_object(Settings)
    assert param.name is not None
    source = ctx.get_parameter_source(param.name)
    if source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        setattr(settings, param.name, value)
        settings.explicit.add(param.name)


def global_options(*, from_environment: bool) -> list[click.Option]:
    """Return the options of the root, which also reads the environment, or of a verb, which must
    not: there a variable would win over a flag written before the noun."""

    def option(*names: str, envvar: list[str] | None = None, **rest: Any) -> click.Option:
        return click.Option(
            names,
            envvar=envvar if from_environment else None,
            expose_value=False,
            callback=_remember,
            **rest,
        )

    return [
        option(
            "--endpoint",
            metavar="URL",
            envvar=["PENSTOCK_ENDPOINT"],
            help=f"SQS endpoint [env PENSTOCK_ENDPOINT, default {ENDPOINT_DEFAULT}]",
        ),
        option(
            "--admin",
            metavar="URL",
            envvar=["PENSTOCK_ADMIN"],
            help="admin API [env PENSTOCK_ADMIN, default: ask the endpoint]",
        ),
        option(
            "--kafka",
            metavar="[PROTOCOL://]HOST:PORT",
            envvar=["PENSTOCK_KAFKA"],
            help="Kafka listener [env PENSTOCK_KAFKA, default: ask the endpoint]",
        ),
        option(
            "--region",
            envvar=["PENSTOCK_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"],
            help=f"namespace of queue names [env AWS_REGION, default {REGION_DEFAULT}]",
        ),
        option(
            "--account",
            envvar=["PENSTOCK_ACCOUNT"],
            help="twelve digits [env PENSTOCK_ACCOUNT, default: the server's]",
        ),
        option(
            "--timeout",
            "timeout_s",
            metavar="DURATION",
            type=quantity.some_seconds(0.001, 86_400),
            envvar=["PENSTOCK_TIMEOUT"],
            help=f"longest wait for one answer [default {TIMEOUT_S_DEFAULT:g}]",
        ),
        option(
            "-o",
            "--output",
            type=click.Choice(FORMATS),
            envvar=["PENSTOCK_OUTPUT"],
            help="default: table on a terminal, else json for one thing, ndjson for many",
        ),
        option(
            "--context",
            metavar="NAME",
            envvar=["PENSTOCK_CONTEXT"],
            help="saved server [env PENSTOCK_CONTEXT, default: `penstock context use`]",
        ),
        option("-q", "--quiet", is_flag=True, help="no progress and no remarks on stderr"),
        option("--debug", is_flag=True, help="show the traceback of an error"),
    ]


class Name(StringParamType):
    """A string that may name a queue, topic, group, user, tenant or context."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from penstock.cli.names import completed

        return [CompletionItem(each) for each in completed(ctx, param, incomplete)]


class Verb(click.Command):
    """A leaf command, whose help shows global options in a separate section after its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._global = global_options(from_environment=False)
        self.params.extend(self._global)
        for param in self.params:
            if param.type is click.STRING:
                param.type = _NAME

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None and isinstance(param, click.Option):
                (shared if param in self._global else own).append(row)
        for title, rows in (("Options", own), ("Global options", shared)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


_NAME = Name()


class Noun(click.Group):
    command_class = Verb

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)  # in order of definition: the common ones first


class Session:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.out = Output(settings.output)
        self._sqs: Sqs | None = None
        self._admin: Admin | None = None
        self._kafka: Kafka | None = None

    @property
    def sqs(self) -> "Sqs":
        if self._sqs is None:
            from penstock.cli.client import Sqs

            settings = self.settings
            self._sqs = Sqs(
                settings.endpoint,
                region=settings.region,
                account=settings.account,
                timeout_s=settings.timeout_s,
            )
        return self._sqs

    @property
    def admin(self) -> "Admin":
        if self._admin is None:
            from penstock.cli.client import Admin, as_seen_from

            settings = self.settings
            url, account_default = settings.admin, None
            if url is None:
                info = self.sqs.info()
                url = as_seen_from(settings.endpoint, str(info["admin"]))
                # The account that the SQS API uses, so that both APIs show the same queues.
                account_default = info.get("account")
            self._admin = Admin(
                url,
                region=settings.region,
                account=settings.account,
                timeout_s=settings.timeout_s,
                account_default=account_default,
            )
        return self._admin

    @property
    def kafka(self) -> "Kafka":
        if self._kafka is None:
            from penstock.cli.kafka_access import dialled

            self._kafka = dialled(self)
        return self._kafka

    def remark(self, text: str) -> None:
        """Print a sentence for a person, to stderr, so that a pipe never gets it."""
        if not self.settings.quiet:
            click.echo(text, err=True)

    def close(self) -> None:
        for client in (self._sqs, self._admin, self._kafka):
            if client is not None:
                client.close()


def pass_session(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a session to a command and always close it when the command ends."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        ctx = click.get_current_context()
        settings = ctx.find_root().ensure_object(Settings)
        if ctx.parent is None or ctx.parent.info_name != "context":  # this noun repairs the file
            contexts.apply(settings)
        session = Session(settings)
        ctx.call_on_close(session.close)
        try:
            command(session, *args, **kwargs)
        except Failure as failure:
            if failure.exit_code is ExitCode.NOT_FOUND:
                from penstock.cli.names import suggest

                suggest(ctx, session, failure)
            raise

    return call


def confirm_name(name: str, *, verb: str, is_sure: bool) -> None:
    """Let the user type the name again before a destructive command: "y" is typed too easily."""
    if is_sure:
        return
    refusal = Failure(
        f"did not {verb} '{name}'",
        "nobody confirmed it: stdin is not a terminal",
        "add --yes when you are sure",
        exit_code=ExitCode.USAGE,
    )
    if not sys.stdin.isatty():
        raise refusal
    question = f"This will {verb} '{name}'. Type its name to go on"
    typed = click.prompt(question, default="", show_default=False, err=True)
    if typed != name:
        refusal.why = "the name typed is another one"
        refusal.fix = "run it again and type the name, or add --yes"
        raise refusal
