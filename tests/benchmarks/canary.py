"""The canary's table: the slope of a server's change on the policy's, by how far the policy moved.

    python tests/benchmarks/canary.py

A model of four layers with random weights, at three seeds: all weights move by a share of their
size, and a server in the policy's precision gets all of them, none, or those of two layers alone.
"""

import copy
from contextlib import nullcontext

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from groupwise_llm.vllm.canary import LEAST, Reading, arrived

TOKENS, SHARES = 128, (1e-6, 1e-5, 1e-3, 3e-3, 1e-2)
MODEL = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False,
    "initializer_range": 0.08,
}  # fmt: skip
PARTS = {
    "all": lambda name: True,
    "none": lambda name: False,
    "two layers": lambda name: ".layers.0." in name or ".layers.1." in name,
}


class Trial:
    """A model, the directions in which its weights move, and a text."""

    def __init__(self, seed, precision):
        torch.manual_seed(seed)
        self.precision, self.model = precision, LlamaForCausalLM(LlamaConfig(**MODEL)).eval()
        self.start = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.moves = {n: torch.randn(p.shape) * p.abs().mean() for n, p in self.start.items()}
        prompt = torch.randint(MODEL["vocab_size"], (1, 2))
        lengths = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
        self.ids = self.model.generate(
            prompt, attention_mask=torch.ones(1, 2), do_sample=True, **lengths
        )

    @torch.no_grad()
    def log_probs(self, share, moves=PARTS["all"], *, server=False):
        """[n] of the text; a server holds its weights in its precision, and computes as rounded as
        another kernel would: in float32 by 1e-6 nats."""
        for name, weight in self.model.named_parameters():
            weight.copy_(self.start[name] + (share * self.moves[name] if moves(name) else 0))
        half, model = self.precision == "bf16", self.model
        if server and half:
            model = copy.deepcopy(model).bfloat16()
        autocast = half and not server
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            logits = model(self.ids).logits.float()[0, 1:-1]
        chosen = logits.log_softmax(-1).gather(1, self.ids[0, 2:, None])[:, 0].double()
        return chosen + 1e-6 * torch.randn(len(chosen)) if server and not half else chosen


def row(precision, share):
    cells, moved, gap = {part: [] for part in PARTS}, [], []
    for seed in range(3):
        trial = Trial(seed, precision)
        server = trial.log_probs(0.0, server=True)
        before = Reading(policy=trial.log_probs(0.0), server=server, norms={})
        policy = trial.log_probs(share)
        moved.append(float((policy - before.policy).abs().mean()))
        gap.append(float(before.gaps.abs().mean()))
        for part, moves in PARTS.items():
            now = Reading(
                policy=policy, server=trial.log_probs(share, moves, server=True), norms={}
            )
            slope, shortfall = arrived(before, now)
            verdict = "open"
            if slope + shortfall < LEAST[precision]:
                verdict = "refused"
            elif shortfall < 1 - LEAST[precision]:
                verdict = "passed"
            cells[part].append(f"{slope:.2f} {verdict}")
    means = (sum(values) / len(values) for values in (gap, moved))
    return [precision, *(f"{mean:.2g}" for mean in means), *map(", ".join, cells.values())]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| precision | rounded by, nats | moved by, nats |", " | ".join(PARTS), "|")
    for precision in LEAST:
        for share in SHARES:
            print("|", " | ".join(row(precision, share)), "|", flush=True)
