"""An OpenAI-compatible server of one of our decoders over real sockets, in as many ways as servers differ."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import torch


class Refusal(Exception):
    """An answer with an HTTP status of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class ModelServer:
    """echo: log-probabilities of a prompt are told. ids: prompts may be token ids. is_vllm: it knows stop tokens and tells ids.

    busy: so many completions are answered by 503 first. dropped: the connection of so many is closed without an answer.
    """

    model: Any
    tokenizer: Any
    root: str
    max_model_len: int | None = 1024
    echo: bool = True
    ids: bool = True
    is_vllm: bool = True
    busy: int = 0
    dropped: int = 0
    names: tuple[str, ...] = ("tiny",)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> ModelServer:
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def models(self) -> dict[str, Any]:
        more = {} if self.max_model_len is None else {"max_model_len": self.max_model_len}
        return {"object": "list", "data": [{"id": name, "root": self.root, "created": 1, **more} for name in self.names]}

    @torch.inference_mode()
    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(body)
        if self.busy:
            self.busy -= 1
            raise Refusal(503, "try later")
        if body["model"] not in self.names:
            raise Refusal(404, f"The model {body['model']} does not exist.")
        prompt = body["prompt"]
        if isinstance(prompt, list) and not self.ids:
            raise Refusal(422, "prompt: Input should be a valid string")
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if self.max_model_len is not None and len(ids) + body["max_tokens"] > self.max_model_len:
            raise Refusal(400, f"This model's maximum context length is {self.max_model_len} tokens.\nShorten it.")
        text_ids = self.greedy(ids, body["max_tokens"], set(body.get("stop_token_ids", ())) if self.is_vllm else set())
        choice: dict[str, Any] = {"index": 0, "text": self.tokenizer.decode(text_ids), "logprobs": None}
        if self.is_vllm and body.get("return_token_ids"):
            choice["token_ids"] = text_ids
        if body.get("echo") and self.echo:
            choice["logprobs"] = self.told([*ids, *text_ids], body["logprobs"])
        return {"object": "text_completion", "choices": [choice]}

    def greedy(self, ids: list[int], most: int, stops: set[int]) -> list[int]:
        found: list[int] = []
        logits, state = self.model.prefill(torch.tensor([ids]))
        while len(found) < most:
            found.append(int(logits.argmax()))
            if found[-1] in stops:
                break
            logits, state = self.model.prefill(torch.tensor([found[-1:]]), state)
        return found

    def told(self, ids: list[int], tops: int) -> dict[str, Any]:
        logprobs_TV = self.model(torch.tensor([ids]))[0].double().log_softmax(-1)
        own = logprobs_TV[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()
        best = [{f"token {i}": v for i, v in zip(i_K, v_K, strict=True)}
                for v_K, i_K in zip(*(x.tolist() for x in logprobs_TV[:-1].topk(tops)), strict=True)]  # fmt: skip
        return {"token_logprobs": [None, *own], "top_logprobs": [None, *best]}


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(200, server.models() if self.path == "/v1/models" else {"message": "no such path"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                if server.dropped:
                    server.dropped -= 1
                    self.connection.close()
                    return
                try:
                    self._send(200, server.complete(body))
                except Refusal as refusal:
                    self._send(refusal.status, {"error": {"message": str(refusal)}})

        def _send(self, status: int, found: dict[str, Any]) -> None:
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
