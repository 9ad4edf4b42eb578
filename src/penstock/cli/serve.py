"""``penstock serve``: the flags of a server. ``node/config.py`` describes the settings and
``node/lifecycle.py`` runs the server; a flag that is not given is not passed on, so that file and
environment apply."""

import click

# Flag → key of the configuration, for flags that were given.
_KEYS = {
    "data": "node.data",
    "role": "node.roles",
    "internal": "internal.listen",
    "metadata": "metadata.service",
    "node": "cluster.node",
    "etcd": "cluster.etcd",
    "http": "http.listen",
    "kafka": "kafka.listen",
    "admin": "admin.listen",
    "fsync": "log.fsync",
    "partitions": "queue.partitions",
    "workers": "node.workers",
    "auth": "auth.mode",
    "insecure": "auth.insecure",
    "tls_cert": "tls.cert_file",
    "tls_key": "tls.key_file",
    "log_level": "telemetry.level",
    "log_format": "telemetry.format",
}


class Address(click.ParamType[str]):
    """HOST:PORT; port 0 takes any free port. A bare port listens on the loopback address."""

    name = "host:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        text = str(value)
        host, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
            self.fail(f"'{text}' is not HOST:PORT", param, ctx)
        return f"{host or '127.0.0.1'}:{port}"


@click.command()
@click.option("--data", metavar="DIR", help="where messages are kept")
@click.option("--http", type=Address(), help="SQS endpoint; port 0 takes any free one")
@click.option("--admin", type=Address(), help="admin API and health; port 0 takes any free one")
@click.option("--config", "config_file", metavar="FILE", help="settings in TOML")
@click.option(
    "--fsync",
    type=click.Choice(["always", "interval", "never"]),
    help="when an accepted message is on disk",
)
@click.option("--partitions", type=click.IntRange(min=1), help="of a queue that does not say")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    help="processes to serve with, for more than one core; 0: this one alone",
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="how much to log"
)
@click.option(
    "--kafka", metavar="HOST:PORT|off", help="where to serve the Kafka protocol (127.0.0.1:9092)"
)
@click.option(
    "--auth",
    type=click.Choice(["auto", "on", "off"]),
    help="whether callers must sign; auto: not on loopback",
)
@click.option("--tls-cert", metavar="FILE", help="certificate and chain in PEM, for all listeners")
@click.option("--tls-key", metavar="FILE", help="its key in PEM")
@click.option(
    "--insecure", is_flag=True, default=None, help="serve other machines without TLS all the same"
)
@click.option(
    "--role", metavar="ROLES", help="metadata, or frontend,broker with --metadata; all by default"
)
@click.option(
    "--internal",
    type=Address(),
    help="where a node of a cluster, or a metadata node, listens for other nodes",
)
@click.option("--node", type=click.IntRange(1), help="this node's number in its cluster")
@click.option("--etcd", metavar="HOST:PORT[,...]", help="the etcd that the cluster is kept in")
@click.option(
    "--metadata", metavar="HOST:PORT[,...]", help="metadata nodes to ask instead of the own store"
)
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="how to log")
@click.option("--print-config", is_flag=True, help="show every setting and its origin, and stop")
@click.option("--hints", is_flag=True, help="say how to talk to the server once it is ready")
def serve(config_file: str | None, print_config: bool, hints: bool, **flags: object) -> None:
    """Start a server on embedded defaults: a data folder, no other service.

    Settings: built-in default, then the file, then PENSTOCK_SECTION__KEY, then these flags.
    """
    from penstock.model.errors import SetupError
    from penstock.node import lifecycle

    given = {_KEYS[name]: value for name, value in flags.items() if value is not None}
    try:
        code = lifecycle.serve(
            given, config_file=config_file, print_config=print_config, hints=hints
        )
    except SetupError as error:
        from penstock.cli.failure import ExitCode, Failure

        raise Failure(error.what, error.why, error.do, exit_code=ExitCode(error.code)) from error
    raise click.exceptions.Exit(code)
