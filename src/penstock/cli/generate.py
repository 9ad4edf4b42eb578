"""``penstock generate``: files to start from, made from the code that reads them."""

import click


@click.group()
def generate() -> None:
    """Write a configuration file, or certificates."""


@generate.command()
def config() -> None:
    """Print a configuration file with every setting, its default and its meaning."""
    from penstock.node import config as node_config

    click.echo(node_config.render_toml(), nl=False)


@generate.command()
@click.option("--out", "folder", type=click.Path(file_okay=False), default="certs", metavar="DIR")
@click.option("--host", "hosts", multiple=True, metavar="NAME|ADDRESS", help="may be repeated")
@click.option("--no-localhost", is_flag=True, help="not for localhost, 127.0.0.1 and ::1")
@click.option("--name", default="penstock", metavar="NAME", help="of the node, or of the client")
@click.option("--days", type=click.IntRange(1, 3_650), default=365, show_default=True)
@click.option("--client", "is_client", is_flag=True, help="for a client that must show one")
def certs(
    folder: str,
    hosts: tuple[str, ...],
    no_localhost: bool,
    name: str,
    days: int,
    is_client: bool,
) -> None:
    """Make a private authority on first use, and a certificate signed by it.

    It is valid for each --host, and for localhost, 127.0.0.1 and ::1. Running it again renews the
    certificate under the same authority; a server takes over changed files by itself.
    """
    from pathlib import Path

    from penstock.cli.certificates import Authority, write_private
    from penstock.cli.failure import ExitCode, Failure

    if no_localhost and not hosts:
        raise click.UsageError("--no-localhost goes with --host: a certificate is for some name.")
    here = () if no_localhost else ("localhost", "127.0.0.1", "::1")
    place = Path(folder)
    stem = f"client-{name}" if is_client else name
    if not stem.replace("-", "").replace(".", "").replace("_", "").isalnum():
        raise click.BadParameter("letters, digits, dots and dashes only", param_hint="--name")
    try:
        chain, key = Authority.at(place).issue(
            name,
            hosts=() if is_client else tuple(dict.fromkeys((*hosts, *here))),
            days=days,
            is_client=is_client,
        )
        write_private(place / f"{stem}-key.pem", key)
        (place / f"{stem}.pem").write_bytes(chain)
    except (OSError, ValueError) as error:
        raise Failure(
            "no certificate was made",
            str(error),
            "give another folder with --out, or mend what is there",
            exit_code=ExitCode.FAILED,
        ) from error
    click.echo(f"authority    {place / 'ca.pem'}  (give this one to clients)")
    click.echo(f"certificate  {place / f'{stem}.pem'}  valid for {days} days")
    click.echo(f"key          {place / f'{stem}-key.pem'}")
    if not is_client:
        click.echo(
            f"\n  penstock serve --tls-cert {place / f'{stem}.pem'} "
            f"--tls-key {place / f'{stem}-key.pem'}"
        )
