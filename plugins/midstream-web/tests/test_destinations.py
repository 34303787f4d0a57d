"""Which addresses are public, in whatever form."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream_web.fetch import is_disguised, is_public

INTERNAL = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )
]  # fmt: skip
INTERNAL_6 = [
    IPv6Network(text)
    for text in (
        "::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:db8::/32", "fc00::/7", "fe80::/10", "fec0::/10",
        "ff00::/8", "4000::/3",
    )
]  # fmt: skip


def within(networks: list) -> st.SearchStrategy:
    return st.sampled_from(networks).flatmap(
        lambda network: st.integers(int(network[0]), int(network[-1])).map(type(network[0]))
    )


def carriers(address: IPv4Address) -> list[IPv6Address]:
    """Mapped, NAT64 and 6to4."""
    number = int(address)
    return [
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address(0x64FF9B << 96 | number),
        IPv6Address(0x2002 << 112 | number << 80),
    ]


@given(within(INTERNAL))
def test_internal_addresses_are_not_public_in_any_form(address: IPv4Address):
    assert not is_public(str(address))
    assert not [form for form in carriers(address) if is_public(str(form))]


@given(within(INTERNAL_6))
def test_internal_addresses_of_version_6_are_not_public(address: IPv6Address):
    assert not is_public(str(address))
    assert not is_public(f"{address}%eth0")


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "172.15.0.1", "100.63.0.1", "223.255.255.1"])
def test_public_addresses(address: str):
    assert is_public(address)
    assert all(is_public(str(form)) for form in carriers(IPv4Address(address)))


def test_public_addresses_of_version_6():
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")
    assert is_public("2a00:1450:4001:82b::200e")


@given(st.text(max_size=30))
def test_other_text_is_not_a_public_address(text: str):
    assert not is_public(text + "x")


@pytest.mark.parametrize(
    ("host", "disguised"),
    [
        ("127.1", True), ("2130706433", True), ("0x7f000001", True), ("0x7f.0.0.1", True), ("127.0.0.0x1", True),
        ("1.2.3.4.5", True), ("0x", True), ("127.1.", True), ("017700000001", True),
        ("127.0.0.1", False), ("::1", False), ("example.org", False), ("1.example", False), ("x86", False),
        ("0xyz", False),
    ],
)  # fmt: skip
def test_numbers_written_as_names(host: str, disguised: bool):
    assert is_disguised(host) is disguised
