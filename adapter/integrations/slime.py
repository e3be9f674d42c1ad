"""A generate function for slime: ``--custom-generate-function-path adapter.integrations.slime.generate``.

For each sample it opens a session on a rollserve server, runs the agent's command with its base URL pointing at that session,
and finishes the session: its samples, tokens, masks and log probs as they were sampled, are what slime trains on. Rewards are
left to slime (``--custom-rm-path``); the agent's exit status is in the metadata.

    args.rollserve_url       http://10.0.0.5:8400
    args.rollserve_command   claude -p {prompt} --dangerously-skip-permissions

``slime_settings`` lists all settings. slime itself is not imported: samples are made of the one that slime gives.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from adapter.integrations.agent import AgentRun, run_agent
from adapter.integrations.slime_settings import SlimeConfigError, SlimeSettings, session_sampling

_LOG = logging.getLogger(__name__)

DROP_TIMEOUT_S = 5.0
"""For dropping a session of a run that is being cancelled."""

_SECRETS = frozenset({"SLIME_ROLLSERVE_API_KEY", "ROLLSERVE_ADMIN_KEY"})
"""Variables that an agent has no business with."""

_FROM_ANSWER = ("tokens", "response", "response_length", "loss_mask", "rollout_log_probs", "weight_versions")


class SessionFailed(Exception):
    """The server did not do what it was asked; the message is its own."""


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """The samples of one agent run; one aborted sample if there was no run, or nothing in it can be trained.

    Raises: SlimeConfigError, for a setting that would fail every sample; no session is left behind.
    """
    settings = SlimeSettings.read(args, os.environ)
    body = {
        "sid": f"slime-{secrets.token_hex(12)}",
        "sampling": session_sampling(sampling_params),
        "max_context_tokens": getattr(args, "rollout_max_context_len", None) or None,
    }
    finish = {"index": sample.index, "group_index": sample.group_index, "filters": settings.export_filters}
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    timeout = aiohttp.ClientTimeout(total=settings.http_timeout_s)
    async with aiohttp.ClientSession(settings.url, headers=headers, timeout=timeout) as http:
        try:
            session = await _call(http, "POST", "/v1/sessions", body)
            run, answer = await _run_and_finish(http, settings, session, sample, finish)
        except (FileNotFoundError, PermissionError) as error:
            raise SlimeConfigError(f"the agent's command cannot be started: {error}") from error
        except (aiohttp.ClientError, OSError, SessionFailed) as error:
            return [aborted_sample(sample, f"{type(error).__name__}: {error}")]
    return samples_of(sample, answer["samples"], run) or [aborted_sample(sample, "nothing to train", run)]


async def _run_and_finish(
    http: aiohttp.ClientSession,
    settings: SlimeSettings,
    session: Mapping[str, Any],
    sample: Any,
    finish: Mapping[str, Any],
) -> tuple[AgentRun, dict[str, Any]]:
    """Run the agent and end its session, by dropping it if need be."""
    path = f"/v1/sessions/{session['sid']}"
    prompt = prompt_text(sample.prompt)
    try:
        run = await run_agent(
            settings.words(_placeholders(sample, prompt, session)),
            environ=agent_environment(os.environ, session, settings.api_key),
            stdin=prompt,
            timeout_s=settings.timeout_s,
            grace_s=settings.grace_s,
        )
        return run, await _call(http, "POST", f"{path}/finish", finish)
    except BaseException:
        with suppress(aiohttp.ClientError, SessionFailed, TimeoutError):
            async with asyncio.timeout(DROP_TIMEOUT_S):
                await _call(http, "DELETE", path)
        raise


def samples_of(sample: Any, rows: list[dict[str, Any]], run: AgentRun) -> list[Any]:
    """slime's samples of the rows that the session gave: copies of ``sample`` with what was sampled."""
    found = []
    for row in rows:
        made = copy.copy(sample)
        for name in _FROM_ANSWER:
            setattr(made, name, row[name])
        made.reward = row["reward"]
        made.status = _status(sample, "truncated" if run.timed_out else row["status"])
        made.metadata = {**(sample.metadata or {}), **row["metadata"], **_about(run)}
        if hasattr(sample, "rollout_id"):
            made.rollout_id = sample.index if sample.rollout_id is None else sample.rollout_id
        found.append(made)
    return found


def aborted_sample(sample: Any, reason: str, run: AgentRun | None = None) -> Any:
    """``sample`` as slime takes one that failed: marked aborted, with the least that its trainer can lay out, all masked."""
    _LOG.warning("sample %s aborted: %s", sample.index, reason)
    sample.tokens, sample.response, sample.response_length = [0, 0], "", 1
    sample.loss_mask, sample.rollout_log_probs = [0], [0.0]
    sample.reward = 0.0
    sample.status = _status(sample, "aborted")
    sample.metadata = {**(sample.metadata or {}), "abort_reason": reason, **({} if run is None else _about(run))}
    if hasattr(sample, "remove_sample"):
        sample.remove_sample = True
    return sample


def prompt_text(prompt: Any) -> str:
    """What the agent is asked: a text, or the last user message of a list of them. Raises: SlimeConfigError."""
    if isinstance(prompt, str):
        return prompt
    asked = [message for message in prompt or () if message.get("role") == "user"]
    content = asked[-1].get("content") if asked else None
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
    if not isinstance(content, str):
        raise SlimeConfigError("the sample's prompt is neither a text nor messages with one of the user")
    return content


def agent_environment(environ: Mapping[str, str], session: Mapping[str, Any], api_key: str) -> dict[str, str]:
    """The environment that makes agent CLIs and SDKs talk to the session. They want some key; the session's own, if it has one,
    opens nothing else."""
    key = session.get("session_key") or api_key or "rollserve"
    ours = {name: value for name, value in environ.items() if name not in _SECRETS}
    return {
        **ours,
        "ANTHROPIC_BASE_URL": session["base_url"],
        "ANTHROPIC_API_KEY": key,
        "OPENAI_BASE_URL": session["openai_base_url"],
        "OPENAI_API_KEY": key,
    }


def _placeholders(sample: Any, prompt: str, session: Mapping[str, Any]) -> dict[str, str]:
    named = {name: str(session[name]) for name in ("sid", "base_url", "openai_base_url")}
    metadata = {f"metadata.{key}": str(value) for key, value in (sample.metadata or {}).items()}
    return {**metadata, **named, "prompt": prompt}


def _about(run: AgentRun) -> dict[str, Any]:
    about = {"agent_returncode": run.returncode, "agent_timed_out": run.timed_out}
    return about | ({"agent_output": run.output} if run.returncode or run.timed_out else {})


def _status(sample: Any, value: str) -> Any:
    """The member of slime's own enumeration."""
    kind = getattr(type(sample), "Status", None) or type(sample.status)
    return kind(value)


async def _call(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
    """Raises: SessionFailed; aiohttp.ClientError."""
    try:
        async with http.request(method, path, json=body) as response:
            if response.ok:
                return await response.json() if response.content_length != 0 and response.status != 204 else None
            raise SessionFailed(f"{method} {path}: {response.status} {await response.text()}")
    except TimeoutError as error:
        raise SessionFailed(f"{method} {path}: no answer in time") from error
