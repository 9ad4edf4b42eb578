"""Write the reference pages in docs/ from the code: settings, commands, admin API, metrics.

The text above the mark in each page is written by hand and kept.

python -m tools.references            write the pages (make docs)
python -m tools.references --check    exit with 1 and the names of pages that differ
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
from tools.reference_texts import EXIT_CODES, ROUTES

from penstock.cli.command import LazyGroup, global_options
from penstock.cli.main import root
from penstock.cli.setup import serve
from penstock.cli.terminal.failure import ExitCode
from penstock.frontend.admin.api import ADMIN_ROUTES, ANY, KNOWN, OPEN, OPERATOR, Route
from penstock.node.configuration import config as node_config
from penstock.node.configuration.settings import ENV_PREFIX, ENV_SEPARATOR, FILE_SUFFIX, Setting
from penstock.node.configuration.settings import declared as declared_settings
from penstock.telemetry import families

DOCS = Path(__file__).parents[1] / "docs"
MARK = "<!-- Everything below is generated from the code by `make docs`: do not edit. -->"

Lines = Iterator[str]


def main(arguments: list[str]) -> int:
    different = []
    for name, render in PAGES.items():
        page = DOCS / name
        before = page.read_text("utf-8")
        head, mark, _ = before.partition(MARK)
        assert mark, f"docs/{name} has the line {MARK}"
        text = head + "\n".join([MARK, *render()]).rstrip() + "\n"
        if text == before:
            continue
        different.append(name)
        if "--check" not in arguments:
            page.write_text(text, "utf-8")
            print(f"wrote docs/{name}")
    if different and "--check" in arguments:
        print(f"docs that differ from the code: {', '.join(different)}; run `make docs`")
        return 1
    return 0


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Lines:
    yield ""
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


# ── Settings ─────────────────────────────────────────────────────────────────────────────────


def configuration() -> Lines:
    flags = {key: name.replace("_", "-") for name, key in serve._KEYS.items()}
    by_section: dict[str, list[Setting]] = {}
    for setting in declared_settings(node_config.Config).values():
        by_section.setdefault(setting.section, []).append(setting)
    for section, settings in by_section.items():
        yield from ("", f"## [{section}]")
        rows = []
        for one in settings:
            flag = f"<br>`--{flags[one.key]}`" if one.key in flags else ""
            file = f"<br>`{one.name}{FILE_SUFFIX}`" if one.is_secret else ""
            default = one.default.value if isinstance(one.default, Enum) else one.default
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            rows.append(
                (
                    f"`{one.name}`{file}{flag}",
                    f"`{shown}`" if shown else "",
                    _allowed(one),
                    one.help,
                )
            )
        yield from _table(("setting", "default", "allowed", "meaning"), rows)
    example = f"{ENV_PREFIX}HTTP{ENV_SEPARATOR}LISTEN"
    assert example == "PENSTOCK_HTTP__LISTEN", "the head of the page names this variable"


def _allowed(setting: Setting) -> str:
    kind, *notes = get_args(setting.type)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if kind is bool:
        return "`true`, `false`"
    meta = next(note for note in notes if isinstance(note, msgspec.Meta))
    if meta.ge is not None and meta.le is not None:
        return f"{meta.ge:,} to {meta.le:,}"
    return f"{meta.ge:,} or more" if meta.ge is not None else ""


# ── Commands ─────────────────────────────────────────────────────────────────────────────────


def cli() -> Lines:
    rows = [(f"`{' '.join(_option(one)[:1])}`", _option(one)[1]) for one in _global_options()]
    yield from ("", "## Options of every command")
    yield from _table(("option", "meaning"), rows)
    yield from ("", "## Exit codes")
    codes = [(str(int(code)), EXIT_CODES.get(code.name, code.name.lower())) for code in ExitCode]
    yield from _table(("code", "meaning"), codes)
    context = click.Context(root, info_name="penstock")
    assert isinstance(root, LazyGroup)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        yield from _command(command, click.Context(command, context, name), depth=2)


def _global_options() -> list[click.Parameter]:
    return list(global_options(from_environment=True))


def _option(parameter: click.Parameter) -> tuple[str, str]:
    record = parameter.get_help_record(click.Context(root))
    return record if record is not None else (str(parameter.name), "")


def _command(command: click.Command, context: click.Context, *, depth: int) -> Lines:
    yield from ("", f"{'#' * depth} `{context.command_path}`", "")
    text = inspect.cleandoc(command.help or "").replace("\b", "")
    yield text
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _command(found, click.Context(found, context, name), depth=3)
        return
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from ("", "```", f"{context.command_path} {pieces}".rstrip(), "```")
    shared = {one.name for one in _global_options()} if hasattr(command, "_global") else set()
    own = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    rows = [(f"`{name}`", text) for name, text in map(_option, own) if name]
    kept = [row for one, row in zip(own, rows, strict=True) if one.name not in shared]
    if kept:
        yield from _table(("option", "meaning"), kept)


# ── The admin API ────────────────────────────────────────────────────────────────────────────

_RIGHTS = {OPEN: "anyone", KNOWN: "by policy", OPERATOR: "operator"}


def admin_api() -> Lines:
    rows = []
    for route in ADMIN_ROUTES:
        path = _path(route)
        summary = ROUTES.get(f"{route.method} {path}", _summary(route))
        rows.append(
            (
                f"`{route.method} {path}`",
                summary,
                ", ".join(f"`{name}`" for name in route.parameters if name != ANY),
                _body(route.resource),
                _RIGHTS.get(route.right, f"`{route.right}`"),
                f"`{route.noted.action}`" if route.noted else "",
            )
        )
    titles = ("request", "what", "query parameters", "JSON body", "who may", "in the audit trail")
    yield from _table(titles, rows)


def _path(route: Route) -> str:
    """``*`` named after the segment before it: users/{user}."""
    parts: list[str] = []
    for segment in route.path:
        before = parts[-1] if parts else ""
        name = {"policies": "user", "coordinators": "topic", "quotas": "tenant"}.get(before)
        if before.startswith("{"):
            name = "policy" if "policies" in parts else "partition"
        name = name or before.removesuffix("s")
        parts.append(f"{{{name}}}" if segment == ANY else segment)
    return "/" + "/".join(parts)


def _body(resource: Any) -> str:
    """Fields of the body, as the source of a resource decodes them."""
    function = resource if inspect.isroutine(resource) else type(resource).__call__
    source = inspect.getsource(function)
    found = re.search(r"call\.json\((\w+)\)", source)
    fields: tuple[msgspec.structs.FieldInfo, ...] = ()
    if found is not None:
        fields = msgspec.structs.fields(function.__globals__[found[1]])
    return ", ".join(f"`{field.encode_name}`{'' if field.required else '?'}" for field in fields)


def _summary(route: Route) -> str:
    """Of a route without a sentence of its own: what is noted of it, or the name in the code."""
    if route.noted is not None:
        words = re.findall(r"[A-Z][a-z]*", route.noted.action)
        return " ".join(words).capitalize()
    name = getattr(route.resource, "__name__", type(route.resource).__name__)
    return f"{name} of {route.path[-2] if len(route.path) > 1 else 'the node'}"


# ── Metrics ──────────────────────────────────────────────────────────────────────────────────


def metrics() -> Lines:
    """In the sections of the source: ``# ── Title ──``, then declarations."""
    title = ""
    declared: dict[str, families.Family] = {
        name: one for name, one in vars(families).items() if isinstance(one, families.Family)
    }
    sections: dict[str, list[families.Family]] = {}
    for line in inspect.getsource(families).splitlines():
        if found := re.match(r"# ── (.*?) ─+$", line):
            title = found[1]
        elif (found := re.match(r"([A-Z][A-Z_]+) = _", line)) and found[1] in declared:
            sections.setdefault(title, []).append(declared[found[1]])
    assert sum(map(len, sections.values())) == len(families.FAMILIES)
    for name, members in sections.items():
        yield from ("", f"## {name}")
        rows = [
            (f"`{one.name}`", one.kind.value, ", ".join(f"`{x}`" for x in one.labels), one.help)
            for one in members
        ]
        yield from _table(("metric", "type", "labels", "meaning"), rows)


PAGES: dict[str, Callable[[], Lines]] = {
    "configuration.md": configuration,
    "cli.md": cli,
    "admin-api.md": admin_api,
    "metrics.md": metrics,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
