"""The frame of every command: nouns, verbs with the global options, confirmation.

Global options are accepted before the noun and after the verb (``penstock -o json queue list`` and
``penstock queue list -o json``); the one nearer to the verb wins."""

import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.types import StringParamType

from penstock.cli.clients import contexts
from penstock.cli.clients.contexts import (
    ENDPOINT_DEFAULT,
    REGION_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Settings,
)
from penstock.cli.clients.session import Session
from penstock.cli.terminal import quantity
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse
from penstock.cli.terminal.output import FORMATS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["Noun", "Session", "Verb", "confirm_name", "global_options"]


_HELP = {
    "endpoint": f"URL of the SQS endpoint [env PENSTOCK_ENDPOINT, default {ENDPOINT_DEFAULT}]",
    "admin": "URL of the admin API [env PENSTOCK_ADMIN, default: from the endpoint]",
    "kafka": "address of the Kafka listener [env PENSTOCK_KAFKA, default: from the endpoint]",
    "region": f"region of the queues [env AWS_REGION, default {REGION_DEFAULT}]",
    "account": "AWS account id, 12 digits [env PENSTOCK_ACCOUNT, default: from the server]",
    "timeout": f"timeout of each request [default {TIMEOUT_S_DEFAULT:g}s]",
    "output": "output format [default: table on a terminal, else json, or ndjson for lists]",
    "context": "saved server [env PENSTOCK_CONTEXT, default: set by `penstock context use`]",
    "quiet": "print no progress and no remarks on stderr",
    "debug": "print the traceback of an error",
}
_MORE_VARIABLES = {"region": ("AWS_REGION", "AWS_DEFAULT_REGION")}


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

    def option(flag: str, *names: str, **rest: Any) -> click.Option:
        if from_environment and not rest.get("is_flag"):
            rest["envvar"] = [f"PENSTOCK_{flag.upper()}", *_MORE_VARIABLES.get(flag, ())]
        rest |= {"help": _HELP[flag], "expose_value": False, "callback": _remember}
        return click.Option([*names, f"--{flag}"], **rest)

    duration = quantity.some_seconds(0.001, 86_400)
    return [
        option("endpoint", metavar="URL"),
        option("admin", metavar="URL"),
        option("kafka", metavar="[PROTOCOL://]HOST:PORT"),
        option("region"),
        option("account"),
        option("timeout", "timeout_s", metavar="DURATION", type=duration),
        option("output", "-o", type=click.Choice(FORMATS)),
        option("context", metavar="NAME"),
        option("quiet", "-q", is_flag=True),
        option("debug", is_flag=True),
    ]


class _Name(StringParamType):
    """A string that may name a queue, topic, group, user, tenant or context."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from penstock.cli.clients.names import completed

        return [CompletionItem(each) for each in completed(ctx, param, incomplete)]


class Verb(click.Command):
    """A leaf command, called with a session that is closed when the command ends. Its help shows
    global options in a separate section after its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._global = global_options(from_environment=False)
        self.params.extend(self._global)
        for param in self.params:
            if param.type is click.STRING:
                param.type = _Name()

    def invoke(self, ctx: click.Context) -> None:
        assert self.callback is not None
        settings = ctx.find_root().ensure_object(Settings)
        if ctx.parent is None or ctx.parent.info_name != "context":  # this noun repairs the file
            contexts.apply(settings)
        session = Session(settings)
        ctx.call_on_close(session.close)
        try:
            ctx.invoke(self.callback, session, **ctx.params)
        except Failure as failure:
            if failure.exit_code is ExitCode.NOT_FOUND:
                from penstock.cli.clients.names import suggest

                suggest(ctx, session, failure)
            raise

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


class Noun(click.Group):
    command_class = Verb

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)  # in order of definition: the common ones first


def confirm_name(name: str, *, verb: str, is_sure: bool) -> None:
    """Let the user type the name again before a destructive command: "y" is typed too easily."""
    if is_sure:
        return
    what = f"did not {verb} '{name}'"
    if not sys.stdin.isatty():
        raise Misuse(what, "not confirmed: stdin is not a terminal", "add --yes to confirm")
    question = f"This will {verb} '{name}'. Type the name to confirm"
    typed = click.prompt(question, default="", show_default=False, err=True)
    if typed != name:
        fix = "run the command again and type the name, or add --yes"
        raise Misuse(what, "the typed name does not match", fix)
