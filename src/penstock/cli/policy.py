"""``penstock policy``: shows, changes and tests the policies of users.

A policy is a JSON document of the usual form. ``policy test`` lets the server decide with the same
code that authorizes requests, and names the statement that decided."""

from typing import Any
from urllib.parse import quote

import click

from penstock.cli.failure import ExitCode
from penstock.cli.output import Column
from penstock.cli.session import Noun, Session, confirm_name, pass_session
from penstock.cli.tenancy import tenant_of, tenant_option
from penstock.cli.user import read_policy


@click.group(cls=Noun)
def policy() -> None:
    """Show, put, remove policies of a user; test who may do what."""


def _path(user: str, name: str | None = None) -> str:
    path = f"policies/{quote(user, safe='')}"
    return path if name is None else f"{path}/{quote(name, safe='')}"


@policy.command()
@click.argument("user")
@click.argument("name", required=False)
@tenant_option
@pass_session
def show(session: Session, user: str, name: str | None, tenant: str | None) -> None:
    """Print one policy of a user as it was written, or list all of them."""
    query = {"tenant": tenant_of(session, tenant)}
    if name is not None:
        what = f"cannot show policy '{name}' of '{user}'"
        found = session.admin.get(_path(user, name), query, what=what)
        if session.settings.output in (None, "table"):
            session.out.line(str(found["text"]).rstrip("\n"))
        else:
            session.out.one(found)
        return
    found = session.admin.get(_path(user), query, what=f"cannot show the policies of '{user}'")
    rows = [{"name": key, "text": text} for key, text in sorted(found["policies"].items())]
    columns = (Column("name", "NAME"), Column("text", "POLICY"))
    session.out.many(rows, columns=columns, empty=f"no policies of '{user}'")


@policy.command()
@click.argument("user")
@click.argument("name")
@click.argument("file")
@tenant_option
@pass_session
def put(session: Session, user: str, name: str, file: str, tenant: str | None) -> None:
    """Give a user the policy in FILE under a name, in place of one that has it. FILE may be -."""
    text = read_policy(file)
    session.admin.call(
        "PUT",
        _path(user, name),
        {"tenant": tenant_of(session, tenant)},
        body=text.encode(),
        what=f"cannot put policy '{name}' of '{user}'",
    )
    session.remark(f"{user} has the policy {name}")


@policy.command()
@click.argument("user")
@click.argument("name")
@tenant_option
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def remove(session: Session, user: str, name: str, tenant: str | None, yes: bool) -> None:
    """Take a policy away from a user."""
    what = f"cannot remove policy '{name}' of '{user}'"
    query = {"tenant": tenant_of(session, tenant)}
    session.admin.get(_path(user, name), query, what=what)
    confirm_name(name, verb="remove", is_sure=yes)
    session.admin.call("DELETE", _path(user, name), query, what=what)
    session.remark(f"{user} no longer has the policy {name}")


_TEST_COLUMNS = (
    Column("decision", "decision"),
    Column("because", "because"),
    Column("principal", "principal"),
    Column("action", "action"),
    Column("resource", "resource"),
)


@policy.command()
@click.option("--as", "user", required=True, metavar="USER", help="who asks")
@click.option("--action", required=True, help="such as sqs:SendMessage or kafka:Read")
@click.option("--on", "resource", required=True, metavar="QUEUE|ARN", help="name, or ARN")
@click.option("--source-ip", metavar="ADDRESS", help="where the request comes from")
@click.option("--tls", is_flag=True, help="the request is encrypted")
@tenant_option
@pass_session
def test(
    session: Session,
    user: str,
    action: str,
    resource: str,
    source_ip: str | None,
    tls: bool,
    tenant: str | None,
) -> None:
    """Would this be allowed? Exit code 0 when it would, 4 when not."""
    question: dict[str, Any] = {
        "user": user,
        "action": action,
        "resource": resource,
        "region": session.settings.region,
        "source_ip": source_ip or "",
        "is_tls": tls,
        "tenant": tenant_of(session, tenant) or "",
    }
    answer = session.admin.call(
        "POST", "policies/test", body=question, what=f"cannot ask about '{user}'"
    )
    is_allowed = bool(answer["is_allowed"])
    shown = {"decision": "allow" if is_allowed else "deny", "because": _because(answer), **answer}
    session.out.one(shown, columns=_TEST_COLUMNS, name="decision")
    if not is_allowed:
        session.out.flush()
        raise click.exceptions.Exit(ExitCode.DENIED)


def _because(answer: dict[str, Any]) -> str:
    statement, found = answer.get("statement"), answer.get("policy")
    if answer["is_explicit"]:
        where = f"policy '{found}' of the user" if found else "the policy of the queue"
        return f"{statement or 'a statement'} in {where}"
    if answer["source"] == "resource":
        return "nothing in the policy of the queue allows it, and it is another tenant's"
    return "no statement of any policy allows it"
