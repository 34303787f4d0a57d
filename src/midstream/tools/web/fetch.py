"""Fetching a web page whose address someone else chose, without reaching into the user's own network.

Every hop of a redirect is checked anew (`destinations.py`), and the connection goes to the very address that was
checked: a name that resolves to something else a moment later changes nothing. What arrives is bounded in time and in
bytes, compressed and unpacked.

What a model can bring about by its choice of address is never an error but `NoPage`, which says why, a web site's 500
included: else a policy could escape a bad outcome by visiting broken pages.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from collections.abc import Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Annotated

import httpx2
from pydantic import AfterValidator, Field

from midstream.core.data import Frozen
from midstream.core.errors import ToolServerError
from midstream.core.http import certificates, usable_proxy
from midstream.core.version import __version__
from midstream.tools.web.destinations import Resolver, parsed, resolve, targets_of
from midstream.tools.web.page import NoPage, Page, check_readable, moved_to, unpacker

_ADDRESSES_TRIED = 3
_CONNECT_S = 4.0  # of one address
_AGAIN = (429, 500, 502, 503, 504)  # answers that may differ a moment later
_AGAIN_AFTER_S = 0.5
_MOVED = (301, 302, 303, 307, 308)
_HEADERS = {
    "Accept": "text/html,application/xhtml+xml,text/*;q=0.9,application/json;q=0.9,application/xml;q=0.9,*/*;q=0.1",
    "Accept-Encoding": "gzip, deflate",
}

_HOST = re.compile(r"[^\s/@:]+|[^\s/@:]*:[^\s/@:]*:[^\s/@]*")  # one colon would be a port's, two are IPv6


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("not a host alone, such as 127.0.0.1 or wiki.local")
    return text


class Limits(Frozen):
    """What may be fetched, and how much.

    `fetch_s` bounds all of a fetch, `headers_s` the wait for an answer's beginning, `max_kb` a page's bytes, as sent
    and unpacked: a longer one is cut. `ports` are those that an address may name. `allow_private` names hosts as
    addresses write them ("127.0.0.1", "wiki.local") that are fetched although they are not public. `user_agent` is what
    servers are told of who asks.
    """

    fetch_s: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    headers_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    max_kb: int = Field(default=2000, ge=1)
    redirects: int = Field(default=5, ge=0)
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = (80, 443)
    allow_private: tuple[Annotated[str, AfterValidator(_host)], ...] = ()
    user_agent: str | None = Field(default=None, pattern=r"^[!-~]([ -~]*[!-~])?$")


class Fetcher:
    """Fetches pages within limits; holds no connection between two of them.

    Args:
        resolver: finds a host's addresses; raises `socket.gaierror`.
    """

    def __init__(self, limits: Limits | None = None, resolver: Resolver = resolve) -> None:
        self._limits = limits or Limits()
        self._resolver = resolver
        self._user_agent = self._limits.user_agent or f"midstream/{__version__}"

    async def fetch(self, address: str) -> Page:
        """The text page at an address, or where it redirects to.

        Raises:
            NoPage: there is none that may be read.
            ToolServerError: names cannot be resolved now, or the proxy does not answer.
            UnsupportedError: the environment's proxy is of a kind that cannot be used.
        """
        limit = asyncio.timeout(self._limits.fetch_s)
        try:
            async with limit:
                return await self._follow(parsed(address))
        except TimeoutError:
            if not limit.expired():
                raise
            raise NoPage(f"the page did not arrive within {self._limits.fetch_s:g} s") from None

    async def _follow(self, url: httpx2.URL) -> Page:
        for _ in range(self._limits.redirects + 1):
            found = await self._get(url)
            if isinstance(found, httpx2.URL):
                url = found
                continue
            onward = _onward(url, found)
            if onward is None:
                return found
            url = onward
        raise NoPage(f"more than {self._limits.redirects} redirects, the last one to {url}")

    async def _get(self, url: httpx2.URL) -> Page | httpx2.URL:
        """The page at `url` or the address that it redirects to; what may pass is tried once more."""
        targets, proxy = await targets_of(url, self._limits.ports, self._limits.allow_private, self._resolver)
        for attempt in (1, 2):
            try:
                return await self._ask(url, targets, proxy, final=attempt == 2)
            except _TryAgain:
                await asyncio.sleep(_AGAIN_AFTER_S)
        raise AssertionError("the second attempt gives a page or raises")

    async def _ask(
        self, url: httpx2.URL, targets: Sequence[str], proxy: str | None, *, final: bool
    ) -> Page | httpx2.URL:
        """Ask the first of `targets` that takes a connection."""
        failure: Exception | None = None
        for target in targets[:_ADDRESSES_TRIED]:
            try:
                return await self._exchange(url, target, proxy, final=final)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
            except httpx2.HTTPError as error:
                if final or not isinstance(error, httpx2.TransportError):
                    raise NoPage(f"{url.host} did not answer properly: {_plain(error)}") from error
                raise _TryAgain from error
        if proxy:
            raise ToolServerError(
                f"the proxy for {url.scheme}:// addresses does not answer: {_plain(failure)}",
                cause="the proxy that the environment names is down, or its address is wrong",
                fix=f"see to {url.scheme}_proxy, or unset it",
            ) from failure
        raise NoPage(f"no connection to {url.host}: {_plain(failure)}") from failure

    async def _exchange(self, url: httpx2.URL, target: str, proxy: str | None, *, final: bool) -> Page | httpx2.URL:
        """One request on a connection of its own, so that no two hosts ever share one."""
        limits = self._limits
        request = httpx2.Request(
            "GET",
            url.copy_with(host=target, fragment=None),
            headers={"Host": url.netloc.decode("ascii"), "User-Agent": self._user_agent, **_HEADERS},
            extensions={
                # Certificates are checked against the name, not against the address connected to.
                "sni_hostname": url.raw_host.decode("ascii").rstrip("."),
                "timeout": {"connect": _CONNECT_S},
            },
        )
        async with self._transport(proxy) as transport:
            limit = asyncio.timeout(limits.headers_s)
            try:
                async with limit:
                    response = await transport.handle_async_request(request)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise NoPage(f"{url.host} did not answer within {limits.headers_s:g} s") from None
            try:
                return await self._taken(url, response, final=final)
            finally:
                await response.aclose()

    async def _taken(self, url: httpx2.URL, response: httpx2.Response, *, final: bool) -> Page | httpx2.URL:
        """What an answer gives, judged by its head before anything of its body is read."""
        status, location = response.status_code, response.headers.get("location", "")
        if status in _MOVED and location:
            return parsed(location, url)
        if status in _AGAIN and not final:
            raise _TryAgain
        if not 200 <= status < 300:
            raise NoPage(f"{url.host} answers with status {status}{_phrase(status)}")
        content_type = response.headers.get("content-type", "")
        media_type = content_type.partition(";")[0].strip().lower()
        check_readable(media_type)
        body, cut = await self._body(response)
        check_readable(media_type, body)
        charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", content_type, re.IGNORECASE)
        return Page(url=str(url), media_type=media_type, charset=charset[1] if charset else "", body=body, cut=cut)

    async def _body(self, response: httpx2.Response) -> tuple[bytes, bool]:
        """At most `max_kb` of the unpacked body, and whether there was more."""
        limit = self._limits.max_kb * 1000
        unpack = unpacker(response.headers.get("content-encoding", ""))
        arrived, body = 0, bytearray()
        try:
            async for part in response.aiter_raw():
                arrived += len(part)
                body += unpack(part, limit + 1 - len(body))
                if arrived > limit or len(body) > limit:
                    return bytes(body[:limit]), True
        except zlib.error as error:
            raise NoPage(f"the page is damaged: {error}") from error
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            if not body:
                raise
            return bytes(body), True  # it ended early: what came can be read
        return bytes(body), False

    def _transport(self, proxy: str | None) -> httpx2.AsyncHTTPTransport:
        with usable_proxy():
            return httpx2.AsyncHTTPTransport(
                verify=self._tls, trust_env=False, proxy=proxy, limits=httpx2.Limits(max_keepalive_connections=0)
            )

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return certificates()  # once for all pages


class _TryAgain(Exception):
    """This attempt failed in a way that may pass."""


def _onward(url: httpx2.URL, page: Page) -> httpx2.URL | None:
    """The address that a page says it moved to; one that only loads itself again stays."""
    target = moved_to(page)
    onward = parsed(target, url) if target else url
    return None if onward.copy_with(fragment=None) == url.copy_with(fragment=None) else onward


def _phrase(status: int) -> str:
    try:
        return f" ({HTTPStatus(status).phrase})"
    except ValueError:
        return ""


def _plain(error: Exception | None) -> str:
    """An error's text, or its name where it has none."""
    return str(error) or type(error).__name__
