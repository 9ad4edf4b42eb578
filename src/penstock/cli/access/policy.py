"""``penstock policy``: shows, changes and tests the policies of users.

A policy is a JSON document of the usual form. ``policy test`` lets the server decide with the same
code that authorizes requests, and names the statement that decided."""

from typing import Any

import click

from penstock.cli.access.objects import delete_confirmed, owner, path_of, tenant_option, yes_option
from penstock.cli.access.user import read_policy
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import ExitCode
from penstock.cli.terminal.output import columns


@click.group(cls=Noun)
def policy() -> None:
    """Show, put, remove policies of a user; test whether a request is allowed."""


@policy.command()
@tenant_option
def show(session: Session, user: str, name: str | None, tenant: str | None) -> None:
    """Print a policy of a user as it was written, or list all policies of the user."""
    query = owner(session, tenant)
    if name is not None:
        what = f"cannot show policy '{name}' of '{user}'"
        found = session.admin.get(path_of("policies", user, name), query, what=what)
        if session.settings.output in (None, "table"):
            session.out.line(str(found["text"]).rstrip("\n"))
        else:
            session.out.one(found)
        return
    found = session.admin.get(
        path_of("policies", user), query, what=f"cannot show the policies of '{user}'"
    )
    rows = [{"name": key, "text": text} for key, text in sorted(found["policies"].items())]
    session.out.many(rows, columns=columns("name, text POLICY"), empty=f"no policies of '{user}'")


@policy.command()
@tenant_option
def put(session: Session, user: str, name: str, file: str, tenant: str | None) -> None:
    """Attach the policy in FILE (-: stdin) to a user as NAME; replaces a policy of this name."""
    text = read_policy(file)
    session.admin.call(
        "PUT",
        path_of("policies", user, name),
        owner(session, tenant),
        body=text.encode(),
        what=f"cannot put policy '{name}' of '{user}'",
    )
    session.remark(f"{user} has the policy {name}")


@policy.command()
@tenant_option
@yes_option
def remove(session: Session, user: str, name: str, tenant: str | None, yes: bool) -> None:
    """Remove a policy from a user."""
    what = f"cannot remove policy '{name}' of '{user}'"
    path, query = path_of("policies", user, name), owner(session, tenant)
    delete_confirmed(session, path, query, what=what, name=name, verb="remove", is_sure=yes)
    session.remark(f"{user} no longer has the policy {name}")


_TEST_COLUMNS = columns(
    "decision decision, because because, principal principal, action action, resource resource"
)


@policy.command()
@click.option("--as", "user", required=True, metavar="USER", help="user who sends the request")
@click.option("--action", required=True, help="action, such as sqs:SendMessage or kafka:Read")
@click.option("--on", "resource", required=True, metavar="QUEUE|ARN", help="queue or topic")
@click.option("--source-ip", metavar="ADDRESS", help="client address of the request")
@click.option("--tls", is_flag=True, help="test a request over TLS")
@tenant_option
def test(
    session: Session,
    user: str,
    action: str,
    resource: str,
    source_ip: str | None,
    tls: bool,
    tenant: str | None,
) -> None:
    """Test whether a request is allowed. Exit code 0 if it is, 4 if it is not."""
    question: dict[str, Any] = {
        "user": user,
        "action": action,
        "resource": resource,
        "region": session.settings.region,
        "source_ip": source_ip or "",
        "is_tls": tls,
        "tenant": "",
        **owner(session, tenant),
    }
    reply = session.admin.call(
        "POST", "policies/test", body=question, what=f"cannot test the policies of '{user}'"
    )
    is_allowed = bool(reply["is_allowed"])
    shown = {"decision": "allow" if is_allowed else "deny", "because": _because(reply), **reply}
    session.out.one(shown, columns=_TEST_COLUMNS, name="decision")
    if not is_allowed:
        session.out.flush()
        raise click.exceptions.Exit(ExitCode.DENIED)


def _because(reply: dict[str, Any]) -> str:
    statement, found = reply.get("statement"), reply.get("policy")
    if reply["is_explicit"]:
        where = f"policy '{found}' of the user" if found else "the policy of the queue"
        return f"{statement or 'a statement'} in {where}"
    if reply["source"] == "resource":
        return "the queue belongs to another tenant, and its policy does not allow it"
    return "no statement of any policy allows it"
