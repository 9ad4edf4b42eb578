"""Command groups that import a command only when it is run.

Users of a shell notice start-up time most, so the tree is a table: name, where the command is
defined, one line of help. ``penstock --help`` and tab completion read the table and import
nothing."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.terminal.failure import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# By section and name of the command: where it is defined, and its help. The place is a module of
# ``penstock.cli`` and, if the attribute has not the name of the command, ":attribute".
Table = Mapping[str, Mapping[str, tuple[str, str]]]


class LazyGroup(click.Group):
    def __init__(self, *args: Any, table: Table, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._entries = {
            name: entry for section in table.values() for name, entry in section.items()
        }

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
        for title, section in self._table.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, (_, text) in section.items()]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=text)
            for name, (_, text) in self._entries.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)
