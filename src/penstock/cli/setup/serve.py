"""The command ``penstock serve``. Flags that are not given are not passed to the server, so
that the configuration file and the environment apply."""

from collections.abc import Callable
from typing import Any

import click

from penstock.cli.terminal.options import Parsed, option

_KEYS: dict[str, str] = {}  # parameter → key of the configuration


def _flag(name: str, key: str, kind: Any, text: str, **more: Any) -> Callable[[Any], Any]:
    _KEYS[name.replace("-", "_")] = key
    return option(f"--{name}", kind, text, **more)


def _address(text: str) -> str:
    """Parse HOST:PORT. A port without host means the loopback address."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError(f"'{text}' is not of the form HOST:PORT")
    return f"{host or '127.0.0.1'}:{port}"


_ADDRESS = Parsed("host:port", _address)


@click.command()
@_flag("data", "node.data", "DIR", "data folder of the server")
@_flag("http", "http.listen", _ADDRESS, "address of the SQS endpoint; port 0: any free port")
@_flag("admin", "admin.listen", _ADDRESS, "address of the admin API; port 0: any free port")
@click.option("--config", "config_file", metavar="FILE", help="TOML configuration file")
@_flag(
    "fsync",
    "log.fsync",
    ["always", "interval", "never"],
    "when accepted messages are synced to disk",
)
@_flag("partitions", "queue.partitions", click.IntRange(1), "default partition count of new queues")
@_flag(
    "workers",
    "node.workers",
    click.IntRange(min=0),
    "number of worker processes; 0: one process serves everything",
)
@_flag("log-level", "telemetry.level", ["debug", "info", "warning", "error"], "minimum log level")
@_flag("kafka", "kafka.listen", "HOST:PORT|off", "Kafka listener address [default 127.0.0.1:9092]")
@_flag(
    "auth", "auth.mode", ["auto", "on", "off"], "authentication of clients; auto: off on loopback"
)
@_flag("tls-cert", "tls.cert_file", "FILE", "PEM file with the certificate chain of all listeners")
@_flag("tls-key", "tls.key_file", "FILE", "PEM file with the private key of the certificate")
@_flag(
    "insecure",
    "auth.insecure",
    None,
    "allow other machines to connect without TLS or authentication",
    is_flag=True,
    default=None,
)
@_flag("role", "node.roles", "ROLES", "node roles: metadata, or frontend,broker [default: all]")
@_flag("internal", "internal.listen", _ADDRESS, "address to which other nodes connect")
@_flag("node", "cluster.node", click.IntRange(1), "number of this node in its cluster")
@_flag("etcd", "cluster.etcd", "HOST:PORT[,...]", "addresses of the cluster's etcd")
@_flag("metadata", "metadata.service", "HOST:PORT[,...]", "addresses of the metadata nodes")
@_flag("log-format", "telemetry.format", ["auto", "json", "console"], "format of log lines")
@click.option("--print-config", is_flag=True, help="print every setting and its origin, then exit")
@click.option("--hints", is_flag=True, help="print example commands when the server is ready")
def serve(config_file: str | None, print_config: bool, hints: bool, **flags: object) -> None:
    """Start a server. It needs a data folder and no other service. Ctrl-C stops it.

    Precedence, highest first: flag, PENSTOCK_SECTION__KEY, configuration file, default."""
    from penstock.node import lifecycle

    given = {_KEYS[name]: value for name, value in flags.items() if value is not None}
    code = lifecycle.serve(given, config_file=config_file, print_config=print_config, hints=hints)
    raise click.exceptions.Exit(code)
