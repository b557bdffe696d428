"""Engine: a server with the protocol of vLLM 0.32, for a small model of transformers.

It samples from the model and returns the model's log-probs. `faults` make it misbehave. Pictures
come beside token ids with one placeholder for each; the model's processor prepares them.
"""

import base64
import io
import json
import sys
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import signature
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import torch
import transformers
from peft import PeftModel
from PIL import Image
from safetensors.torch import load_file

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
    "text_only": False,
    "dtype": "torch.float32",
    "quantization": None,
    "cache_dtype": "auto",
    "speculative": None,
    "data_parallel": 1,
}
UNBEGUN = {"add_special_tokens": False, "return_tensors": "pt"}
OF_TEXT, KINDS = {"input_ids", "attention_mask"}, {"mm_token_type_ids", "token_type_ids"}
"""A processor's answers about tokens; those that say which are of pictures."""


class Engine:
    """folder: of the model it starts with. calls: path and body of every request, in order;
    queries: by path, those of the last request.

    faults: by path, a function of the body that is called first and may return the response;
    spoil: a function that changes each choice before it is sent; halt: one that is called before
    each token of a choice, with the number of those so far.

    Requests run beside each other, token by token, and wait while it is paused. cached: whether
    keys and values are kept for the next token, until they are dropped.
    """

    def __init__(self, folder, *, host="127.0.0.1", port=0, cached=False, **facts):
        self.folder, self.facts = Path(folder), {**FACTS, **facts}
        self.calls, self.faults, self.spoil = [], {}, lambda choice: choice
        self.queries, self.halt = {}, lambda count: None
        self.lock = threading.Condition()
        self.cached, self.drops = cached, 0
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.sees = hasattr(transformers.AutoConfig.from_pretrained(folder), "vision_config")
        self.kind = (
            transformers.AutoModelForImageTextToText
            if self.sees
            else transformers.AutoModelForCausalLM
        )
        self.processor = transformers.AutoProcessor.from_pretrained(folder) if self.sees else None
        self.features = {}
        self.http, self.host, self.port = None, host, port
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Starts with the original weights and the tag of a new server."""
        self.base = self.model = self.loaded()
        self.tag, self.adapters, self.is_paused = "default", {}, False
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
                if not isinstance(sys.exception(), ConnectionError):  # the client has closed it
                    super().handle_error(request, address)

        self.http = Server((self.host, self.port), Handler)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def loaded(self):
        """The model as it is in its folder. The tower's output is kept until the cache is reset."""
        model = self.kind.from_pretrained(self.folder).eval()
        if self.sees:
            compute = model.model.get_image_features

            def features(pixel_values, *args, **options):
                key = pixel_values.numpy().tobytes()
                if key not in self.features:
                    self.features[key] = compute(pixel_values, *args, **options)
                return self.features[key]

            model.model.get_image_features = features
        return model

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
        if path == "inference/v1/generate":
            return self.completions(body)
        with self.lock:
            return self.changed(path, body, query)

    def changed(self, path, body, query):
        """What is done between two tokens."""
        if path == "update_weight_version":
            self.tag = body["new_version"]
        elif path == "collective_rpc":
            assert body["method"] == "reload_weights"
            self.load(body["kwargs"]["weights_path"])
        elif path in ("pause", "resume"):
            assert path == "resume" or query["mode"] == "keep"
            self.is_paused = path == "pause"
            self.drops += query.get("clear_cache") == "true"
            self.lock.notify_all()
        elif path == "reset_prefix_cache":
            self.drops += query["reset_running_requests"] == "true"
        elif path.endswith("load_lora_adapter"):
            return self.change_adapters(path, body)
        elif path == "reset_encoder_cache":
            self.features.clear()
        return "" if path == "reset_encoder_cache" else {"success": True}

    def server_info(self):
        facts = self.facts
        model = {
            "max_model_len": facts["max_tokens"],
            "logprobs_mode": facts["logprobs_mode"],
            "enable_sleep_mode": facts["sleep_mode"],
            "dtype": facts["dtype"],
            "quantization": facts["quantization"],
            "multimodal_config": {"language_model_only": facts["text_only"]} if self.sees else None,
        }
        scheduler = {
            "max_num_seqs": facts["max_rows"],
            "enable_chunked_prefill": facts["chunked_prefill"],
        }
        return {
            "vllm_config": {
                "model_config": model,
                "scheduler_config": scheduler,
                "parallel_config": {"world_size": 1, "data_parallel_size": facts["data_parallel"]},
                "cache_config": {"cache_dtype": facts["cache_dtype"]},
                "speculative_config": facts["speculative"],
                "device_config": {"device": facts["device"]},
                "weight_transfer_config": facts["backend"] and {"backend": facts["backend"]},
                "lora_config": facts["lora_rank"] and {"max_lora_rank": facts["lora_rank"]},
            },
            "vllm_env": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": facts["lora_updates"]},
        }

    def load(self, folder):
        """As in vLLM unknown names and other shapes are errors, missing tensors are not."""
        files = sorted(Path(folder).glob("*.safetensors"))
        sent = {name: tensor for file in files for name, tensor in load_file(file).items()}
        own = self.base.state_dict()
        if self.sees:  # checkpoints have other names than the model
            read = {"config": self.base.config, "state_dict": sent, "output_loading_info": True}
            model, notes = type(self.base).from_pretrained(None, **read)
            if notes["unexpected_keys"]:
                raise KeyError(*notes["unexpected_keys"])
            sent = model.state_dict()
        for name, tensor in sent.items():
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
        base = self.loaded()
        base.load_state_dict(self.base.state_dict())
        with warnings.catch_warnings():
            # peft reads an attribute that transformers has deprecated.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            self.adapters[name] = PeftModel.from_pretrained(base, folder).eval()
        return f"Success: LoRA adapter '{name}' added successfully."

    @torch.no_grad()
    def completions(self, body):
        name = body.get("model")
        if name is not None and name not in self.adapters:
            raise RefusedError(404, f"The model `{name}` does not exist.")
        sampling = body["sampling_params"] | {"model": name}
        prompt, inputs = self.prompt(body)
        if sampling["n"] > self.facts["max_rows"]:
            raise RuntimeError("n is too large")
        numbers = range(sampling["n"])
        choices = [self.spoil(self.choice(prompt, inputs, sampling, n)) for n in numbers]
        read = prompt if body.get("return_token_ids") else None
        scored = sampling.get("prompt_logprobs") is not None
        return {
            "choices": choices,
            "prompt_token_ids": read,
            "prompt_logprobs": self.prompt_scores(prompt, inputs, name) if scored else None,
        }

    def prompt_scores(self, prompt, inputs, name):
        """For each token of a prompt its log-prob, of the first none; as vLLM at temperature 1."""
        with self.lock:
            self.model = self.adapters[name] if name else self.base
            return self.scores(prompt, inputs)

    def scores(self, prompt, inputs):
        log_probs = self.logits(prompt, inputs).log_softmax(-1)
        scores = [
            {str(token): {"logprob": float(own[token]), "rank": 1, "decoded_token": None}}
            for token, own in zip(prompt[1:], log_probs, strict=False)
        ]
        return [None, *scores]

    def prompt(self, body):
        """The ids with all tokens of pictures, and the model's inputs for these pictures."""
        ids, parts = body["token_ids"], body.get("content_parts", [])
        if not parts:
            return ids, {}
        data = [base64.b64decode(part["url"].split(",")[1]) for part in parts]
        images = [Image.open(io.BytesIO(own)).convert("RGB") for own in data]
        mark = getattr(self.processor, "boi_token", self.processor.image_token)
        placeholder = self.tokenizer.convert_tokens_to_ids(mark)

        def read(*own):
            return self.processor(text=[mark * len(own)], images=[[*own]], **UNBEGUN)

        frames = [read(image)["input_ids"][0].tolist() for image in images]
        if ids.count(placeholder) < len(images):
            raise RefusedError(400, "Failed to apply prompt replacement")
        expanded = []
        for token in ids:  # as in vLLM, a placeholder without a picture stays a token of text
            expanded += frames.pop(0) if token == placeholder and frames else [token]
        return expanded, {k: v for k, v in read(*images).items() if k not in OF_TEXT | KINDS}

    def logits(self, ids, inputs):
        """[t, v], of the tokens after each of these."""
        ids = torch.tensor([ids])
        if inputs:
            kinds = KINDS & signature(self.base.forward).parameters.keys()
            inputs = inputs | dict.fromkeys(kinds, (ids == self.processor.image_token_id).long())
        return self.model(input_ids=ids, **inputs).logits[0]

    def next_logits(self, name, ids, inputs, kept):
        """[v], of the next token, and the tag of the weights; kept: what is cached of the ids."""
        with self.lock:
            self.lock.wait_for(lambda: not self.is_paused)
            self.model = self.adapters[name] if name else self.base
            if not self.cached or inputs:
                return self.logits(ids, inputs)[-1], self.tag
            if kept.get("drops") != self.drops:
                kept |= {"drops": self.drops, "cache": transformers.DynamicCache(), "count": 0}
            new = torch.tensor([ids[kept["count"] :]])
            logits = self.model(input_ids=new, past_key_values=kept["cache"], use_cache=True).logits
            kept["count"] = len(ids)
            return logits[0, -1], self.tag

    def choice(self, prompt, inputs, sampling, number):
        generator = torch.Generator().manual_seed(sampling.get("seed", 0) + number)
        ids, scores, reason, kept, tags = list(prompt), [], "length", {}, []
        while len(scores) < sampling["max_tokens"]:
            self.halt(len(scores))
            logits, tag = self.next_logits(sampling["model"], ids, inputs, kept)
            tags.append(tag)
            for token, bias in sampling.get("logit_bias", {}).items():
                logits[int(token)] += bias
            log_probs = (logits / (sampling["temperature"] or 1.0)).log_softmax(-1)
            if sampling["temperature"]:
                token = int(torch.multinomial(log_probs.exp(), 1, generator=generator))
            else:
                token = int(log_probs.argmax())
            ids.append(token)
            scores.append({"token_id": token, "logprob": float(log_probs[token])})
            text = self.tokenizer.decode(ids[len(prompt) :])
            if token in sampling.get("stop_token_ids", ()) or any(
                s in text for s in sampling.get("stop", ())
            ):
                reason = "stop"
                break
        return {
            "index": number,
            "token_ids": ids[len(prompt) :],
            "finish_reason": reason,
            "logprobs": {"content": scores} if sampling.get("logprobs") is not None else None,
            "weight_versions": spans(tags),
        }


def spans(tags):
    """vLLM's spans of tokens with an equal tag."""
    made = []
    for place, tag in enumerate(tags):
        if not made or made[-1]["version"] != tag:
            made.append({"version": tag, "start": place})
        made[-1]["end"] = place + 1
    return made


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
