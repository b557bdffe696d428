"""GRPO from a group of samples to the optimizer step, to be read from top to bottom.

    python examples/bare.py

trains the model of examples/arithmetic.yaml: in 15 steps, some 80 seconds on one CPU core,
the share of its samples that are right rises from 45 to 99% (seed 0).

Advantages and loss are the core's pure functions, the model and its tokenizer are transformers';
a test compares an update with that of `groupwise train`. What a training needs besides is left out:

- A batch of several prompts: one group at a time needs no padding of prompts. It is slower.
- The prompt once for its group, and rows that leave the batch when they end: only speed.
- Micro-batches, bf16, several devices: the model is small, and a group fits into memory.
- A KL to the reference: a verifier of right answers is hard to exploit, and `beta` is 0 by default.
- Seeds of single samples, checkpoints, held-out prompts: what makes a run repeatable, resumable and
  honest, but not GRPO.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import reasoning_gym
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise import objective
from groupwise.advantages import group_relative

BASE = Path(__file__).parent / "arithmetic" / "base"
STEPS, GROUPS, GROUP_SIZE, MAX_NEW_TOKENS = 15, 8, 16, 88
EPOCHS, LEARNING_RATE, CLIP, MAX_GRAD_NORM = 2, 2e-4, 0.2, 1.0


class Group(NamedTuple):
    """G completions of one prompt of P tokens; the longest has T tokens."""

    prompt: Tensor  # [P] token ids
    ids: Tensor  # [G, T] token ids of the completions
    mask: Tensor  # [G, T] bool, False after a completion's end token
    old_log_probs: Tensor  # [G, T] under the weights that sampled
    advantages: Tensor  # [G]


@torch.no_grad()
def sample(model: Any, prompt: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw completions token by token; returns ids, mask and log-probs, [G, T] each."""
    inputs, cache, alive = prompt.expand(size, -1), None, torch.ones(size, 1, dtype=torch.bool)
    columns = []
    while alive.any() and len(columns) < MAX_NEW_TOKENS:
        output = model(inputs, past_key_values=cache, use_cache=True)
        log_p, cache = output.logits[:, -1].log_softmax(-1), output.past_key_values  # [G, V]
        inputs = log_p.exp().multinomial(1)  # [G, 1], the next token of each completion
        columns.append((inputs, alive, log_p.gather(1, inputs)))
        alive = alive & (inputs != model.config.eos_token_id)  # the end token itself is a decision
    ids, mask, log_probs = (torch.cat(column, dim=1) for column in zip(*columns, strict=True))
    return ids, mask, log_probs


def reward(completion: str, answer: str) -> float:
    """1 if the right number is in the answer tags, else 0."""
    stated = re.search(r"<answer>\s*(\S+)\s*</answer>", completion)
    return float(stated is not None and stated[1] == answer)


def advantages(rewards: Tensor) -> Tensor:
    """[G] -> [G]: (r - mean) / (std + epsilon); all rewards are those of one group."""
    return group_relative(rewards, torch.zeros(len(rewards), dtype=torch.int64))


def log_probs(model: Any, prompt: Tensor, ids: Tensor) -> Tensor:
    """[G, T], with gradient: of each token of the completions, given all before it."""
    rows = torch.cat([prompt.expand(len(ids), -1), ids], dim=1)  # [G, P + T]
    logits = model(rows[:, :-1]).logits[:, len(prompt) - 1 :]  # [G, T, V]; t predicts t + 1
    return logits.log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2)


def update(model: Any, optimizer: torch.optim.Optimizer, groups: list[Group]) -> tuple[float, ...]:
    """One optimizer step on all groups; returns the loss and the norm of its gradient."""
    total = 0.0
    for group in groups:
        current = log_probs(model, group.prompt, group.ids)  # [G, T]
        log_ratio = objective.token_log_ratio(current, group.old_log_probs, group.mask)
        losses = objective.clipped(log_ratio, group.advantages, low=CLIP, high=CLIP)  # [G, T]
        weights = objective.weights(group.mask, normalize="sequence")  # [G, T], 1 / (G x length)
        loss = (weights * losses).sum() / len(groups)
        loss.backward()  # adds to the gradient of the groups before
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm.item()


def main() -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    model = AutoModelForCausalLM.from_pretrained(BASE).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    sums = {"min_terms": 4, "max_terms": 6, "min_digits": 2, "max_digits": 2}
    problems = iter(reasoning_gym.create_dataset("chain_sum", seed=0, size=STEPS * GROUPS, **sums))
    for step in range(1, STEPS + 1):
        groups, rewards = [], []
        for _ in range(GROUPS):
            problem = next(problems)
            prompt = tokenizer(problem["question"] + "\n", return_tensors="pt").input_ids[0]
            ids, mask, old = sample(model, prompt, GROUP_SIZE)
            texts = [tokenizer.decode(row[chosen]) for row, chosen in zip(ids, mask, strict=True)]
            rewards.append(torch.tensor([reward(text, problem["answer"]) for text in texts]))
            groups.append(Group(prompt, ids, mask, old, advantages(rewards[-1])))
        for _ in range(EPOCHS):  # from the second on ratios differ from 1, and the clip matters
            loss, norm = update(model, optimizer, groups)
        mean = torch.cat(rewards).mean().item()
        print(f"step {step:2d}  reward {mean:.3f}  loss {loss:+.4f}  gradient norm {norm:.3f}")


if __name__ == "__main__":
    main()
