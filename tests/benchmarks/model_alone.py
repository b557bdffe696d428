"""What the model alone costs: a loop over transformers and torch's AdamW that learns nothing."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from works import Work


def model_alone(
    work: Work, model: Path, steps: int, tick: Callable[[float], None], *, group: int, device: str
) -> None:
    """Computes each prompt once for its group, chooses tokens by argmax, and keeps all logits of a
    part of the update. With bf16, weights and optimizer are in bf16, too.

    tick: called at the end of a step with the seconds of sampling.
    """
    torch.manual_seed(0)
    dtype = torch.bfloat16 if work.bf16 else torch.float32
    causal = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval().to(device)
    optimizer = torch.optim.AdamW(causal.parameters(), lr=1e-5)
    prompts = torch.randint(2, 28, (work.rows // group, work.prompt), device=device)
    lengths = torch.full((work.rows,), work.completion, device=device)
    size = work.part or work.rows
    for _ in range(steps):
        if work.ends:
            random_lengths = torch.empty(work.rows, device=device).geometric_(1 / 32).long()
            lengths = random_lengths.clamp(max=work.completion)
        started = time.perf_counter()
        ids = decode(causal, prompts, lengths, group)
        lengths.sum().item()  # waits for the device
        sampled = time.perf_counter() - started
        for start in range(0, work.rows, size):
            rows = slice(start, start + size)
            part_prompts = prompts[start // group : (start + size) // group]
            share = lengths[rows].sum() / lengths.sum()
            mean = mean_log_prob(causal, part_prompts, ids[rows], lengths[rows], group)
            (-mean * share).backward()
        optimizer.step()
        optimizer.zero_grad()
        tick(sampled)


@torch.no_grad()
def decode(causal: Any, prompts: Tensor, lengths: Tensor, group: int) -> Tensor:
    """Ids, [rows, longest]; as in our code, completed rows leave the batch."""
    device = prompts.device
    # On a GPU every check makes the host wait.
    interval = 1 if device.type == "cpu" else 16
    cache, rows = DynamicCache(config=causal.config), torch.arange(len(lengths), device=device)
    ids = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64, device=device)
    logits = causal(prompts, past_key_values=cache, logits_to_keep=1).logits[:, -1]
    cache.batch_repeat_interleave(group)
    logits = logits.repeat_interleave(group, dim=0)
    for step in range(ids.shape[1]):
        ids[rows, step] = logits.argmax(dim=-1)
        if (step + 1) % interval == 0:
            alive = (lengths[rows] > step + 1).nonzero().flatten()
            if not len(alive):
                break
            if len(alive) <= 0.85 * len(rows):
                cache.batch_select_indices(alive)
                rows = rows[alive]
        logits = causal(ids[rows, step, None], past_key_values=cache).logits[:, -1]
    return ids


def mean_log_prob(causal: Any, prompts: Tensor, ids: Tensor, lengths: Tensor, group: int) -> Tensor:
    """The mean log-prob of all tokens, by a pass over the prompts and one over the completions."""
    cache = DynamicCache(config=causal.config)
    first = causal.base_model(prompts, past_key_values=cache, use_cache=True).last_hidden_state
    cache.batch_repeat_interleave(group)
    hidden = causal.base_model(ids[:, :-1], past_key_values=cache, use_cache=True).last_hidden_state
    states = torch.cat([first[:, -1:].repeat_interleave(group, dim=0), hidden], dim=1)
    mask = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
    log_p = causal.get_output_embeddings()(states[mask]).float().log_softmax(dim=-1)
    return log_p.gather(1, ids[mask].unsqueeze(1)).mean()
