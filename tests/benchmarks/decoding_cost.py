"""What decoding a token costs beside computing: launches and waits of the host; and the least time.

    python tests/benchmarks/decoding_cost.py machine              # memory bandwidth, by a copy
    python tests/benchmarks/decoding_cost.py launches L           # a work of against_trl.py
    python tests/benchmarks/decoding_cost.py launches L --eager   # without CUDA graphs

Launches are counted by torch's profiler, waits by torch.cuda.set_sync_debug_mode: those of whole
completions less those of one token, which are the prompts', over the other tokens; each is drawn
once before, to warm up. The least time of a token is that of reading once the weights in bf16 and
the cache when half of the completion is drawn. Prints JSON.
"""

import argparse
import json
import os
import platform
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from against_trl import saved_model
from sides import GROUP, without_graphs
from works import WORKS, Work

LAUNCHES = ("LaunchKernel", "GraphLaunch")
"""Parts of the names of CUDA's calls that start a kernel or a graph."""
COPIES = ("MemcpyAsync", "MemsetAsync")
MEMORY = ("Memcpy", "Memset")
"""The names of what the GPU does, beside kernels."""
WAIT = "synchronizing CUDA operation"
BYTES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("machine", "launches"))
    parser.add_argument("work", nargs="?", choices=WORKS, default="L")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", type=Path, help="where the models are, made there if missing")
    parser.add_argument("--tokens", type=int, help="of a completion; those of the work if unset")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--megabytes", type=int, default=2048, help="size of the copy")
    options = parser.parse_args()
    if options.what == "machine":
        print(json.dumps(machine(options.device, options.megabytes)))
        return
    folder = options.models or Path(tempfile.mkdtemp())
    model = saved_model(options.work, folder, options.device)
    settings = without_graphs() if options.eager else {}
    work = WORKS[options.work]
    tokens = options.tokens or work.completion
    print(json.dumps(costs(work, model, options.device, tokens, **settings)))


def machine(device: str, megabytes: int) -> dict[str, Any]:
    """The names of what is measured on and with, and its memory bandwidth in bytes a second."""
    gpu = device == "cuda"
    name = torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
    versions = {package: _version(package) for package in ("torch", "transformers", "trl")}
    rate = bandwidth(device, megabytes)
    return {"device": name, "cores": os.cpu_count(), "versions": versions, "bandwidth": rate}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def bandwidth(device: str, megabytes: int) -> float:
    """Bytes read and written in a second by a copy, the fastest of ten."""
    source = torch.zeros(megabytes << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(10):
        _wait(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return 2 * source.numel() / min(seconds)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def costs(
    work: Work, model: Path, device: str, tokens: int, **settings: Any
) -> dict[str, float | int]:
    """launches, copies, waits: of the host for a token of all rows, and kernels that the GPU runs,
    also those of graphs, if there is one; weights, cache: bytes read for a token at least.

    settings: further ones of the policy.
    """
    from groupwise_llm.policy import LanguageModel
    from groupwise_llm.settings import Settings

    rows = [{"prompt": prompt} for prompt in work.prompts(work.rows // GROUP)]
    counts = []
    for length in (1, tokens):
        precision = "bf16" if work.bf16 else "float32"
        policy = LanguageModel(
            Settings(model=str(model), max_new_tokens=length, precision=precision, **settings)
        )
        policy.place(device)

        def sample(policy: LanguageModel = policy) -> None:
            policy.sample(rows, group_size=GROUP, seeds=range(work.rows))

        sample()
        counts.append(counted(sample, device))
    per_token = {key: (counts[1][key] - counts[0][key]) / (tokens - 1) for key in sorted(counts[1])}
    weights = BYTES * sum(p.numel() for p in policy.parameters())
    return {**per_token, "weights": weights, "cache": cache(policy.model.config, work)}


def counted(sample: Callable[[], None], device: str) -> Counter[str]:
    """Launches, copies, kernels and waits while it samples; none of them on a CPU."""
    if device == "cpu":
        sample()
        return Counter()
    counts: Counter[str] = Counter(launches=0, copies=0, kernels=0, waits=0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        sample()
    for event in profile.key_averages():
        counts["launches"] += event.count * any(name in event.key for name in LAUNCHES)
        counts["copies"] += event.count * any(name in event.key for name in COPIES)
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        counts["kernels"] += event.count * (on_gpu and not event.key.startswith(MEMORY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            sample()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    counts["waits"] = sum(WAIT in str(warning.message) for warning in caught)
    return counts


def cache(config: Any, work: Work) -> int:
    """Bytes of keys and values of all rows, in bf16, when half of the completion is drawn."""
    width = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    length = work.prompt + work.completion // 2
    return work.rows * length * config.num_hidden_layers * 2 * width * BYTES


if __name__ == "__main__":
    main()
