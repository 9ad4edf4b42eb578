"""The base classes of all commands, the global options, and tab completion of names.

A command is a noun and a verb, such as ``penstock queue list``. Global options are accepted before
the noun and after the verb (``penstock -o json queue list`` and ``penstock queue list -o json``);
if both are given, the one after the verb wins."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from inspect import Parameter, signature
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args, get_origin

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
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse, nearest
from penstock.cli.terminal.options import some_seconds
from penstock.cli.terminal.output import FORMATS, Output

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from penstock.cli.clients.http import Admin, Sns, Sqs
    from penstock.cli.clients.kafka import Kafka

_HELP = {
    "endpoint": f"URL of the SQS endpoint [env PENSTOCK_ENDPOINT, default {ENDPOINT_DEFAULT}]",
    "admin": "URL of the admin API [env PENSTOCK_ADMIN, default: reported by the endpoint]",
    "kafka": "Kafka bootstrap server [env PENSTOCK_KAFKA, default: reported by the endpoint]",
    "region": f"AWS region of the queues [env AWS_REGION, default {REGION_DEFAULT}]",
    "account": "AWS account id, 12 digits [env PENSTOCK_ACCOUNT, default: set by the server]",
    "timeout": f"timeout of each request [default {TIMEOUT_S_DEFAULT:g}s]",
    "output": "output format [default: table on a terminal, else json, or ndjson for lists]",
    "context": "name of a context [env PENSTOCK_CONTEXT, default: see `penstock context use`]",
    "quiet": "do not print progress and remarks to stderr",
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
    """Return the global options. Only the root command reads environment variables: if a verb did,
    a variable would win over a flag that is written before the noun."""

    def option(flag: str, *names: str, **rest: Any) -> click.Option:
        if from_environment and not rest.get("is_flag"):
            rest["envvar"] = [f"PENSTOCK_{flag.upper()}", *_MORE_VARIABLES.get(flag, ())]
        rest |= {"help": _HELP[flag], "expose_value": False, "callback": _remember}
        return click.Option([*names, f"--{flag}"], **rest)

    return [
        option("endpoint", metavar="URL"),
        option("admin", metavar="URL"),
        option("kafka", metavar="[PROTOCOL://]HOST:PORT"),
        option("region"),
        option("account"),
        option("timeout", "timeout_s", metavar="DURATION", type=some_seconds(0.001, 86_400)),
        option("output", "-o", type=click.Choice(FORMATS)),
        option("context", metavar="NAME"),
        option("quiet", "-q", is_flag=True),
        option("debug", is_flag=True),
    ]


class Session:
    """The settings, output and clients of a running command. A client is created at first use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.out = Output(settings.output)

    @cached_property
    def sqs(self) -> "Sqs":
        from penstock.cli.clients.http import Sqs

        return Sqs(self.settings.endpoint, self.settings)

    @cached_property
    def sns(self) -> "Sns":
        from penstock.cli.clients.http import Sns

        return Sns(self.settings.endpoint, self.settings)

    @cached_property
    def admin(self) -> "Admin":
        from penstock.cli.clients.http import Admin, as_seen_from

        url, account_default = self.settings.admin, None
        if url is None:
            info = self.sqs.info()
            url = as_seen_from(self.settings.endpoint, str(info["admin"]))
            # The account that the SQS API uses, so that both APIs show the same queues.
            account_default = info.get("account")
        return Admin(url, self.settings, account_default=account_default)

    @cached_property
    def kafka(self) -> "Kafka":
        from penstock.cli.clients.http import as_seen_from
        from penstock.cli.clients.kafka import ADDRESS_DEFAULT, connected

        settings = self.settings
        listener = settings.kafka
        if listener is None and settings.admin is None:
            reported = self.sqs.info().get("kafka")
            listener = as_seen_from(settings.endpoint, str(reported)) if reported else None
        if listener is None:
            info = self.admin.info()
            address = str((info.get("endpoints") or {}).get("kafka") or ADDRESS_DEFAULT)
            protocol = info.get("kafka_protocol")
            address = as_seen_from(self.admin.url, address)
            listener = f"{protocol}://{address}" if protocol else address
        is_tls = settings.endpoint.startswith("https:")
        return connected(listener, is_tls=is_tls, timeout_s=settings.timeout_s)

    def remark(self, text: str) -> None:
        if not self.settings.quiet:
            click.echo(text, err=True)

    def close(self) -> None:
        for name in ("sqs", "sns", "admin", "kafka"):
            if name in self.__dict__:  # the client was used
                getattr(self, name).close()


class Verb(click.Command):
    """A command without subcommands. Its function is called with a session, which is closed when
    the command ends. A parameter of the function without a click decorator becomes an argument:
    optional if it may be None or has a default, repeatable if it is a tuple. The help shows global
    options after the command's own options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.callback is not None
        described = {param.name: param for param in self.params}
        arguments = [
            described.get(each.name) or _argument(each)
            for each in list(signature(self.callback).parameters.values())[1:]
            if each.kind is not Parameter.VAR_KEYWORD
            and not isinstance(described.get(each.name), click.Option)
        ]
        self._global = global_options(from_environment=False)
        options = [param for param in self.params if isinstance(param, click.Option)]
        self.params = [*arguments, *options, *self._global]
        for param in self.params:
            if param.type is click.STRING:
                param.type = _Name()

    def invoke(self, ctx: click.Context) -> None:
        assert self.callback is not None
        settings = ctx.find_root().ensure_object(Settings)
        if ctx.parent is None or ctx.parent.info_name != "context":  # must work with a bad file
            contexts.apply(settings)
        session = Session(settings)
        ctx.call_on_close(session.close)
        try:
            ctx.invoke(self.callback, session, **ctx.params)
        except Failure as failure:
            if failure.exit_code is ExitCode.NOT_FOUND:
                _suggest(ctx, session, failure)
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


def _argument(parameter: Parameter) -> click.Argument:
    if get_origin(parameter.annotation) is tuple:
        return click.Argument([parameter.name], nargs=-1)
    if parameter.default is not Parameter.empty:
        return click.Argument([parameter.name], default=parameter.default)
    is_required = type(None) not in get_args(parameter.annotation)
    return click.Argument([parameter.name], required=is_required)


class Noun(click.Group):
    command_class = Verb

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)  # in order of definition: common commands first


# For each section and command: its module in ``penstock.cli``, and its help. The module is followed
# by ":attribute" if the attribute is not named like the command.
Table = Mapping[str, Mapping[str, tuple[str, str]]]


class LazyGroup(click.Group):
    """A group that imports a command only when it is run, so that ``penstock`` starts quickly."""

    def __init__(self, *args: Any, table: Table, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._entries = {name: entry for part in table.values() for name, entry in part.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._entries:
            return None
        module, _, attribute = self._entries[cmd_name][0].partition(":")
        command = getattr(import_module(f"penstock.cli.{module}"), attribute or cmd_name)
        assert isinstance(command, click.Command), f"{cmd_name} is not a command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self._entries:
            near = nearest(args[0], self._entries)
            hint = f" Did you mean '{near}'?" if near else ""
            raise click.UsageError(f"No such command '{args[0]}'.{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, self._entries))
        for title, part in self._table.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in part.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=text)
            for name, (_, text) in self._entries.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


def confirm_name(name: str, *, verb: str, is_sure: bool) -> None:
    if is_sure:
        return
    what = f"did not {verb} '{name}'"
    if not sys.stdin.isatty():
        raise Misuse(what, "cannot prompt: stdin is not a terminal", "add --yes to confirm")
    question = f"This will {verb} '{name}'. Type the name to confirm"
    typed = click.prompt(question, default="", show_default=False, err=True)
    if typed != name:
        fix = "run the command again and type the name, or add --yes"
        raise Misuse(what, "the typed name does not match", fix)


# ── Names that a server knows: for tab completion, and for "did you mean" ────────────────────
# Both are optional: if the server does not reply quickly, there are no names and no error.

_COMPLETED_MAX = 200
_LISTED_MAX = 10_000  # names to compare a misspelt name with
_COMPLETION_TIMEOUT_S = 2.0
_CREATING = ("create", "add")  # commands whose name does not exist yet

# The kinds of names, and the parameters that take them, as NOUN.PARAMETER. A * means any noun.
_TAKING = {
    "queue": "queue.name queue.names message.words subscription.source *.queue *.dead_letter"
    " *.target",
    "topic": "topic.name *.topic",
    "group": "group.name group.names message.group",
    "subscription": "*.subscription *.subscriptions",
    "user": "user.name *.user",
    "tenant": "tenant.name quota.name *.tenant",
    "context": "context.name *.context",
}
_KINDS = {place: kind for kind, places in _TAKING.items() for place in places.split()}


class _Name(StringParamType):
    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        kind = _kind_of(ctx, param.name)
        if kind is None:
            return []
        settings = ctx.find_root().ensure_object(Settings)
        settings.timeout_s = _COMPLETION_TIMEOUT_S
        session = Session(settings)
        try:
            contexts.apply(settings)
            with ctx.scope():
                found = _names(kind, session, incomplete)
                names = (name for name in found if name.startswith(incomplete))
                return [CompletionItem(each) for each in sorted(islice(names, _COMPLETED_MAX))]
        except Exception:
            return []
        finally:
            session.close()


def _kind_of(ctx: click.Context, name: str | None) -> str | None:
    if name is None or (name == "name" and ctx.info_name in _CREATING):
        return None
    noun = ctx.parent.info_name if ctx.parent is not None else None
    if (noun, name) == ("message", "group") and not ctx.params.get("topic"):
        return None  # a message group of a FIFO queue: the server cannot list them
    return _KINDS.get(f"{noun}.{name}") or _KINDS.get(f"*.{name}")


def _names(kind: str, session: Session, prefix: str = "") -> Iterable[str]:
    match kind:
        case "queue":
            return session.sqs.queue_names(prefix)
        case "topic":
            topics = session.kafka.metadata().topics
            return (str(each.name) for each in topics if not each.is_internal)
        case "group":
            return (each.name for each in session.kafka.groups())
        case "subscription":
            return (str(each["id"]) for each in session.admin.subscriptions())
        case "user":
            tenant = click.get_current_context().params.get("tenant") or session.settings.account
            users = session.admin.get("users", {"tenant": tenant})["users"]
            return (str(each["name"]) for each in users)
        case "tenant":
            return (str(each["name"]) for each in session.admin.get("tenants")["tenants"])
        case _:
            return (contexts.DEFAULT, *contexts.Contexts.read().contexts)


def _suggest(ctx: click.Context, session: Session, failure: Failure) -> None:
    if "did you mean" in failure.fix:
        return
    for kind, given in _given(ctx):
        try:
            names = list(islice(_names(kind, session), _LISTED_MAX))
        except Exception:
            return  # keep the original failure
        near = "" if given in names else nearest(given, names)
        if near:
            failure.fix = f"did you mean '{near}'? {failure.fix}".rstrip()
            return


def _given(ctx: click.Context) -> Iterator[tuple[str, str]]:
    from penstock.cli.clients.http import name_of

    for name, value in ctx.params.items():
        kind = _kind_of(ctx, name)
        values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for each in values[:1] if name == "words" else values:
            if kind is not None and isinstance(each, str):
                yield kind, name_of(each) if kind == "queue" else each
