"""``penstock generate``: files to start from, made from the code that reads them."""

import click


@click.group()
def generate() -> None:
    """Write a configuration file."""


@generate.command()
def config() -> None:
    """Print a configuration file with every setting, its default and its meaning."""
    from penstock.node import config as node_config

    click.echo(node_config.render_toml(), nl=False)
