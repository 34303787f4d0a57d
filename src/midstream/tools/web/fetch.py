"""Fetching a web page whose address a model chose, without reaching into the user's own network.

Every hop of a redirect is checked (`destinations.py`), and the connection goes to the very address that was checked: a
name that resolves to something else a moment later changes nothing. The response is bounded in time and in bytes,
compressed and decompressed.

A failure that a model can cause by its choice of address is never an error but `NoPage` with the reason, including a
web site's 500: otherwise a policy could escape a bad outcome by visiting broken pages.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

import httpx2
from pydantic import Field

from midstream.core.data import Settings
from midstream.core.errors import ToolServerError
from midstream.core.http import certificates, usable_proxy
from midstream.core.version import __version__
from midstream.tools.web.destinations import Resolver, parsed, resolve, targets_of
from midstream.tools.web.page import NoPage, Page, check_readable, redirect_of

_ADDRESSES_TRIED = 3
_CONNECT_S = 4.0  # for one address
_TRANSIENT = (429, 500, 502, 503, 504)  # statuses that may differ a moment later
_RETRY_AFTER_S = 0.5
_MOVED = (301, 302, 303, 307, 308)
_HEADERS = {
    "Accept": "text/html,application/xhtml+xml,text/*;q=0.9,application/json;q=0.9,application/xml;q=0.9,*/*;q=0.1",
    "Accept-Encoding": "gzip, deflate",
}


# One colon would be a port's, two are IPv6.
_Host = Annotated[str, Field(pattern=r"^([^\s/@:]+|[^\s/@:]*:[^\s/@:]*:[^\s/@]*)$")]


class _TransientError(NoPage):
    """There is no page at this attempt; another may find it."""


class Limits(Settings):
    """What may be fetched, and how much.

    Attributes:
        fetch_s: seconds of one fetch, redirects included
        headers_s: seconds to the beginning of a response
        max_kb: kilobytes of a page, as sent and decompressed; a longer page is cut, and the result says so
        redirects: the most redirects
        ports: the ports that an address may name
        allow_private: hosts that are not public but may be fetched, as addresses write them: `["127.0.0.1",
            "wiki.local"]`
        user_agent: the User-Agent header; by default midstream and its version
    """

    fetch_s: float = Field(default=20.0, gt=0)
    headers_s: float = Field(default=10.0, gt=0)
    max_kb: int = Field(default=2000, ge=1)
    redirects: int = Field(default=5, ge=0)
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = (80, 443)
    allow_private: tuple[_Host, ...] = ()
    user_agent: str | None = Field(default=None, pattern=r"^[!-~]([ -~]*[!-~])?$")


class Fetcher:
    """Fetches pages within limits; keeps no connection open between two. `resolver` raises `socket.gaierror`."""

    def __init__(self, limits: Limits | None = None, resolver: Resolver = resolve) -> None:
        self._limits = limits or Limits()
        self._resolver = resolver
        self._tls = certificates()  # once for all pages: it takes 20 ms
        self._user_agent = self._limits.user_agent or f"midstream/{__version__}"

    async def fetch(self, address: str) -> Page:
        """The text page at an address, or where it redirects to.

        Raises:
            NoPage: there is no page that may be read.
            ToolServerError: names cannot be resolved now, or the proxy does not answer.
            UnsupportedError: the environment's proxy is of a kind that cannot be used.
        """
        limit = asyncio.timeout(self._limits.fetch_s)
        url = parsed(address)
        try:
            async with limit:
                for _ in range(self._limits.redirects + 1):
                    targets, proxy = await targets_of(
                        url, self._limits.ports, self._limits.allow_private, self._resolver
                    )
                    try:
                        found = await self._request(url, targets, proxy)
                    except _TransientError:
                        await asyncio.sleep(_RETRY_AFTER_S)
                        found = await self._request(url, targets, proxy)
                    if isinstance(found, Page):
                        target = redirect_of(found)
                        onward = url if target is None else parsed(target, url)
                        if onward.copy_with(fragment=None) == url.copy_with(fragment=None):  # it only reloads itself
                            return found
                        found = onward
                    url = found
        except TimeoutError:
            if not limit.expired():
                raise
            raise NoPage(f"the page did not arrive within {self._limits.fetch_s:g} s") from None
        raise NoPage(f"more than {self._limits.redirects} redirects, the last one to {url}")

    async def _request(self, url: httpx2.URL, targets: Sequence[str], proxy: str | None) -> Page | httpx2.URL:
        """The page at `url` or the address that it redirects to, from the first target that accepts a connection."""
        failure: Exception | None = None
        for target in targets[:_ADDRESSES_TRIED]:
            try:
                return await self._exchange(url, target, proxy)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
            except httpx2.HTTPError as error:
                kind = _TransientError if isinstance(error, httpx2.TransportError) else NoPage
                reason = str(error) or type(error).__name__
                raise kind(f"{url.host} did not send a valid response: {reason}") from error
        reason = str(failure) or type(failure).__name__
        if proxy:
            raise ToolServerError(
                f"the proxy for {url.scheme}:// addresses does not answer: {reason}",
                code="network",
                cause="the proxy that the environment names is down, or its address is wrong",
                fix=f"correct {url.scheme}_proxy, or unset it",
            ) from failure
        raise NoPage(f"no connection to {url.host}: {reason}") from failure

    async def _exchange(self, url: httpx2.URL, target: str, proxy: str | None) -> Page | httpx2.URL:
        """One request on a new connection, so that two hosts never share one."""
        request = httpx2.Request(
            "GET",
            url.copy_with(host=target, fragment=None),
            headers={"Host": url.netloc.decode("ascii"), "User-Agent": self._user_agent, **_HEADERS},
            extensions={
                # Certificates are verified against the name, not against the address connected to.
                "sni_hostname": url.raw_host.decode("ascii").rstrip("."),
                "timeout": {"connect": _CONNECT_S},
            },
        )
        with usable_proxy():
            transport = httpx2.AsyncHTTPTransport(
                verify=self._tls, trust_env=False, proxy=proxy, limits=httpx2.Limits(max_keepalive_connections=0)
            )
        async with transport:
            limit = asyncio.timeout(self._limits.headers_s)
            try:
                async with limit:
                    response = await transport.handle_async_request(request)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise NoPage(f"{url.host} did not answer within {self._limits.headers_s:g} s") from None
            try:
                return await self._page_of(url, response)
            finally:
                await response.aclose()

    async def _page_of(self, url: httpx2.URL, response: httpx2.Response) -> Page | httpx2.URL:
        """The page of a response or the target of a redirect; the head is judged before the body is read."""
        status, location = response.status_code, response.headers.get("location", "")
        if status in _MOVED and location:
            return parsed(location, url)
        if not 200 <= status < 300:
            known = status in HTTPStatus.__members__.values()
            phrase = f" ({HTTPStatus(status).phrase})" if known else ""
            kind = _TransientError if status in _TRANSIENT else NoPage
            raise kind(f"{url.host} answers with status {status}{phrase}")
        content_type = response.headers.get("content-type", "")
        media_type = content_type.partition(";")[0].strip().lower()
        check_readable(media_type)
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding == "x-gzip":  # an old name, which httpx2 does not know
            response.headers["content-encoding"] = encoding = "gzip"
        if encoding not in ("", "identity", "gzip", "deflate"):
            raise NoPage(f"the page is compressed as {encoding[:40]!r}, which was not requested")
        # At most `max_kb` of the body, as sent and decompressed; httpx2 decompresses in small pieces.
        limit = self._limits.max_kb * 1000
        body, cut = bytearray(), False
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if max(len(body), response.num_bytes_downloaded) > limit:
                    cut = True
                    break
        except httpx2.DecodingError as error:
            raise NoPage(f"the page is damaged: {error}") from error
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            if not body:
                raise
            cut = True  # the connection ended early: what arrived can be read
        text = bytes(body[:limit])
        check_readable(media_type, text)
        charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", content_type, re.IGNORECASE)
        return Page(url=str(url), media_type=media_type, charset=charset[1] if charset else "", body=text, cut=cut)
