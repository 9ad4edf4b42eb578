"""Commands of ``penstock generate``, which print configuration and deployment files."""

from functools import partial

import click

from penstock.cli.terminal.options import option, repeatable


@click.group()
def generate() -> None:
    """Generate configuration, certificates, and files for systemd, Docker and Kubernetes."""


@generate.command()
def config() -> None:
    """Print a configuration file with every setting, its default and its meaning."""
    from penstock.node.configuration import config as node_config

    click.echo(node_config.render_toml(), nl=False)


@generate.command()
@click.option(
    "--out", "folder", type=click.Path(file_okay=False), default="certs", metavar="DIR",
    help="folder of the certificates [default: certs]",
)  # fmt: skip
@repeatable("--host hosts", "NAME|ADDRESS", "host that the certificate is valid for")
@click.option("--no-localhost", is_flag=True, help="omit localhost, 127.0.0.1 and ::1 as hosts")
@option("--name", "NAME", "name of the node or client", default="penstock")
@option("--days", click.IntRange(1, 3_650), "validity of the certificate in days", default=365)
@click.option("--client", "is_client", is_flag=True, help="create a client certificate")
def certs(
    folder: str, hosts: tuple[str, ...], no_localhost: bool, name: str, days: int, is_client: bool
) -> None:
    """Create a certificate that is signed by a private CA; create the CA on first use.

    The certificate is valid for each --host, and for localhost, 127.0.0.1 and ::1. Run the command
    again to renew it with the same CA; a running server loads changed files.
    """
    from pathlib import Path

    from penstock.cli.setup.certificates import Authority, write_private
    from penstock.cli.terminal.failure import Failure

    if no_localhost and not hosts:
        raise click.UsageError("--no-localhost needs --host: a certificate needs a name.")
    here = () if no_localhost else ("localhost", "127.0.0.1", "::1")
    place = Path(folder)
    stem = f"client-{name}" if is_client else name
    if not stem.replace("-", "").replace(".", "").replace("_", "").isalnum():
        raise click.BadParameter("use only letters, digits, dots and dashes", param_hint="--name")
    certificate_file, key_file = place / f"{stem}.pem", place / f"{stem}-key.pem"
    names = () if is_client else tuple(dict.fromkeys((*hosts, *here)))
    try:
        authority = Authority.at(place)
        chain, key = authority.issue(name, hosts=names, days=days, is_client=is_client)
        write_private(key_file, key)
        certificate_file.write_bytes(chain)
    except (OSError, ValueError) as error:
        raise Failure(
            "cannot create a certificate",
            str(error),
            "choose another folder with --out DIR, or repair the files in it",
        ) from error
    click.echo(f"authority    {place / 'ca.pem'}  (clients need this file)")
    click.echo(f"certificate  {certificate_file}  valid for {days} days")
    click.echo(f"key          {key_file}")
    if not is_client:
        click.echo(f"\n  penstock serve --tls-cert {certificate_file} --tls-key {key_file}")


@generate.command()
@option("--nodes", ["1", "3"], "number of nodes", default="1")
def compose(nodes: str) -> None:
    """Print a Compose file: one node for development, or three nodes with etcd and TLS."""
    _print_file("compose.yml" if nodes == "1" else "compose-cluster.yml")


def _print_file(name: str) -> None:
    import sysconfig
    from importlib.resources import files
    from pathlib import Path

    from penstock import __version__

    text = files("penstock.cli").joinpath("deploy", name).read_text("utf-8")
    command = str(Path(sysconfig.get_path("scripts")) / "penstock")
    click.echo(text.replace("@VERSION@", __version__).replace("@PENSTOCK@", command), nl=False)


for command, file, text in (
    ("systemd", "penstock.service", "Print a systemd unit for the installed penstock command."),
    ("docker", "Dockerfile", "Print a Dockerfile for an image with one node."),
    (
        "kubernetes",
        "kubernetes.yml",
        "Print Kubernetes manifests: a StatefulSet of three nodes with its services.",
    ),
):
    generate.command(command, help=text)(partial(_print_file, file))
