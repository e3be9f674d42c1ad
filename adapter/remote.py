"""Between the command line and servers: calls to one that runs, and who can reach it."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import urllib.error
import urllib.request
from collections.abc import Container
from typing import Any

import click

from adapter.config import is_base_url

DEFAULT_URL = "http://127.0.0.1:8400"

ADMIN_KEY = "ROLLSERVE_ADMIN_KEY"
"""The environment variable with the server's admin key, where it has one. There is no option for it: command lines are seen."""


def call(method: str, url: str, path: str, body: Any = None) -> Any:
    """One request to a running server. Raises: click.ClickException, with the server's own message."""
    answer = _answer(method, url, path, None if body is None else json.dumps(body).encode())[1]
    try:
        return json.loads(answer)
    except ValueError as error:
        raise click.ClickException(f"{url} answers {path} with no JSON; is a rollserve server there?") from error


def fetch(url: str, path: str, accept: Container[int] = ()) -> tuple[int, bytes]:
    """A GET's status and body; an error's too, if its status is one of ``accept``. Raises: as ``call``."""
    return _answer("GET", url, path, None, accept)


def _answer(method: str, url: str, path: str, data: bytes | None, accept: Container[int] = ()) -> tuple[int, bytes]:
    if not is_base_url(url):
        raise click.ClickException(f"{url!r} is no URL of a server; it has the form {DEFAULT_URL}")
    key = os.environ.get(ADMIN_KEY)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url.rstrip("/") + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            return int(response.status), response.read()
    except urllib.error.HTTPError as error:
        if error.status in accept:
            return error.code, error.read()
        hint = f"; it is read from {ADMIN_KEY}" if error.status in (401, 403) else ""
        raise click.ClickException(f"{method} {path}: {error.status} {_message(error.read())}{hint}") from error
    except urllib.error.URLError as error:
        raise click.ClickException(f"no server at {url} ({error.reason}); start one with `rollserve up`") from error
    except http.client.InvalidURL as error:
        raise click.ClickException(f"{method} {path!r} cannot be asked for: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise click.ClickException(f"{url} broke off its answer to {path}: {error!r}") from error


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only. A name counts as it is written."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _message(body: bytes) -> str:
    """What the server says in its error body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
