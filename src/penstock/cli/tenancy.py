"""Chooses the tenant of a command: ``--tenant``, by name or account, else ``--account``, else the
server's default: the tenant of the caller."""

from collections.abc import Callable
from typing import Any

import click

from penstock.cli.session import Session


def tenant_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--tenant", metavar="NAME|ACCOUNT", help="whose [default: the one you belong to]"
    )(command)


def tenant_of(session: Session, tenant: str | None) -> str | None:
    return tenant or session.settings.account
