"""Makes ``python -m penstock`` run the ``penstock`` command."""

from penstock.cli.main import main

main()
