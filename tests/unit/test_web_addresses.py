"""Where page visits may go: no URL, redirect or DNS answer leads to an address that is not public."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from mia.errors import DataError, ToolError
from web_tools.addresses import checked_url, guarded_socket, is_public
from web_tools.config import VisitConfig
from web_tools.fetch import Fetcher
from web_tools.stub import Answer, Seen, Server, serving

PUBLIC = "93.184.216.34"


class Names(AbstractResolver):
    """Answers each name with its addresses, one list a lookup, the last one for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {name.replace("__", "-").replace("_", "."): list(lists) for name, lists in answers.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        lists = self._answers.get(host.removesuffix("."))
        if lists is None:
            raise OSError(f"no such name: {host}")
        found = lists.pop(0) if len(lists) > 1 else lists[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        """Nothing to free."""


@pytest.fixture
def trap() -> Iterator[Server]:
    """A server on loopback that nobody may reach."""
    with serving(lambda request: Answer("secret", headers={"content-type": "text/plain"})) as server:
        yield server


# Each refused with no lookup that could matter and no connection; PORT is the trap's.
REFUSED = [
    # loopback, plainly and not
    "http://127.0.0.1:PORT/",
    "http://127.0.0.1.:PORT/",
    "http://127.1:PORT/",
    "http://127.0.1:PORT/",
    "http://127.255.255.254:PORT/",
    "http://2130706433:PORT/",
    "http://017700000001:PORT/",
    "http://0x7f000001:PORT/",
    "http://0x7f.1:PORT/",
    "http://0X7F.0.0.1:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://0000177.0.0.1:PORT/",
    "http://127.0.0.0x1:PORT/",
    "http://0:PORT/",
    "http://0.0.0.0:PORT/",
    "http://localhost:PORT/",
    "http://LOCALHOST.:PORT/",
    "http://app.localhost:PORT/",
    "http://[::1]:PORT/",
    "http://[0:0:0:0:0:0:0:1]:PORT/",
    "http://[::]:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/",
    "http://[::127.0.0.1]:PORT/",
    "http://[64:ff9b::127.0.0.1]:PORT/",
    "http://[64:ff9b:1::7f00:1]:PORT/",
    "http://[2002:7f00:1::]:PORT/",
    "http://[2001:0:7f00:1::]:PORT/",
    "http://[::1%25lo]:PORT/",
    # the same in other characters
    "http://①②⑦.⓪.⓪.①:PORT/",
    "http://127。0。0。1:PORT/",
    "http://１２７．０．０．１:PORT/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:PORT/",
    "http://%31%32%37.0.0.1:PORT/",
    "http://127.0.0.1%00.example.org:PORT/",
    "http://127.0.0.1\x00:PORT/",
    "http://127.0.0.1\t:PORT/",
    # metadata and private networks
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/latest/meta-data/",
    "http://0xA9FEA9FE/",
    "http://0251.0376.0251.0376/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://100.100.100.200/",
    "http://192.0.0.192/",
    "http://168.63.129.16/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://240.0.0.1/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[fc00::1]/",
    "http://[fec0::1]/",
    "http://[ff02::1]/",
    "http://[2001:db8::1]/",
    "http://router.lan/",
    "http://redis:6379/",
    # names that lead there
    "http://inside.example:PORT/",
    "http://inside.example.:PORT/",
    "http://inside6.example:PORT/",
    "http://mapped.example:PORT/",
    "http://both.example:PORT/",
    # user information
    "http://example.org@127.0.0.1:PORT/",
    "http://user@127.0.0.1:PORT@example.org/",
    "http://127.0.0.1:PORT@example.org/",
    "http://@127.0.0.1:PORT/",
    "http://example.org:80@127.0.0.1:PORT/",
    "http://example.org%2f@127.0.0.1:PORT/",
    "http://example.org\\@127.0.0.1:PORT/",
    "http:\\\\127.0.0.1:PORT\\",
    "http://example.org\r\nHost: 127.0.0.1:PORT/",
    # other schemes, and no URLs
    "file:///etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "gopher://127.0.0.1:PORT/_stats",
    "ftp://127.0.0.1:PORT/",
    "dict://127.0.0.1:PORT/info",
    "ws://127.0.0.1:PORT/",
    "data:text/html,<p>hello</p>",
    "javascript:alert(1)",
    "jar:http://127.0.0.1:PORT/!/",
    "unix:///var/run/docker.sock",
    "//127.0.0.1:PORT/",
    "127.0.0.1:PORT",
    "http:127.0.0.1:PORT",
    "http:///127.0.0.1:PORT/",
    "http://[::1:PORT/",
    "http://a..b/",
    "http://.../",
    "http://127.0.0.1:99999/",
    "http://" + "a" * 300 + ".example/",
    "http://example.org/" + "a" * 5000,
    "",
]


def names() -> Names:
    return Names(
        empty_example=[[]],
        inside_example=[["127.0.0.1"]],
        inside6_example=[["::1"]],
        mapped_example=[["::ffff:127.0.0.1"]],
        both_example=[[PUBLIC, "127.0.0.1"]],
        example_org=[[PUBLIC]],
    )


def test_the_suite_is_large() -> None:
    assert len(set(REFUSED)) == len(REFUSED) >= 90


@pytest.mark.parametrize("template", REFUSED)
async def test_refused_without_any_connection(template: str, trap: Server) -> None:
    fetcher = Fetcher(VisitConfig(timeout_s=5), resolver=names())
    try:
        with pytest.raises((DataError, ToolError)) as caught:
            await fetcher.get(template.replace("PORT", str(trap.port)))
    finally:
        await fetcher.aclose()
    assert caught.value.code in ("forbidden_url", "bad_url", "forbidden_address")
    assert caught.value.remedy
    assert "secret" not in str(caught.value)
    assert trap.connections == 0


LOCATIONS = [
    "http://127.0.0.1:PORT/",
    "//127.0.0.1:PORT/",
    "//[::1]:PORT/",
    "http://localhost:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f.1:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://169.254.169.254/latest/meta-data/",
    "http://inside.example:PORT/",
    "http://both.example:PORT/",
    "http://user@127.0.0.1:PORT/",
    "http:\\\\127.0.0.1:PORT\\",
    "file:///etc/passwd",
    "gopher://127.0.0.1:PORT/_stats",
    "data:text/html,hello",
    "http://[::1",
    "http://xn--/",
]
REDIRECTS = [(status, LOCATIONS[0]) for status in (301, 303, 307, 308)] + [(302, location) for location in LOCATIONS]


@pytest.mark.parametrize(("status", "location"), REDIRECTS)
async def test_redirects_are_checked_like_the_first_url(status: int, location: str, trap: Server) -> None:
    target = location.replace("PORT", str(trap.port))
    with serving(lambda request: Answer(status=status, headers={"location": target})) as outer:
        fetcher = Fetcher(VisitConfig(timeout_s=5), allow_hosts=(outer.host,), resolver=names())
        try:
            with pytest.raises(ToolError) as caught:
                await fetcher.get(outer.url)
        finally:
            await fetcher.aclose()
    assert caught.value.code in ("forbidden_url", "forbidden_address")
    assert (outer.connections, trap.connections) == (1, 0)


async def test_a_redirect_over_several_hosts_ends_at_the_wall(trap: Server) -> None:
    def hop(request: Seen) -> Answer:
        step = int(request.path.strip("/") or 0)
        to = f"/{step + 1}" if step < 2 else trap.url
        return Answer(status=302, headers={"location": to})

    with serving(hop) as outer:
        fetcher = Fetcher(VisitConfig(), allow_hosts=(outer.host,))
        with pytest.raises(ToolError, match="redirects to where nothing is visited"):
            await fetcher.get(outer.url)
        await fetcher.aclose()
    assert [request.path for request in outer.seen] == ["/", "/1", "/2"]
    assert trap.connections == 0


async def test_the_address_that_was_checked_is_the_one_connected_to(trap: Server) -> None:
    """DNS that says a public address first and loopback afterwards: the guard of all tests shows where it went."""
    resolver = Names(rebind_example=[[PUBLIC], ["127.0.0.1"]])
    fetcher = Fetcher(VisitConfig(timeout_s=5), resolver=resolver)
    with pytest.raises(AssertionError, match=rf"tried to connect to \('{PUBLIC}', {trap.port}\)"):
        await fetcher.get(f"http://rebind.example:{trap.port}/")
    assert resolver.asked == ["rebind.example"]
    with pytest.raises(ToolError) as caught:
        await fetcher.get(f"http://rebind.example:{trap.port}/")
    assert caught.value.code == "forbidden_address"
    assert "127.0.0.1" not in str(caught.value)  # what a name inside leads to is not told
    assert resolver.asked == ["rebind.example"] * 2
    assert trap.connections == 0
    await fetcher.aclose()


async def test_a_name_without_addresses_is_unreachable() -> None:
    fetcher = Fetcher(VisitConfig(timeout_s=5), resolver=names())
    with pytest.raises(ToolError) as caught:
        await fetcher.get("http://empty.example/")
    assert caught.value.code == "unreachable"
    await fetcher.aclose()


async def test_public_pages_are_let_through() -> None:
    fetcher = Fetcher(
        VisitConfig(timeout_s=5), resolver=Names(example_org=[[PUBLIC]], www_example_org=[["2606:2800::1"]])
    )
    for url, address in [
        ("http://example.org/a", PUBLIC),
        ("https://EXAMPLE.org.:8443/#part", PUBLIC),
        ("http://www.example.org/", "2606:2800::1"),
        (f"http://{PUBLIC}/", PUBLIC),
    ]:
        with pytest.raises(AssertionError, match=address):
            await fetcher.get(url)
    await fetcher.aclose()


async def test_allowed_hosts_are_named_one_by_one(trap: Server) -> None:
    other = trap.port + 1 if trap.port < 65535 else trap.port - 1
    right: list[tuple[str, ...]] = [(trap.host,), ("127.0.0.1",), ("b.example", trap.host)]
    wrong: list[tuple[str, ...]] = [(), (f"127.0.0.1:{other}",), ("127.0.0.2",), ("localhost",)]
    for allow in right:
        fetcher = Fetcher(VisitConfig(timeout_s=5), allow_hosts=allow)
        assert (await fetcher.get(trap.url)).body == b"secret"
        await fetcher.aclose()
    made = trap.connections
    for allow in wrong:
        fetcher = Fetcher(VisitConfig(timeout_s=5), allow_hosts=allow)
        with pytest.raises(DataError) as caught:
            await fetcher.get(trap.url)
        assert caught.value.code == "forbidden_url"
        await fetcher.aclose()
    assert trap.connections == made


async def test_an_allowed_name_may_lead_inside(trap: Server) -> None:
    fetcher = Fetcher(VisitConfig(), (f"docs.example:{trap.port}",), Names(docs_example=[["127.0.0.1"]]))
    fetched = await fetcher.get(f"http://docs.example:{trap.port}/")
    assert fetched.body == b"secret"
    with pytest.raises(DataError):
        await fetcher.get(trap.url)
    await fetcher.aclose()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "10.1.2.3",
        "0.0.0.0",
        "::1",
        "fe80::1%eth0",
        "::ffff:8.8.8.8",
        "name.example",
    ],
)
def test_the_last_wall_makes_no_socket(address: str) -> None:
    with pytest.raises(PermissionError):
        guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 80)))


def test_the_last_wall_lets_public_addresses_through() -> None:
    guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", (PUBLIC, 80))).close()


# From the IANA registries of special-purpose addresses: (address, whether it is one of the public Internet).
@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("1.1.1.1", True),
        ("172.15.255.255", True),
        ("172.32.0.0", True),
        ("100.63.255.255", True),
        ("100.128.0.0", True),
        ("169.253.255.255", True),
        ("2606:4700:4700::1111", True),
        ("2a00:1450:4001::1", True),
        ("64:ff9b::8.8.8.8", True),
        ("0.1.2.3", False),
        ("10.255.255.255", False),
        ("100.127.255.255", False),
        ("127.128.0.1", False),
        ("169.254.0.1", False),
        ("172.31.255.255", False),
        ("192.0.2.1", False),
        ("192.88.99.1", False),
        ("192.168.255.255", False),
        ("198.18.0.1", False),
        ("198.51.100.7", False),
        ("203.0.113.9", False),
        ("239.255.255.250", False),
        ("64:ff9b::10.0.0.1", False),
        ("100::1", False),
        ("2001:2::1", False),
        ("2002:808:808::1", False),
        ("3fff::1", False),
        ("5f00::1", False),
        ("fd12:3456::1", False),
        ("ff0e::1", False),
        ("08.8.8.8", False),
        ("8.8.8", False),
        ("", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_checked_url_keeps_what_matters() -> None:
    url, allowed = checked_url(" https://例え.jp/ä b?q=ü#part ".replace("ä b", "ä"))
    assert (str(url), allowed) == ("https://xn--r8jz45g.jp/%C3%A4?q=%C3%BC", False)
