"""``penstock doctor``: checks whether machine, configuration and server are fit to keep messages.

Each check gives one finding: ok, warn (works, but look at it) or fail (exit code 8). Without a
server the settings are read as ``penstock serve`` would read them; otherwise they are read from the
server. A server that does not run is a failure only if its address was given, because the doctor is
also used before the first start."""

from typing import Any

import click

from penstock.cli.command import Session, Verb
from penstock.cli.terminal.failure import ExitCode
from penstock.cli.terminal.output import FINDING_COLUMNS, columns

_CONFIG_COLUMNS = columns("key SETTING, value, origin FROM")


@click.command(cls=Verb)
@click.option("--data", metavar="DIR", help="data folder [default: from the configuration]")
@click.option("--config", "config_file", metavar="FILE", help="configuration file, TOML")
@click.option("--local", is_flag=True, help="check this machine only, contact no server")
def doctor(session: Session, data: str | None, config_file: str | None, local: bool) -> None:
    """Check the machine, settings and server. Exit code 8 if something is wrong."""
    from penstock.cli.operate import doctor_checks

    report = doctor_checks.examine(session, data=data, config_file=config_file, is_local=local)
    checks: list[dict[str, Any]] = [finding._asdict() for finding in report.findings]
    is_healthy = all(check["status"] != "fail" for check in checks)
    if session.out.is_table:
        session.out.many(checks, columns=FINDING_COLUMNS)
        session.out.line("")
        changed = [row for row in report.config if row["origin"] != "default"]
        if changed:
            session.out.many(changed, columns=_CONFIG_COLUMNS)
        rest = len(report.config) - len(changed)
        session.out.line(f"{rest} settings have the default; see `penstock serve --print-config`")
    else:
        session.out.one(
            {"healthy": is_healthy, "checks": checks, "config": report.config}, name="healthy"
        )
    if not is_healthy:
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)
