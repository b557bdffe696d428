"""Kernels that the host launches for a token, and its waits, with CUDA graphs and without.

    python tests/benchmarks/launches.py                      # as many layers as Qwen2.5-0.5B has
    python tests/benchmarks/launches.py --layers 4 --tokens 64

Counted without a GPU, on the simulated device of tests/device, where an operation counts as one
kernel and attention is made of plain ones. The model is narrow, since widths change no count.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))

import torch
from llm_job import llm, place_quickly
from runs import plain
from simulated import Device

from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

ROWS = [{"prompt": f"{number}+{number}="} for number in range(2)]
VARIANTS: dict[str, dict[str, Any]] = {
    "full training": {},
    "LoRA": {"lora": {"rank": 2}},
    "bf16, top_p and top_k": {"precision": "bf16", "top_p": 0.9, "top_k": 100},
    "a stop string": {"stop": ["never"]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    shape = {"num_hidden_layers": options.layers, "max_position_embeddings": 1024}
    config = llm.Qwen2Config(**{**llm.GATED, **shape}, tie_word_embeddings=True)
    llm.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    llm.make_tokenizer().save_pretrained(folder)
    print(f"{options.layers} layers, completions of {options.tokens} tokens; for each token:\n")
    print("| | kernels of an eager token | launches with graphs | waits | captures in all |")
    print("|---|---|---|---|---|")
    for name, settings in VARIANTS.items():
        print(f"| {name} | {row(folder, options.tokens, settings)} |", flush=True)


def row(folder: Path, tokens: int, settings: dict[str, Any]) -> str:
    """The cells of a table's row. The first token comes from the prompts' pass, so it is left out
    by counting a completion of one token, too."""
    few = 3

    def policy(length: int, *, graphs: bool) -> LanguageModel:
        made = LanguageModel(
            Settings(model=str(folder), max_new_tokens=length, cuda_graphs=graphs, **settings)
        )
        made.place("cpu")
        made.ends = [-1]  # no completion ends early
        return made

    lengths = {"one": 1, "few": few, "graphs": tokens}
    policies = {name: policy(n, graphs=name == "graphs") for name, n in lengths.items()}
    counts = {}
    with Device() as device, plain():
        for name, own in policies.items():
            place_quickly(own)
            call = partial(own.sample, ROWS, group_size=4, seeds=range(8))
            counts[name] = device.during(call)
    one, eager, graphs = counts.values()
    after = tokens - 1
    cells = [
        f"{(eager.launches - one.launches) / (few - 1):,.0f}",
        f"{(graphs.launches - one.launches) / after:.1f}",
        f"{(graphs.waits - one.waits) / after:.3f}",
        str(graphs.captures),
    ]
    return " | ".join(cells)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    main()
