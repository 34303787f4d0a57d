"""Which network addresses a page may be fetched from: those of the public internet, whatever form they come in.

The registries are IANA's special-purpose address registries (RFC 6890 and its updates); IPv6 forms that carry an IPv4
address (RFC 4291, 3056, 6052) count as what they carry.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_GLOBAL_UNICAST = IPv6Network("2000::/3")  # all that is given out
_NAT64 = IPv6Network("64:ff9b::/96")
# Not private by their number, but no web site either: cloud machines' own services answer there.
_CLOUD_SERVICES = (IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"))
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def is_public(address: str) -> bool:
    """Whether this IPv4 or IPv6 address belongs to the public internet; text that is no address does not."""
    try:
        one = ip_address(address)
    except ValueError:
        return False
    if isinstance(one, IPv6Address):
        carried = _carried(one)
        if carried is None:
            return one in _GLOBAL_UNICAST and one.is_global
        one = carried
    return one.is_global and not one.is_multicast and not any(one in network for network in _CLOUD_SERVICES)


def is_literal(host: str) -> bool:
    """Whether a host is an address already, in a form that has one meaning only."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_disguised(host: str) -> bool:
    """Whether a host is a number that some systems read as an IPv4 address: 127.1, 0x7f000001, 2130706433."""
    last = host.rstrip(".").rpartition(".")[2]
    return bool(_NUMBER.fullmatch(last)) and not is_literal(host)


def _carried(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address inside a mapped, 6to4 or NAT64 address."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
