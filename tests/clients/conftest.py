"""One server for all client tests, whose scripted model knows every CLI's part in every scenario; and the table of what came of it.

These tests are left out of a plain run (they install 1.6 GB): ``make test-clients``, or ``pytest -m clients``.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.cli import CLIS, MODEL, Cli, Ended, Place, start
from tests.clients.judge import Verdict, judge
from tests.clients.scenarios import SCENARIOS
from tests.clients.scripts import Story, script
from tests.support.scripted import ScriptedServer, scripted_server

COPIES = 3
"""How often a CLI can play a scenario."""

RESULTS = pytest.StashKey[dict[tuple[str, str], str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)


@dataclass(frozen=True, slots=True)
class Agent:
    """One CLI in one scenario, with its folders and its session. Made by ``Arena.agent``."""

    arena: Arena
    cli: Cli
    scenario: str
    story: Story
    place: Place
    url: str
    sid: str

    async def says(self, step: str, *, resume: bool = False) -> Ended:
        """Give the CLI a prompt that sets off ``step``, and wait for its end."""
        return await start(self.cli, self.place, self.url, self.story.prompt(step, "Please do it."), resume=resume)

    async def judged(self) -> Verdict:
        """End the session and judge it. Raises: AssertionError."""
        verdict = await self.arena.judged(self.sid)
        self.arena.results[(self.cli.name, self.scenario)] = str(verdict)
        return verdict

    async def tool_results(self) -> str:
        """What came back from tools, as the model was shown it."""
        async with self.arena.http.get(f"/v1/sessions/{self.sid}", raise_for_status=True) as response:
            paths = (await response.json())["paths"]
        messages = [step["message"] for path in paths for step in path if step["role"] == "tool"]
        return "\n".join(str(message["content"]) for message in messages)


@dataclass(frozen=True, slots=True)
class Arena:
    """The running server and all agents' places."""

    server: ScriptedServer
    root: Path
    results: dict[tuple[str, str], str]

    @property
    def http(self) -> Any:
        return self.server.http

    async def agent(self, cli: Cli, scenario: str, copy: int = 0, **settings: Any) -> Agent:
        """An agent with a session of its own; ``settings`` are fields of ``POST /v1/sessions``."""
        key = key_of(cli, scenario, copy)
        async with self.http.post("/v1/sessions", json={"sid": key, **settings}, raise_for_status=True) as response:
            opened = await response.json()
        return Agent(self, cli, scenario, Story(key), Place(self.root / key), opened["base_url"], key)

    async def judged(self, sid: str) -> Verdict:
        async with self.http.get(f"/v1/sessions/{sid}/explain", raise_for_status=True) as response:
            explained = (await response.json())["turns"]
        async with self.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
            assert response.status == 200, await response.text()
            export = await response.json()
        log = [entry for entry in self.server.logged() if entry["session"] == sid]
        return judge(log, explained, export)


def key_of(cli: Cli, scenario: str, copy: int) -> str:
    """The name of a run: of its session, its folder and its marks."""
    return f"{cli.name}.{scenario}.{copy}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def arena(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Arena]:
    root = tmp_path_factory.mktemp("clients")
    stories = []
    for cli, (scenario, tell), copy in itertools.product(CLIS, SCENARIOS.items(), range(COPIES)):
        story = Story(key_of(cli, scenario, copy))
        tell(story, cli, Place(root / story.key))
        stories.append(story)
    results = request.config.stash.setdefault(RESULTS, {})
    async with scripted_server(
        root, dict(script(stories)), tokenizer_name="qwen3", served_model_name=MODEL, model_alias=("*",)
    ) as server:
        yield Arena(server, root, results)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash.get(RESULTS, {})
    if results:
        terminalreporter.section("agent CLIs")
    for (cli, scenario), told in sorted(results.items()):
        terminalreporter.write_line(f"{cli:18} {scenario:12} {told}")
