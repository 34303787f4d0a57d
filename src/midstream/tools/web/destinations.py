"""Which hosts, ports and addresses may be fetched, directly or through a proxy.

Only http and https, only the ports that settings allow, only hosts whose addresses all belong to the public internet,
in whatever form they are written. The registries are IANA's special-purpose address registries (RFC 6890 and its
updates); IPv6 forms that carry an IPv4 address (RFC 4291, 3056, 6052) count as that address.

If the environment names a proxy for an address (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY), the proxy resolves
names, so they cannot be checked here: private addresses are then refused only if they are written as numbers, names
only if they are clearly internal ("localhost", "printer.local"). Restricting other names is up to the proxy.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote, urljoin, urlsplit

from yarl import URL

from midstream.core.errors import ToolServerError
from midstream.core.http import proxy_of
from midstream.tools.web.page import NoPage

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
    except ValueError as error:
        raise NoPage(f"{address[:200]!r} is not the address of a page: {error}") from error
    if not url.scheme or not url.host:
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
                    cause="this machine has no network, or its name server does not answer",
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
