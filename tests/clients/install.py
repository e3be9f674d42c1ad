"""The agent CLIs that the tests run, from npm into the cache; ``package.json`` pins them.

    python -m tests.clients.install     # what `make test-clients` does first, so that a long download is seen

Node 22 is one of the packages, since two of the CLIs need it and a machine's own may be older; the machine brings only npm.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from engine.assets import AssetError, Progress, cache_dir, cached

PINNED = Path(__file__).with_name("package.json")


def client_bin(progress: Progress | None = None) -> Path:
    """The folder with the CLIs' commands and their ``node``; put it first on ``PATH``. Installed if it is not cached yet.

    Raises: AssetError, if npm is missing or the installation fails.
    """
    digest = hashlib.sha256(PINNED.read_bytes()).hexdigest()[:12]
    folder = cached(cache_dir() / "clients" / digest, lambda target: _install(target, progress), progress)
    return folder / "node_modules" / ".bin"


def versions() -> dict[str, str]:
    """Package -> pinned version."""
    return dict(json.loads(PINNED.read_text())["dependencies"])


def _install(target: Path, progress: Progress | None) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise AssetError("the agent CLIs come from the npm registry: install Node.js with npm (apt-get install npm)")
    shutil.copy(PINNED, target)
    if progress is not None:
        progress(f"installing the agent CLIs from npm (1.6 GB on disk, once): {', '.join(versions())}")
    # The pinned Node runs the CLIs, so what npm thinks of the machine's own ("Unsupported engine") does not matter.
    command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    result = subprocess.run(
        command, cwd=target, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, check=False
    )
    if result.returncode:
        raise AssetError(f"npm could not install the agent CLIs:\n{result.stderr.decode(errors='replace').strip()}")


if __name__ == "__main__":
    try:
        print(client_bin(lambda line: print(line, file=sys.stderr)))
    except AssetError as error:
        sys.exit(f"{error}")
