"""What the commands for tenants, users, keys and policies share."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import click

from penstock.cli.command import Session, confirm_name

yes_option = click.option("--yes", is_flag=True, help="do not ask for confirmation")


def path_of(kind: str, *names: str) -> str:
    return "/".join([kind, *(quote(name, safe="") for name in names)])


def tenant_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--tenant", metavar="NAME|ACCOUNT", help="owner tenant [default: your tenant]"
    )(command)


def owner(session: Session, tenant: str | None) -> dict[str, str]:
    """Return the tenant of a request: ``--tenant``, by name or account, else ``--account``, else
    none: the server uses the tenant of the caller."""
    chosen = tenant or session.settings.account
    return {} if chosen is None else {"tenant": chosen}


def delete_confirmed(
    session: Session,
    path: str,
    query: dict[str, str],
    *,
    what: str,
    name: str,
    is_sure: bool,
    verb: str = "delete",
    resource: str = "",
) -> None:
    """Delete an object, or a resource below it, once the user has typed its name."""
    session.admin.get(path, query, what=what)  # before the prompt: fails if it does not exist
    confirm_name(name, verb=verb, is_sure=is_sure)
    session.admin.call("DELETE", path + resource, query, what=what)
