"""Fetching a web page whose address a model chose, without reaching into the user's own network.

Every hop of a redirect is checked (`targets_of`), and the connection goes to the very address that was checked: a name
that resolves to something else a moment later changes nothing. The response is bounded in time and, decompressed,
in bytes.

A failure that a model can cause by its choice of address is never an error but `NoPage` with the reason, including a
web site's 500: otherwise a policy could escape a bad outcome by visiting broken pages.

Which hosts, ports and addresses may be fetched: only http and https, only the ports that settings allow, only hosts
whose addresses all belong to the public internet, in whatever form they are written. The registries are IANA's
special-purpose address registries (RFC 6890 and its updates); IPv6 forms that carry an IPv4 address (RFC 4291, 3056,
6052) count as that address.

If the environment names a proxy for an address (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY), the proxy resolves
names, so they cannot be checked here: private addresses are then refused only if they are written as numbers, names
only if they are clearly internal ("localhost", "printer.local"). Restricting other names is up to the proxy.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Annotated
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from pydantic import Field
from yarl import URL

from midstream.core.data import Settings
from midstream.core.errors import ToolServerError
from midstream.core.http import proxy_of, session_for
from midstream.core.version import __version__
from midstream_web.page import NoPage, Page, check_readable, redirect_of

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]  # (host, port) -> addresses

_URL_CHARACTERS = 2000
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_HOST_CHARACTERS = 253
_WRITTEN = "/?:@!$&'()*+,;=%~[]"  # characters that stay as they are in a path or a query, besides letters and digits
# Names that are never a public site's.
_INTERNAL = re.compile(r"[^.]+|(.*\.)?(localhost|local|internal|home\.arpa)")
_GLOBAL_UNICAST = IPv6Network("2000::/3")  # all IPv6 addresses that are assigned
_NAT64 = IPv6Network("64:ff9b::/96")
# Not private by number, but never a web site: the metadata services of cloud machines.
_CLOUD_SERVICES = (IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"))


async def resolve(host: str, port: int) -> Sequence[str]:
    """The system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def parsed(address: str, base: URL | None = None) -> URL:
    """An address in its parts, a redirect's relative to `base`; raises `NoPage` if it is not a complete address."""
    address = address.strip()
    try:
        if len(address) > _URL_CHARACTERS or not address.isprintable():
            raise ValueError(f"it has control characters, or is longer than {_URL_CHARACTERS} characters")
        parts = urlsplit(urljoin(str(base), address) if base else address)
        # The host is encoded as domain names are, and the rest sent as it is written: yarl would quote it again.
        url = URL(f"{parts.scheme}://{parts.netloc}") if parts.netloc else URL()
        rest = parts._replace(scheme="", netloc="", path=parts.path or "/").geturl()
        url = URL(f"{url}{quote(rest, safe=_WRITTEN + '#')}", encoded=True)
        # Read here, because a name that claims to be internationalized ("xn--") may not decode.
        complete = bool(url.scheme and url.host)
    except ValueError as error:
        raise NoPage(f"{address[:200]!r} is not the address of a page: {error}") from error
    if not complete:
        raise NoPage(f"{address[:200]!r} is not a complete address; give one such as https://example.org/page")
    return url


async def targets_of(
    url: URL, ports: Collection[int], allow_private: Collection[str], resolver: Resolver
) -> tuple[Sequence[str], URL | None]:
    """Where to connect for `url`: checked addresses, or its host's name and the proxy that resolves it.

    Raises:
        NoPage: `url` may not be fetched, or there is no such host.
        ToolServerError: its name cannot be resolved now.
        UnsupportedError: the environment's proxy is of a kind that cannot be used.
    """
    host, raw_host, port = url.host or "", url.raw_host or "", url.port
    literal = is_literal(raw_host)
    is_name = len(raw_host) <= _HOST_CHARACTERS and _HOST.fullmatch(raw_host) and not is_disguised(raw_host)
    if url.scheme not in ("http", "https"):
        raise NoPage(f"{url.scheme}:// addresses cannot be read; give one that begins with https:// or http://")
    if url.raw_user is not None or url.raw_password is not None:
        raise NoPage("an address with a user name or password in it is not fetched")
    if not literal and not is_name:
        raise NoPage(f"{host!r} is not a host name")
    if port is None or port not in ports:
        raise NoPage(f"port {port} is not allowed; allowed: {', '.join(map(str, ports))}")
    proxy = proxy_of(url)
    targets: Sequence[str] = [raw_host]
    if not literal and not proxy:
        try:
            targets = list(dict.fromkeys(await resolver(raw_host, port)))
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise ToolServerError(
                    f"{raw_host} could not be resolved: {error.strerror}",
                    code="network",
                    fix=f"try: getent hosts {raw_host}",
                ) from error
            targets = []
        if not targets:
            raise NoPage(f"there is no host {raw_host}")
    if proxy and not literal:
        public = not _INTERNAL.fullmatch(raw_host.rstrip("."))
    else:
        public = all(is_public(target) for target in targets)
    if not public and not {host, raw_host} & set(allow_private):
        raise NoPage(f"{host} is not on the public internet, so it is not fetched")
    return targets, proxy


def is_public(address: str) -> bool:
    """Whether `address` is an IPv4 or IPv6 address of the public internet."""
    try:
        number = ip_address(address)
    except ValueError:
        return False
    if isinstance(number, IPv6Address):
        carried = IPv4Address(int(number) & 0xFFFFFFFF) if number in _NAT64 else number.ipv4_mapped or number.sixtofour
        if carried is None:
            return number in _GLOBAL_UNICAST and number.is_global
        number = carried
    return number.is_global and not number.is_multicast and not any(number in network for network in _CLOUD_SERVICES)


def is_literal(host: str) -> bool:
    """Whether a host is an address itself, in a form with only one meaning."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_disguised(host: str) -> bool:
    """Whether a host is a number that some systems read as an IPv4 address: 127.1, 0x7f000001, 2130706433."""
    last = host.rstrip(".").rpartition(".")[2]
    return bool(re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last)) and not is_literal(host)


_ADDRESSES_TRIED = 3
_CONNECT_TIMEOUT = aiohttp.ClientTimeout(sock_connect=4.0)  # of one address
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
        max_kb: kilobytes of a page, decompressed; a longer page is cut, and the result says so
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


class _Checked(AbstractResolver):
    """Resolves any name to the addresses that were checked."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """What aiohttp connects to, one after another."""
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""


class Fetcher:
    """Fetches pages within limits; keeps no connection open between two. `resolver` raises `socket.gaierror`."""

    def __init__(self, limits: Limits | None = None, resolver: Resolver = resolve) -> None:
        self._limits = limits or Limits()
        self._resolver = resolver
        self._headers = {"User-Agent": self._limits.user_agent or f"midstream/{__version__}"} | _HEADERS

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
                        if onward.with_fragment(None) == url.with_fragment(None):  # it only reloads itself
                            return found
                        found = onward
                    url = found
        except TimeoutError:
            if not limit.expired():
                raise
            raise NoPage(f"the page did not arrive within {self._limits.fetch_s:g} s") from None
        raise NoPage(f"more than {self._limits.redirects} redirects, the last one to {url}")

    async def _request(self, url: URL, targets: Sequence[str], proxy: URL | None) -> Page | URL:
        """The page at `url` or the address that it redirects to: one request on a new connection."""
        resolver = None if proxy else _Checked(targets[:_ADDRESSES_TRIED])
        limit = asyncio.timeout(self._limits.headers_s)
        try:
            async with session_for(proxy, resolver=resolver) as session:
                async with limit:
                    response = await session.get(
                        url,
                        headers=self._headers,
                        allow_redirects=False,
                        timeout=_CONNECT_TIMEOUT,
                    )
                async with response:
                    return await self._page_of(url, response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as failure:
            if proxy:
                raise ToolServerError(
                    f"the proxy for {url.scheme}:// addresses does not answer: {failure}",
                    code="network",
                    fix=f"correct {url.scheme}_proxy, or unset it",
                ) from failure
            raise NoPage(f"no connection to {url.host}: {failure}") from failure
        except aiohttp.ClientError as failure:
            reason = str(failure) or type(failure).__name__
            raise _TransientError(f"{url.host} did not send a valid response: {reason[:200]}") from failure
        except TimeoutError:
            if not limit.expired():
                raise
            raise NoPage(f"{url.host} did not answer within {self._limits.headers_s:g} s") from None

    async def _page_of(self, url: URL, response: aiohttp.ClientResponse) -> Page | URL:
        """The page of a response or the target of a redirect; the head is judged before the body is read."""
        status, location = response.status, response.headers.get("location", "")
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
        limit, body, cut = self._limits.max_kb * 1000, bytearray(), False
        try:
            # aiohttp decompresses in small pieces: no server can fill this machine's memory.
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > limit:
                    cut = True
                    break
        except aiohttp.ClientError:
            if not body:
                raise
            cut = True  # the connection ended early: what arrived can be read
        text = bytes(body[:limit])
        check_readable(media_type, text)
        charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", content_type, re.IGNORECASE)
        return Page(url=str(url), media_type=media_type, charset=charset[1] if charset else "", body=text, cut=cut)
