"""What a command works with: settings, the three clients, the output.

A client is created at first use, so a command that only reads a file opens no connection."""

from typing import TYPE_CHECKING

import click

from penstock.cli.clients.contexts import Settings
from penstock.cli.terminal.output import Output

if TYPE_CHECKING:
    from penstock.cli.clients.http import Admin, Sqs
    from penstock.cli.clients.kafka import Kafka


class Session:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.out = Output(settings.output)
        self._sqs: Sqs | None = None
        self._admin: Admin | None = None
        self._kafka: Kafka | None = None

    @property
    def sqs(self) -> "Sqs":
        if self._sqs is None:
            from penstock.cli.clients.http import Sqs

            self._sqs = Sqs(self.settings.endpoint, self.settings)
        return self._sqs

    @property
    def admin(self) -> "Admin":
        if self._admin is None:
            from penstock.cli.clients.http import Admin, as_seen_from

            url, account_default = self.settings.admin, None
            if url is None:
                info = self.sqs.info()
                url = as_seen_from(self.settings.endpoint, str(info["admin"]))
                # The account that the SQS API uses, so that both APIs show the same queues.
                account_default = info.get("account")
            self._admin = Admin(url, self.settings, account_default=account_default)
        return self._admin

    @property
    def kafka(self) -> "Kafka":
        if self._kafka is None:
            from penstock.cli.clients.kafka import connected

            is_tls = self.settings.endpoint.startswith("https:")
            timeout_s = self.settings.timeout_s
            self._kafka = connected(self._kafka_listener(), is_tls=is_tls, timeout_s=timeout_s)
        return self._kafka

    def _kafka_listener(self) -> str:
        """Return the address that was given, or that the server reports."""
        from penstock.cli.clients.http import as_seen_from
        from penstock.cli.clients.kafka import ADDRESS_DEFAULT

        settings = self.settings
        if settings.kafka is not None:
            return settings.kafka
        if settings.admin is None and (reported := self.sqs.info().get("kafka")):
            return as_seen_from(settings.endpoint, str(reported))
        info = self.admin.info()
        address = str((info.get("endpoints") or {}).get("kafka") or ADDRESS_DEFAULT)
        protocol = str(info.get("kafka_protocol") or "")
        address = as_seen_from(self.admin.url, address)
        return f"{protocol}://{address}" if protocol else address

    def remark(self, text: str) -> None:
        """Print a sentence for a person, to stderr, so that a pipe never gets it."""
        if not self.settings.quiet:
            click.echo(text, err=True)

    def close(self) -> None:
        for client in (self._sqs, self._admin, self._kafka):
            if client is not None:
                client.close()
