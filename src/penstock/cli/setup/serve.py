"""``penstock serve``: the flags of a server. A flag that is not given is not passed on, so that
file and environment apply."""

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
@click.option("--data", metavar="DIR", help="data folder")
@click.option("--http", type=Address(), help="address of the SQS endpoint; port 0: any free port")
@click.option("--admin", type=Address(), help="address of the admin API; port 0: any free port")
@click.option("--config", "config_file", metavar="FILE", help="configuration file, TOML")
@click.option(
    "--fsync",
    type=click.Choice(["always", "interval", "never"]),
    help="when an accepted message is synced to disk",
)
@click.option(
    "--partitions", type=click.IntRange(min=1), help="default partition count of new queues"
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    help="number of worker processes; 0: one process serves everything",
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="lowest log level"
)
@click.option("--kafka", metavar="HOST:PORT|off", help="Kafka listener [default 127.0.0.1:9092]")
@click.option(
    "--auth",
    type=click.Choice(["auto", "on", "off"]),
    help="authentication of clients; auto: off on loopback",
)
@click.option("--tls-cert", metavar="FILE", help="certificate and chain of all listeners, PEM")
@click.option("--tls-key", metavar="FILE", help="private key of the certificate, PEM")
@click.option(
    "--insecure", is_flag=True, default=None, help="serve other machines without TLS or --auth"
)
@click.option(
    "--role", metavar="ROLES", help="metadata, or frontend,broker with --metadata [default: all]"
)
@click.option(
    "--internal",
    type=Address(),
    help="address for other nodes, of a cluster node or a metadata node",
)
@click.option("--node", type=click.IntRange(1), help="number of this node in its cluster")
@click.option("--etcd", metavar="HOST:PORT[,...]", help="addresses of the cluster's etcd")
@click.option(
    "--metadata", metavar="HOST:PORT[,...]", help="metadata nodes [default: this process]"
)
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="log format")
@click.option("--print-config", is_flag=True, help="print every setting and its origin, then exit")
@click.option("--hints", is_flag=True, help="print example commands when the server is ready")
def serve(config_file: str | None, print_config: bool, hints: bool, **flags: object) -> None:
    """Start a server; it needs a data folder and no other service. Ctrl-C stops it.

    Precedence of settings: flag, PENSTOCK_SECTION__KEY, configuration file, default.
    """
    from penstock.node import lifecycle

    given = {_KEYS[name]: value for name, value in flags.items() if value is not None}
    code = lifecycle.serve(given, config_file=config_file, print_config=print_config, hints=hints)
    raise click.exceptions.Exit(code)
