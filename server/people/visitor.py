"""Visitor: somebody who is not signed in yet, as far as a request tells. Nothing here proves who they are."""
import ipaddress
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from .cookie import Cookie


@dataclass(frozen=True, slots=True)
class Visitor:
    address: str
    agent: str  # the browser, as it calls itself
    old_login: str | None  # the cookie it came with, true or planted; a sign-in ends it


def visitor_of(conn: HTTPConnection, cookie: Cookie) -> Visitor:
    return Visitor(address_of(conn), conn.headers.get("user-agent", ""), cookie.read(conn))


def address_of(conn: HTTPConnection) -> str:
    """The peer's own address; an IPv6 one as its /64, which one subscriber has. Forwarded headers are not believed."""
    host = conn.client.host if conn.client else ""
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
