"""One server for all client tests, whose scripted model knows every CLI's part in every scenario; and the table of what came of it.

These tests are left out of a plain run (they install 1.6 GB): ``make test-clients``, or ``pytest -m clients``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.cli import Cli, Ended, Place, start
from tests.clients.clis import CLIS, MODEL
from tests.clients.judge import Verdict, judge
from tests.clients.scenarios import SCENARIOS
from tests.clients.scripts import Story, script
from tests.support.scripted import ScriptedServer, scripted_server

COPIES = 3
"""How often a CLI can play a scenario."""

RUN_CLIS = frozenset({"arena", "small_model"})
"""Fixtures; a test that has one starts a CLI."""

RESULTS = pytest.StashKey[dict[tuple[str, str], str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if RUN_CLIS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.clients)


@dataclass(frozen=True, slots=True)
class Agent:
    """One CLI in one scenario, with its folders and its session. Made by ``Arena.agent``. ``sid`` is its API key, too."""

    arena: Arena
    cli: Cli
    scenario: str
    story: Story
    place: Place
    url: str
    sid: str

    async def says(self, step: str, *, resume: bool = False) -> Ended:
        """Give the CLI a prompt that sets off ``step``, and wait for its end."""
        prompt = self.story.prompt(step, "Please do it.")
        return await start(self.cli, self.place, self.url, prompt, resume=resume, key=self.sid)

    async def judged(self) -> Verdict:
        """End the session and judge it. Raises: AssertionError."""
        verdict = await self.arena.judged(self.sid, self.cli.branches.get(self.scenario, 1))
        self.arena.results[(self.cli.name, self.scenario)] = str(verdict)
        return verdict

    async def tool_results(self) -> str:
        """What came back from tools, as the model was shown it."""
        paths = (await self.arena.get(f"/v1/sessions/{self.sid}"))["paths"]
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
        """An agent with a session that its URL names; ``settings`` are fields of ``POST /v1/sessions``."""
        key = key_of(cli, scenario, copy)
        async with self.http.post("/v1/sessions", json={"sid": key, **settings}, raise_for_status=True) as response:
            opened = await response.json()
        return Agent(self, cli, scenario, Story(key), Place(self.root / key), opened["base_url"], key)

    def unnamed_agent(self, cli: Cli, scenario: str) -> Agent:
        """An agent whose URL names no session, with an API key of its own."""
        key = key_of(cli, scenario, 0)
        return Agent(self, cli, scenario, Story(key), Place(self.root / key), self.server.url, key)

    async def sessions(self) -> set[str]:
        """The names of those that are open."""
        return {session["sid"] for session in (await self.get("/v1/sessions"))["sessions"]}

    async def judged(self, sid: str, branches: int = 1) -> Verdict:
        """End a session and judge it. What is judged lies in a file beside the agents' folders."""
        shown = await self.get(f"/v1/sessions/{sid}")
        explained = (await self.get(f"/v1/sessions/{sid}/explain"))["turns"]
        async with self.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
            assert response.status == 200, await response.text()
            export = await response.json()
        log = [entry for entry in self.server.logged() if entry["session"] == sid]
        evidence = {"paths": shown["paths"], "explained": explained, "export": export, "log": log}
        (self.root / f"{sid}.json").write_text(json.dumps(evidence, indent=1, ensure_ascii=False))
        return judge(log, explained, export, branches)

    async def get(self, path: str) -> Any:
        async with self.http.get(path, raise_for_status=True) as response:
            return await response.json()


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
