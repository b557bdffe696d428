"""Adapters: servers that have the policy's base model get its adapters alone (vLLM's LoRA)."""

import shutil
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import torch
from accelerate import PartialState
from safetensors import SafetensorError

from groupwise.kit import processes
from groupwise.kit.errors import UserError, first_line
from groupwise_llm.files.adapter import factors, more_than_factors, rank_of, write
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.files import Files
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.prompt import family_of
from groupwise_llm.vllm.server import ORIGINAL, Server, ServerInfo
from groupwise_llm.vllm.settings import Settings
from groupwise_llm.vllm.transfer import norm

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM takes for --max-lora-rank."""
PREFIX = "adapters-"
"""What the tags of adapters begin with: under them a server's own weights are the original ones."""
HERE = {"localhost", "127.0.0.1", "::1"}


class Adapters(Files):
    """The adapters' tag is also the name under which a server knows them and requests ask for them,
    so no request can be answered by the base model, nor from a prompt cache of older adapters.

    A request that runs goes on with the adapters that it asked for. They stay until none does.
    """

    prefix = PREFIX

    def __init__(self, fleet: Fleet, parent: str | None) -> None:
        super().__init__(fleet, parent)
        self._loaded: list[str] = []

    def send(self, policy: LanguageModel, tag: str) -> None:
        keep = PartialState().is_main_process
        tensors = {
            name: tensor.to("cpu").contiguous()
            for name, tensor in factors(policy.model)
            if keep  # the other ranks iterate, too, as gathering is a collective
        }
        # Servers compute adapters in their own precision, which is the policy's.
        dtype = torch.bfloat16 if policy.config.precision == "bf16" else torch.float32
        self.norms = {name: float(norm(tensor.to(dtype))) for name, tensor in tensors.items()}

        def write_files() -> None:
            try:
                write(policy.model, tensors, self.home / tag)
            except (OSError, SafetensorError) as error:
                raise UserError(
                    f"sampler.folder: the adapters cannot be written to {self.home}: "
                    f"{first_line(error)}; set it to a folder with room for them"
                ) from error

        processes.first(write_files)
        self._loaded.append(tag)
        processes.first(lambda: self.fleet.each(lambda server: self._load(server, tag)))

    def model(self, tag: str) -> str | None:
        return tag

    def keep_only(self, tags: Collection[str]) -> None:
        others = [tag for tag in self._loaded if tag not in tags]
        self._loaded = [tag for tag in self._loaded if tag in tags]

        def unload(server: Server) -> None:
            for tag in others:
                server.unload_adapter(tag)

        def remove() -> None:
            self.fleet.each(unload)
            for tag in others:
                shutil.rmtree(self.home / tag, ignore_errors=True)

        if others:
            processes.first(remove)

    def _load(self, server: Server, tag: str) -> None:
        former = server.tag
        if former.startswith(PREFIX) and former not in self._loaded:  # of another run
            server.unload_adapter(former)
        server.unload_adapter(tag)  # a request that was answered too late may have loaded them
        server.load_adapter(str(self.home / tag), tag)
        server.set_tag(tag)


def launch_options(policy: LanguageModel, settings: Settings) -> dict[str, Any]:
    """The options with which a server takes the policy's adapters; {} where it will not get them
    alone."""
    if next(_obstacles_here(policy, settings), None) is not None:
        return {}
    return {"enable-lora": True, "max-lora-rank": _max_rank(policy)}


def obstacle(
    policy: LanguageModel, settings: Settings, infos: Mapping[Server, ServerInfo]
) -> str | None:
    """Why the servers cannot get the adapters alone, as a sentence's end; None if they can."""
    here, there = _obstacles_here(policy, settings), _obstacles_there(policy, settings, infos)
    return next(chain(here, there), None)


def _obstacles_here(policy: LanguageModel, settings: Settings) -> Iterator[str]:
    if policy.config.lora is None:
        yield "the policy has no policy.lora"
        return
    family = family_of(policy)
    towers = family.towers(policy.causal.causal) if family else ()
    if any(weight.requires_grad for tower in towers for weight in tower.parameters()):
        yield "vLLM applies adapters to the language model alone, and policy.vision is trained"
    if settings.adapters is False:
        yield "sampler.adapters is false"
    if settings.transfer == "nccl":
        yield "vLLM takes no adapters by NCCL (sampler.transfer)"
    if getattr(policy.causal.causal, "is_quantized", False):
        yield "the policy's model is quantised, and the servers' is not"
    if policy.config.precision == "float32" and policy.device.type != "cpu":
        yield "vLLM computes adapters in half precision on a GPU: set policy.precision: bf16"
    if (other := more_than_factors(policy.model)) is not None:
        yield f"vLLM does not apply {other} as an adapter"
    if rank_of(policy.model) > RANKS[-1]:
        yield f"vLLM takes no adapters of a rank above {RANKS[-1]}"


def _obstacles_there(
    policy: LanguageModel, settings: Settings, infos: Mapping[Server, ServerInfo]
) -> Iterator[str]:
    rank = _max_rank(policy)
    for server, info in infos.items():
        at = f"the vLLM server at {server.url}"
        if settings.folder is None and urlsplit(server.url).hostname not in HERE:
            yield f"{at} is on another machine: set sampler.folder to a folder that both see"
        if info.lora_rank is None:
            yield f"{at} takes none: start it with --enable-lora --max-lora-rank {rank}"
        elif info.lora_rank < rank_of(policy.model):
            yield (
                f"{at} takes adapters up to rank {info.lora_rank}: start it with "
                f"--max-lora-rank {rank}"
            )
        elif not info.lora_updates:
            yield f"{at} takes none later: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        elif server.tag != ORIGINAL and not server.tag.startswith(PREFIX):
            yield f"{at} has weights of another run: restart it"


def _max_rank(policy: LanguageModel) -> int:
    """The least value of --max-lora-rank that suffices."""
    own = rank_of(policy.model)
    return next(rank for rank in RANKS if rank >= own)
