"""Which addresses a page visit may connect to: public ones only, whatever a URL, a redirect or DNS says.

Three walls. `checked_url` reads a URL and refuses what cannot be meant: other schemes, user information, numbers that
are no plain dotted address, names of this machine. `GuardedResolver` refuses a name if any of its addresses is not
public; what it returns is what is connected to, so an answer that changes later does not matter. `guarded_socket` looks
once more at the very address, when the socket is made. Hosts in an allow-list pass all three.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Collection
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from mia.errors import DataError, ToolError
from web_tools.bounds import MAX_URL_CHARS

_REMEDY = "visit a public http or https page; a host of your own can be allowed in web.allow_hosts"
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*", re.IGNORECASE)
_NAME = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_\-]{0,61}[a-z0-9_])?\.)+[a-z0-9\-]{1,63}", re.IGNORECASE)
_HERE = ("localhost", "local", "internal", "lan", "intranet", "home", "corp", "arpa", "onion")
"""Last labels of names that mean this machine or this network, never a public page."""

_EXTRA_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata lies at 192.0.0.192
        "192.88.99.0/24",  # former 6to4 relays
        "168.63.129.16/32",  # a cloud's own service, although the address is public
        "2001::/23",  # protocol assignments, Teredo
        "2001:db8::/32",
        "2002::/16",  # 6to4 hides an IPv4 address
        "3fff::/20",  # documentation
    )
)
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Whether a textual IP address is one of the public Internet (IANA special-purpose registries).

    NAT64 addresses count as the IPv4 address inside, because behind DNS64 every IPv4-only page has one. All other
    forms that hide an IPv4 address (mapped, compatible, 6to4, Teredo) are not public; neither is one with a zone.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        if address in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
        if address not in _GLOBAL_V6:
            return False
    if any(address.version == network.version and address in network for network in _EXTRA_PRIVATE):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def checked_url(text: str, allow_hosts: Collection[str] = ()) -> tuple[URL, bool]:
    """A URL that may be visited, without its fragment, and whether its host is in the allow-list.

    Args:
        text: the URL as given.
        allow_hosts: hosts (`name` for every port, or `name:port`) that are visited although not public.

    Raises:
        DataError: the URL breaks a rule, which the message names (code `forbidden_url`), or is none (`bad_url`).
    """
    text = text.strip()
    if len(text) > MAX_URL_CHARS:
        raise DataError(f"the URL has {len(text)} characters", remedy=f"at most {MAX_URL_CHARS}", code="bad_url")
    if _UNPRINTABLE.search(text):
        raise DataError("the URL holds blanks, control characters or a backslash", remedy=_REMEDY, code="bad_url")
    try:
        url = URL(text)
        host, port = url.raw_host, url.port
    except (ValueError, UnicodeError) as error:
        raise DataError(f"{text[:200]!r} is no URL: {error}", remedy=_REMEDY, code="bad_url") from error
    if url.scheme not in ("http", "https"):
        raise _refused(text, "only http and https are visited")
    if not host:
        raise DataError(f"{text[:200]!r} names no host", remedy=_REMEDY, code="bad_url")
    if url.user is not None or url.password is not None or "@" in url.raw_authority:
        raise _refused(text, "user information in a URL is refused")
    allowed = host in allow_hosts or f"{host}:{port}" in allow_hosts
    if not allowed:
        _check_host(text, host)
    return url.with_fragment(None), allowed


def _check_host(text: str, host: str) -> None:
    name = host.removesuffix(".")
    last = name.rpartition(".")[2].lower()
    if ":" in host or _NUMBER.fullmatch(last):
        # A last label that is a number makes an address of the whole host (WHATWG URL, section 3.5). Only the plain
        # form is let through: short, octal, hexadecimal and decimal ones are read differently by different programs.
        if not is_public(host):
            raise _refused(text, "an address must be public and written plainly")
    elif last in _HERE or not _NAME.fullmatch(name):
        raise _refused(text, "the host is no name of a public page")


def _refused(text: str, rule: str) -> DataError:
    return DataError(f"{text[:200]!r} is not visited: {rule}", remedy=_REMEDY, code="forbidden_url")


class GuardedResolver(AbstractResolver):
    """Resolves names and refuses those with an address that is not public.

    Args:
        inner: does the resolving.
    """

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """See `AbstractResolver.resolve`.

        Raises:
            ToolError: the name leads to an address that is not public (code `forbidden_address`). One such address
                is enough: a name with a public and a private one is an attempt to have both.
        """
        found = await self._inner.resolve(host, port, family)
        if not found:
            raise OSError(f"{host} has no address")
        if not all(is_public(result["host"]) for result in found):
            raise forbidden_address(host)
        return found

    async def close(self) -> None:
        """Release the inner resolver."""
        await self._inner.close()


def guarded_socket(info: tuple[Any, ...]) -> socket.socket:
    """A socket for an address (as `getaddrinfo` describes it), made only if it is public.

    Raises:
        PermissionError: it is not. (An OSError, because that is what the connector expects of a failed connection.)
    """
    family, kind, protocol, _, address = info
    if not is_public(address[0]):
        raise PermissionError(errno.EACCES, "the address is not public")
    return socket.socket(family, kind, protocol)


def forbidden_address(host: str) -> ToolError:
    """The error for a host that leads to an address which is not public; the address itself is not told."""
    return ToolError(
        f"{host} is not visited: it leads to an address that is not public", remedy=_REMEDY, code="forbidden_address"
    )
