"""A chat completions server for one causal model of transformers on a CPU, for judges.

    python tests/benchmarks/judge_server.py examples/smollm/model --gguf model.gguf --port 8000

It answers `POST /v1/chat/completions` greedily. With `response_format` a JSON schema whose fields
are enumerated, it writes the object itself and lets the model choose among each field's values, the
most probable first; a field `reasoning` is written freely, up to a quotation mark.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Request = dict[str, Any]


class Chat:
    """A model that answers requests, one after the other."""

    def __init__(self, model: str, gguf: str | None = None) -> None:
        files = {"gguf_file": gguf} if gguf else {}
        self.tokenizer = AutoTokenizer.from_pretrained(model, **files)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **files)
        self.model.eval()

    @torch.inference_mode()
    def answer(self, request: Request) -> Request:
        """The answer to a request, as a chat completion."""
        text = self.tokenizer.apply_chat_template(
            request["messages"], tokenize=False, add_generation_prompt=True
        )
        form = request.get("response_format")
        if form and form["type"] == "json_schema":
            reply = self._object(text, form["json_schema"]["schema"]["properties"])
        else:
            reply = self._continued(text, request.get("max_tokens", 256))
        usage = {"prompt_tokens": len(self._ids(text)), "completion_tokens": len(self._ids(reply))}
        choice = {"index": 0, "message": {"role": "assistant", "content": reply}}
        return {"choices": [{**choice, "finish_reason": "stop"}], "usage": usage}

    def _object(self, prompt: str, fields: dict[str, Any]) -> str:
        """An object with these fields, in order."""
        written = "{"
        for number, (name, field) in enumerate(fields.items()):
            written += f"{', ' if number else ''}{json.dumps(name)}: "
            if "enum" in field:
                written += self._chosen(prompt + written, list(map(json.dumps, field["enum"])))
            else:
                free = self._continued(prompt + written + '"', 128).partition('"')[0]
                written += json.dumps(free.rstrip("\\"))
        return written + "}"

    def _chosen(self, text: str, choices: list[str]) -> str:
        """The choice that greedy decoding writes if it may write nothing else."""
        start, left = self._ids(text), {choice: self._ids(choice) for choice in choices}
        for at in range(max(map(len, left.values()))):
            permitted = {ids[at] if at < len(ids) else None for ids in left.values()}
            if len(permitted) > 1:  # a choice that begins another one is left out
                written = next(iter(left.values()))[:at]
                ids = torch.tensor([start + written])
                logits = self.model(input_ids=ids, logits_to_keep=1).logits[0, -1]
                best = max(permitted - {None}, key=lambda token: logits[token].item())
                left = {choice: ids for choice, ids in left.items() if ids[at : at + 1] == [best]}
        return next(iter(left))

    def _continued(self, text: str, most: int) -> str:
        start = self._ids(text)
        ids = self.model.generate(
            torch.tensor([start]), max_new_tokens=most, do_sample=False, use_cache=True
        )
        reply: str = self.tokenizer.decode(ids[0, len(start) :], skip_special_tokens=True)
        return reply

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def server(chat: Chat, port: int = 0) -> ThreadingHTTPServer:
    """A server on this machine, not yet serving; port 0: any free one."""
    one_at_a_time = Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"data": []})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with one_at_a_time:
                answer = chat.answer(request)
            self._send(answer)

        def _send(self, body: Request) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    serving.daemon_threads = True  # clients keep their connections open
    return serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or hub name")
    parser.add_argument("--gguf", help="the file in the folder, if the weights are a GGUF file")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    serving = server(Chat(options.model, options.gguf), options.port)
    print(f"http://127.0.0.1:{serving.server_port}/v1", flush=True)
    serving.serve_forever()


if __name__ == "__main__":
    main()
