"""Where a fetch may go: which hosts, ports and addresses, directly or by way of a proxy.

Only http and https, only the ports that settings allow, only hosts whose addresses are all public (`addresses.py`).

Where the environment names a proxy for an address (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY), the proxy resolves
names, and so no one here can check them: private addresses are then refused only where they are written as numbers,
names only where they are plainly inner ones ("localhost", "printer.local"). What other names lead to is the proxy's to
restrict.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from urllib.request import getproxies, proxy_bypass

import httpx2

from midstream.core.errors import ToolServerError
from midstream.tools.web.addresses import is_disguised, is_literal, is_public
from midstream.tools.web.page import NoPage

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]  # (host, port) -> addresses

_URL_CHARACTERS = 2000
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_HOST_CHARACTERS = 253
_PORTS = {"http": 80, "https": 443}
# With a proxy a name's address is unknown; these are never a public site's.
_INNER = re.compile(r"[^.]+|(.*\.)?(localhost|local|internal|home\.arpa)")


async def resolve(host: str, port: int) -> Sequence[str]:
    """The system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def parsed(address: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """An address as its parts; `base` is what a redirect's is relative to.

    Raises:
        NoPage: it is none.
    """
    address = address.strip()
    try:
        if len(address) > _URL_CHARACTERS:
            raise httpx2.InvalidURL(f"longer than {_URL_CHARACTERS} characters")
        url = base.join(address) if base else httpx2.URL(address)
    except (httpx2.InvalidURL, ValueError) as error:
        raise NoPage(f"{address[:200]!r} is no address of a page: {error}") from error
    if not url.scheme or not url.host:
        raise NoPage(f"{address[:200]!r} is no whole address; give one such as https://example.org/page")
    return url


async def targets_of(
    url: httpx2.URL, ports: Collection[int], allow_private: Collection[str], resolver: Resolver
) -> tuple[Sequence[str], str | None]:
    """Where to connect for `url`: checked addresses, or its host's name and the proxy that resolves it.

    Raises:
        NoPage: `url` may not be fetched, or there is no such host.
        ToolServerError: its name cannot be resolved now.
    """
    host, port = url.host, _PORTS.get(url.scheme, 0) if url.port is None else url.port
    raw_host = url.raw_host.decode("ascii")
    literal = is_literal(raw_host)
    if url.scheme not in _PORTS:
        raise NoPage(f"{url.scheme}:// addresses cannot be read; give one that begins with https:// or http://")
    if url.userinfo:
        raise NoPage("an address with a user name or password in it is not fetched")
    if not literal and not _is_name(raw_host):
        raise NoPage(f"{host!r} is no host name")
    if port not in ports:
        raise NoPage(f"port {port} is not allowed; allowed: {', '.join(map(str, ports))}")
    proxy = _proxy(url, raw_host)
    targets = [raw_host] if literal or proxy else await _resolved(raw_host, port, resolver)
    public = not _is_inner(raw_host) if proxy and not literal else all(map(is_public, targets))
    if not public and not {host, raw_host} & set(allow_private):
        raise NoPage(f"{host} is not on the public internet, so it is not fetched")
    return targets, proxy


async def _resolved(host: str, port: int, resolver: Resolver) -> Sequence[str]:
    try:
        found = list(dict.fromkeys(await resolver(host, port)))
    except socket.gaierror as error:
        if error.errno != socket.EAI_AGAIN:
            raise NoPage(f"there is no host {host}") from error
        raise ToolServerError(
            f"{host} could not be resolved: {error.strerror}",
            cause="this machine has no network, or its name server does not answer",
            fix=f"try: getent hosts {host}",
        ) from error
    if not found:
        raise NoPage(f"there is no host {host}")
    return found


def _is_name(host: str) -> bool:
    return len(host) <= _HOST_CHARACTERS and bool(_HOST.fullmatch(host)) and not is_disguised(host)


def _is_inner(host: str) -> bool:
    return bool(_INNER.fullmatch(host.rstrip(".")))


def _proxy(url: httpx2.URL, host: str) -> str | None:
    """The environment's proxy for `url`, if it has one."""
    proxies = getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or proxy_bypass(host):
        return None
    return named if "://" in named else f"http://{named}"
