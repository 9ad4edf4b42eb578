"""``penstock generate``: templates of files, made from the code that reads them."""

import click


@click.group()
def generate() -> None:
    """Write configuration, certificates, and files for systemd, Docker and Kubernetes."""


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


@generate.command()
def systemd() -> None:
    """Print a systemd unit for the installed penstock command."""
    _print_file("penstock.service")


@generate.command()
def docker() -> None:
    """Print a Dockerfile of an image with one node."""
    _print_file("Dockerfile")


@generate.command()
@click.option(
    "--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True, help="number of nodes"
)
def compose(nodes: str) -> None:
    """Print a Compose file: one node for development, or three nodes with etcd and TLS."""
    _print_file("compose.yml" if nodes == "1" else "compose-cluster.yml")


@generate.command()
def kubernetes() -> None:
    """Print Kubernetes manifests: a StatefulSet of three nodes with its services."""
    _print_file("kubernetes.yml")


def _print_file(name: str) -> None:
    """Print a file of the folder ``deploy``, with this version and the path of this command."""
    import sysconfig
    from importlib.resources import files
    from pathlib import Path

    from penstock import __version__

    text = files("penstock.cli").joinpath("deploy", name).read_text("utf-8")
    command = str(Path(sysconfig.get_path("scripts")) / "penstock")
    click.echo(text.replace("@VERSION@", __version__).replace("@PENSTOCK@", command), nl=False)
