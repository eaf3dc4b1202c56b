"""The sign-in cookie: its name and its flags. What its value proves is authenticator.py's business."""
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ..storage.clock import SECOND
from .logins import LASTS


class Cookie:
    def __init__(self, public_url: str | None) -> None:
        """`__Host-` and Secure need https; on plain http (a team's 10.x address) browsers would drop such a cookie."""
        self.secure = public_url is not None and public_url.startswith("https://")
        self.name = "__Host-hamdam" if self.secure else "hamdam"

    def read(self, conn: HTTPConnection) -> str | None:
        return conn.cookies.get(self.name)

    def set(self, response: Response, secret: str) -> None:
        response.set_cookie(
            self.name, secret, max_age=LASTS // SECOND, path="/", secure=self.secure, httponly=True, samesite="lax"
        )

    def clear(self, response: Response) -> None:
        response.delete_cookie(self.name, path="/", secure=self.secure, httponly=True, samesite="lax")
