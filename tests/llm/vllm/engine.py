"""Engine: a server with the protocol of vLLM 0.32, for a small model of transformers.

It samples from the model and returns the model's log-probs. `faults` make it misbehave.
"""

import json
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

FACTS = {
    "max_tokens": 128,
    "max_rows": 64,
    "logprobs_mode": "processed_logprobs",
    "device": "cuda",
    "chunked_prefill": True,
    "sleep_mode": True,
    "backend": None,
    "lora_rank": None,
    "lora_updates": True,
}


class Engine:
    """folder: of the model it starts with. calls: path and body of every request, in order;
    queries: by path, those of the last request.

    faults: by path, a function of the body that is called first and may return the response;
    spoil: a function that changes each choice before it is sent.
    """

    def __init__(self, folder, *, port=0, **facts):
        self.folder, self.facts = Path(folder), {**FACTS, **facts}
        self.calls, self.faults, self.spoil = [], {}, lambda choice: choice
        self.queries = {}
        self.lock = threading.Lock()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.http, self.port = None, port
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Starts with the original weights and the tag of a new server."""
        self.base = self.model = AutoModelForCausalLM.from_pretrained(self.folder).eval()
        self.tag, self.adapters = "default", {}
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                engine.answer(self, {})

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                engine.answer(self, json.loads(body or b"null"))

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request, address):
                pass  # the client has closed the connection

        self.http = Server(("127.0.0.1", self.port), Handler)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        if self.http is not None:
            self.http.shutdown()
            self.http.server_close()
            self.http = None

    def paths(self):
        return [path for path, _ in self.calls]

    def answer(self, request, body):
        path, query = urlsplit(request.path)[2:4]
        path = path.strip("/")
        self.calls.append((path, body))
        self.queries[path] = dict(parse_qsl(query))
        fault = self.faults.get(path)
        response = fault(body) if fault else None
        if response == "die":
            request.close_connection = True
            request.connection.close()
            return
        try:
            status, content = response or (200, self.content(path, body, dict(parse_qsl(query))))
        except RefusedError as error:
            status, content = error.status, {"error": {"message": str(error)}}
        except (RuntimeError, KeyError) as error:
            status, content = 500, {"error": {"message": str(error)}}
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def content(self, path, body, query):
        if path == "server_info":
            return self.server_info()
        if path == "weight_info":
            return {"weight_version": self.tag}
        if path == "update_weight_version":
            self.tag = body["new_version"]
        elif path == "collective_rpc":
            assert body["method"] == "reload_weights"
            self.load(body["kwargs"]["weights_path"])
        elif path == "inference/v1/generate":
            with self.lock:
                return {"choices": self.choices(body)}
        elif path.endswith("load_lora_adapter"):
            return self.change_adapters(path, body)
        elif path == "reset_prefix_cache":
            return {"success": True}
        return {}

    def server_info(self):
        facts = self.facts
        model = {
            "max_model_len": facts["max_tokens"],
            "logprobs_mode": facts["logprobs_mode"],
            "enable_sleep_mode": facts["sleep_mode"],
        }
        scheduler = {
            "max_num_seqs": facts["max_rows"],
            "enable_chunked_prefill": facts["chunked_prefill"],
        }
        return {
            "vllm_config": {
                "model_config": model,
                "scheduler_config": scheduler,
                "parallel_config": {"world_size": 1},
                "device_config": {"device": facts["device"]},
                "weight_transfer_config": facts["backend"] and {"backend": facts["backend"]},
                "lora_config": facts["lora_rank"] and {"max_lora_rank": facts["lora_rank"]},
            },
            "vllm_env": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": facts["lora_updates"]},
        }

    def load(self, folder):
        """As in vLLM unknown names and other shapes are errors, missing tensors are not."""
        own = self.base.state_dict()
        for file in sorted(Path(folder).glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                own[name].copy_(tensor)

    def change_adapters(self, path, body):
        """Loads adapters under a name that must be new, or forgets them; answers a sentence."""
        name = body["lora_name"]
        if path == "v1/unload_lora_adapter":
            if self.adapters.pop(name, None) is None:
                raise RefusedError(404, f"The lora adapter '{name}' cannot be found.")
            return f"Success: LoRA adapter '{name}' removed successfully."
        folder = Path(body["lora_path"])
        if name in self.adapters:
            raise RefusedError(400, f"The lora adapter '{name}' has already been loaded.")
        rank = json.loads((folder / "adapter_config.json").read_text())["r"]
        if rank > self.facts["lora_rank"]:
            raise RuntimeError(f"LoRA rank {rank} is greater than max_lora_rank")
        base = AutoModelForCausalLM.from_pretrained(self.folder)
        base.load_state_dict(self.base.state_dict())
        with warnings.catch_warnings():
            # peft reads an attribute that transformers has deprecated.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            self.adapters[name] = PeftModel.from_pretrained(base, folder).eval()
        return f"Success: LoRA adapter '{name}' added successfully."

    @torch.no_grad()
    def choices(self, body):
        name = body.get("model")
        if name is not None and name not in self.adapters:
            raise RefusedError(404, f"The model `{name}` does not exist.")
        self.model = self.adapters.get(name, self.base)
        sampling, prompt = body["sampling_params"], body["token_ids"]
        if sampling["n"] > self.facts["max_rows"]:
            raise RuntimeError("n is too large")
        return [
            self.spoil(self.choice(prompt, sampling, number)) for number in range(sampling["n"])
        ]

    def choice(self, prompt, sampling, number):
        generator = torch.Generator().manual_seed(sampling["seed"] + number)
        ids, scores, reason, first = list(prompt), [], "length", self.tag
        while len(scores) < sampling["max_tokens"]:
            logits = self.model(torch.tensor([ids])).logits[0, -1]
            log_probs = (logits / (sampling["temperature"] or 1.0)).log_softmax(-1)
            if sampling["temperature"]:
                token = int(torch.multinomial(log_probs.exp(), 1, generator=generator))
            else:
                token = int(log_probs.argmax())
            ids.append(token)
            scores.append({"token_id": token, "logprob": float(log_probs[token])})
            text = self.tokenizer.decode(ids[len(prompt) :])
            if token in sampling["stop_token_ids"] or any(s in text for s in sampling["stop"]):
                reason = "stop"
                break
        versions = {first, self.tag}
        return {
            "index": number,
            "token_ids": ids[len(prompt) :],
            "finish_reason": reason,
            "logprobs": {"content": scores} if sampling["logprobs"] is not None else None,
            "weight_versions": [{"version": v, "start": 0, "end": len(scores)} for v in versions],
        }


def late(seconds):
    """A fault that delays the response."""

    def fault(_):
        time.sleep(seconds)

    return fault


class RefusedError(Exception):
    """A request that is answered by this status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status
