"""Sockets for httpcore2 on asyncio itself: half the cost of its general ones.

Most of it is system calls that are spared: a request's head and body go out together.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpcore2


class SocketBackend(httpcore2.AsyncNetworkBackend):
    """Opens sockets for httpcore2; what breaks is one of its errors."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect, to the first of the host's addresses that answers."""
        try:
            async with asyncio.timeout(timeout):
                _, stream = await asyncio.get_running_loop().create_connection(_Stream, host, port)
        except TimeoutError as failure:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout:g} s") from failure
        except (OSError, UnicodeError) as failure:  # an over-long host name is a UnicodeError
            raise httpcore2.ConnectError(str(failure)) from failure
        return stream


class _Stream(httpcore2.AsyncNetworkStream, asyncio.Protocol):
    """One socket. What arrives is kept until it is read: bodies are read whole, so nothing holds the sender back."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._unsent: list[bytes] = []
        self._ended = False
        self._failure: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What has arrived, or the next that does; b"" at the end. The caller's clock bounds it."""
        if self._unsent:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()
        if not self._received and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if not self._received and self._failure is not None:
            raise httpcore2.ReadError(str(self._failure)) from self._failure
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send with the next read."""
        if self._transport.is_closing():
            raise httpcore2.WriteError("the connection is closed")
        self._unsent.append(bytes(buffer))  # goes out with the next read: head and body in one system call

    async def aclose(self) -> None:
        """Close at once."""
        self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Speak TLS from here on."""
        try:
            async with asyncio.timeout(timeout):
                transport = await asyncio.get_running_loop().start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as failure:
            raise httpcore2.ConnectTimeout(f"no TLS handshake within {timeout:g} s") from failure
        except (OSError, ValueError) as failure:  # ssl.SSLError is an OSError
            self._transport.abort()
            raise httpcore2.ConnectError(str(failure)) from failure
        if transport is None:
            raise httpcore2.ConnectError("the connection was lost in the TLS handshake")
        self._transport = transport
        return self

    def get_extra_info(self, info: str) -> Any:
        """What asyncio knows of the socket; "is_readable": an idle connection on which anything has come is over."""
        if info == "is_readable":
            return self._ended or bool(self._received)
        return self._transport.get_extra_info(info)

    # --- what asyncio calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        self._received += data
        self._wake()

    def eof_received(self) -> bool:
        """The server sends no more: close."""
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, or broken by `exc`."""
        self._end(exc)

    def _end(self, failure: Exception | None) -> None:
        self._ended, self._failure = True, self._failure or failure
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
