"""A client of an OpenAI-compatible address, `/v1/models` and `/v1/completions`, on the standard library.

What passes by itself is tried again with growing pauses: refused and broken connections, timeouts, 429 and 5xx. What does
not is an EnvironmentFault (exit 4) of one line.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from typing import Any

from proteus_bench.errors import EnvironmentFault, UsageError, unknown

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds
TIMEOUT = 1800.0  # a long prompt on a busy server


class Refused(EnvironmentFault):
    """The server understood and said no: an HTTP status that will not change by asking again."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Completions:
    """``address`` ends where `/completions` begins. ``key``: sent as a bearer token. Any number of threads may ask.

    ``stopped``: while it is set, nothing is tried again.
    """

    def __init__(self, address: str, key: str | None = None) -> None:
        self.address, self.stopped = address.rstrip("/"), threading.Event()
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def model(self, wanted: str | None) -> dict[str, Any]:
        """What the server says about one of its models: the wanted one, or its only one. UsageError when that is none."""
        found = self._ask("/models", None, tries=4).get("data")
        if not isinstance(found, list) or not all(isinstance(m, dict) and isinstance(m.get("id"), str) for m in found):
            raise EnvironmentFault(f"{self.address}/models does not answer as an OpenAI-compatible server does")
        named = {model["id"]: model for model in found}
        if wanted is not None:
            if wanted not in named:
                raise unknown(f"model of {self.address}", wanted, named)
            return dict(named[wanted])
        whole = [model for model in found if not model.get("parent")]  # an adapter has a parent
        if len(whole) != 1:
            raise UsageError(f"{self.address} serves {', '.join(named) or 'no model'}: name one, ADDRESS#MODEL")
        return dict(whole[0])

    def complete(self, **fields: Any) -> dict[str, Any]:
        """The one choice of a greedy completion."""
        answer = self._ask("/completions", {"temperature": 0, "n": 1, **fields}, tries=8)
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise EnvironmentFault(f"{self.address}/completions answers with something else than one choice")
        return choices[0]

    def _ask(self, path: str, body: dict[str, Any] | None, tries: int) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode("utf-8")
        for turn in range(tries):
            if turn and self.stopped.wait(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (turn - 1))):
                break
            try:
                return self._once(path, data)
            except Refused:
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = getattr(error, "reason", None) or error
        raise EnvironmentFault(f"{self.address}{path}: no answer in {tries} tries ({str(reason)[:200] or type(reason).__name__})")

    def _once(self, path: str, data: bytes | None) -> dict[str, Any]:
        request = urllib.request.Request(self.address + path, data=data, headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in PASSING:
                raise
            raise Refused(f"{self.address}{path}: HTTP {error.code}: {_message(error)}", error.code) from error
        if not isinstance(found, dict):
            raise ValueError("the answer is no JSON object")
        return found


def _message(error: urllib.error.HTTPError) -> str:
    """The server's own words in one line."""
    text = error.read(1 << 16).decode("utf-8", "replace")
    try:
        found = json.loads(text)
        found = found.get("error", found)
        text = str(found.get("message", found) if isinstance(found, dict) else found)
    except (AttributeError, ValueError):
        pass
    return " ".join(text.split())[:300] or str(error.reason)
