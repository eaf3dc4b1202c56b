"""Assets: the built scripts, styles and fonts under /static. Not the pages that use them.

Their names carry a hash of what is in them, so browsers keep them for ever. npm builds them (web/build.mjs) before the
package is built; a checkout that never was has none, and says so where they are missed.
"""
from importlib.resources import files
from pathlib import Path

import msgspec
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

WEB = Path(str(files("hamdam.web")))
FOREVER = "public, max-age=31536000, immutable"


class Manifest(msgspec.Struct, frozen=True):
    """What web/build.mjs wrote: hashed names by plain names, and what the chat's script imports at once."""

    files: dict[str, str]
    preload: list[str]


class Assets:
    def __init__(self, folder: Path = WEB / "dist") -> None:
        self.folder = folder
        manifest = folder / "manifest.json"
        self.built = manifest.is_file()
        found = msgspec.json.decode(manifest.read_bytes(), type=Manifest) if self.built else Manifest({}, [])
        self._files = found.files
        self.preload = [f"/static/{name}" for name in found.preload]

    def address(self, name: str) -> str:
        return f"/static/{self._files.get(name, name)}"

    def routes(self) -> list[Mount]:
        """The manifest is no asset, but it tells nothing either."""
        return [Mount("/static", GZipMiddleware(_Immutable(directory=self.folder, check_dir=False)))]


class _Immutable(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = FOREVER if response.status_code in (200, 304) else "no-store"
        return response
