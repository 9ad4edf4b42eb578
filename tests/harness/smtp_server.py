"""A mail server for tests: accepts mails and keeps them, or replies as a test plans it.

It runs in the event loop of the test; the clients run in threads."""

from __future__ import annotations

import asyncio
import email
import email.policy
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import EmailMessage


@dataclass
class Mail:
    sender: str
    recipients: list[str] = field(default_factory=list)
    raw: bytes = b""

    @property
    def message(self) -> EmailMessage:
        return email.message_from_bytes(self.raw, policy=email.policy.default)


class SmtpServer:
    def __init__(
        self, *, tls: ssl.SSLContext | None = None, extensions: tuple[str, ...] = ()
    ) -> None:
        self._tls = tls
        self._extensions = extensions
        self.mails: list[Mail] = []
        self.commands: list[str] = []  # as they came, with the dialogue's verbs
        # Replies in place of the usual ones, by verb. None: close the connection.
        self.replies: dict[str, str | None] = {}
        self.held: asyncio.Event | None = None  # if set, mails are accepted after this event
        self.waiting = 0  # mails that wait for it
        self.waiting_max = 0
        self._changed = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> SmtpServer:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def until(self, condition: Callable[[SmtpServer], bool]) -> None:
        while not condition(self):
            self._changed.clear()
            await self._changed.wait()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mail = Mail("")
        reply: str | None = self.replies.get("connect", "220 ready")
        while reply is not None:
            writer.write(reply.encode() + b"\r\n")
            await writer.drain()
            line = (await reader.readline()).decode("latin-1").rstrip("\r\n")
            if not line:
                return
            self.commands.append(line)
            verb, _, rest = line.partition(" ")
            verb = verb.upper()
            if verb == "MAIL":
                mail = Mail(rest)
            elif verb == "RCPT":
                mail.recipients.append(rest)
            elif verb == "DATA" and verb not in self.replies:
                writer.write(b"354 go\r\n")
                data = await reader.readuntil(b"\r\n.\r\n")
                mail.raw = data[:-3].replace(b"\r\n..", b"\r\n.")
                await self._hold()
                verb = "."
            reply = self.replies[verb] if verb in self.replies else self._usual(verb)
            if verb == "." and verb not in self.replies:
                self.mails.append(mail)
                self._changed.set()
            if verb == "QUIT" and verb not in self.replies:
                writer.write(b"221 bye\r\n")
                return

    async def _hold(self) -> None:
        if self.held is not None:
            self.waiting += 1
            self.waiting_max = max(self.waiting, self.waiting_max)
            self._changed.set()
            await self.held.wait()
            self.waiting -= 1

    def _usual(self, verb: str) -> str:
        if verb == "EHLO":
            lines = ("250-localhost", *(f"250-{one}" for one in self._extensions), "250 HELP")
            return "\r\n".join(lines)
        return "235 in" if verb == "AUTH" else "250 ok"
