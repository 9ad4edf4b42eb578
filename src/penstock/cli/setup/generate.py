"""The commands ``penstock generate``, ``examples`` and ``completion``, which print configuration,
deployment files, recipes to copy, and the tab completion script of a shell."""

import sysconfig
import tomllib
from functools import partial
from importlib.resources import files
from pathlib import Path

import click

from penstock import __version__
from penstock.cli.terminal.failure import Failure, NotFound
from penstock.cli.terminal.options import Texts, option, repeatable

_FILES = files("penstock.cli") / "deploy"
# For each recipe: its title and its text. A test runs the shell and Python recipes.
RECIPES = tomllib.loads((_FILES / "examples.toml").read_text("utf-8"))
_WHERE = {
    "bash": 'add to ~/.bashrc:  eval "$(penstock completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(penstock completion zsh)"',
    "fish": "run once:  penstock completion fish > ~/.config/fish/completions/penstock.fish",
}
generate = click.Group(
    "generate",
    help="Generate configuration, certificates, and files for systemd, Docker and Kubernetes.",
)


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
@click.option("--no-localhost", is_flag=True, help="leave out the hosts localhost, 127.0.0.1, ::1")
@option("--name", "NAME", "name of the node or client, and of the files", default="penstock")
@option("--days", click.IntRange(1, 3_650), "validity of the certificate in days", default=365)
@click.option(
    "--client", "is_client", is_flag=True, help="create a client certificate (no host names)"
)
def certs(
    folder: str, hosts: Texts, no_localhost: bool, name: str, days: int, is_client: bool
) -> None:
    """Create a certificate that is signed by a private CA; create the CA on first use.

    The certificate is valid for each --host, and for localhost, 127.0.0.1 and ::1. Run the command
    again to renew it with the same CA; a running server loads the new files."""
    from penstock.cli.setup.certificates import Authority, write_private

    if no_localhost and not hosts and not is_client:
        raise click.UsageError("--no-localhost needs --host: a certificate needs a host.")
    here = () if no_localhost else ("localhost", "127.0.0.1", "::1")
    place = Path(folder)
    stem = f"client-{name}" if is_client else name
    if not stem.replace("-", "").replace(".", "").replace("_", "").isalnum():
        raise click.BadParameter("use only letters, digits, '.', '-' and '_'", param_hint="--name")
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
    text = (_FILES / name).read_text("utf-8")
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


@click.command()
@click.argument("topic", required=False)
def examples(topic: str | None) -> None:
    """Print the example TOPIC, such as `boto3`. Without TOPIC, list all examples."""
    if topic is None:
        click.echo("penstock examples TOPIC\n")
        width = max(map(len, RECIPES))
        for name, recipe in RECIPES.items():
            click.echo(f"  {name.ljust(width)}  {recipe['title']}")
        return
    found = RECIPES.get(topic)
    if found is None:
        raise NotFound(
            f"example '{topic}' does not exist",
            f"known examples: {', '.join(RECIPES)}",
            "list examples with `penstock examples`",
        )
    click.echo(f"# {found['title']}\n{found['text']}", nl=False)


@click.command(epilog="\b\n" + "\n".join(_WHERE.values()))
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the tab completion script for a shell."""
    from click.shell_completion import get_completion_class

    from penstock.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    click.echo(kind(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())
