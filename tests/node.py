"""npm for the tests of the pages: the one that the extra `test` brings, else the machine's."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent.parent / "web"


def npm(*arguments: str) -> None:
    """Runs it in web/ and asserts that it passes."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    command = [shutil.which("npm", path=path) or "npm", *arguments]
    done = subprocess.run(
        command, cwd=WEB, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
