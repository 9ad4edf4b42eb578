"""Recipes parse; the configuration file that we print can be read back."""

import subprocess
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Cli

from penstock.cli.setup.generate import RECIPES
from penstock.cli.terminal.failure import ExitCode
from penstock.node.configuration import config

PYTHON = {"boto3", "celery"}


@pytest.mark.parametrize("topic", sorted(RECIPES))
def test_a_recipe_parses_in_its_language(cli: Cli, topic: str) -> None:
    text = cli("examples", topic).out
    if topic in PYTHON:
        compile(text, topic, "exec")
    else:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_list_names_every_topic(cli: Cli) -> None:
    listed = cli("examples").out
    assert all(topic in listed for topic in RECIPES)


def test_an_unknown_topic_is_exit_3(cli: Cli) -> None:
    assert cli("examples", "kafkaesque").code == ExitCode.NOT_FOUND


def test_the_printed_configuration_is_the_default_one(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(cli("generate", "config").out)
    assert config.load({}, {}, [path]).config == config.Config()
