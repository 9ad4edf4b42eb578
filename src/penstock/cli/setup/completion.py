"""``penstock completion``: prints the tab completion script of a shell."""

import click

_WHERE = {
    "bash": 'add to ~/.bashrc:  eval "$(penstock completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(penstock completion zsh)"',
    "fish": "run once:  penstock completion fish > ~/.config/fish/completions/penstock.fish",
}


@click.command(epilog="\b\n" + "\n".join(_WHERE.values()))
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the tab completion script for a shell."""
    from click.shell_completion import get_completion_class

    from penstock.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    click.echo(kind(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())
