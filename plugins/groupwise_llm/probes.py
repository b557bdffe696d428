"""What a model can do, tried on the model itself at start rather than looked up by its name."""

from typing import Any

import torch

from groupwise.rollouts import Rollouts

TOLERANCE = 1e-3
"""In nats, for float32 weights; a cache that disagrees is wrong by far more."""


@torch.no_grad()
def head_is_plain(policy: Any) -> bool:
    """Whether logits are the output embedding times the last hidden state and nothing more.

    Says so in the policy's notes when not.
    """
    policy.plain_head = True
    causal = policy.causal
    try:
        ids = _tokens(causal, 8).to(policy.device).unsqueeze(0)
        ones, positions = torch.ones_like(ids), torch.arange(8, device=policy.device).unsqueeze(0)
        ours = policy.logits(policy.hidden(ids, ones, positions, None)[0])
        theirs = (
            causal(input_ids=ids, attention_mask=ones, position_ids=positions).logits[0].float()
        )
    except (AttributeError, TypeError) as error:
        policy.notes.append(f"logits are computed by the model's own head ({error})")
        return False
    relative, absolute = _tolerances(causal)
    if ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=relative, atol=absolute):
        return True
    policy.notes.append(
        "this model does more than multiply by its output embedding: its own logits are used, "
        "which takes more memory"
    )
    return False


@torch.no_grad()
def cache_agrees(policy: Any) -> bool:
    """Whether log-probs with a shared prompt agree with the plain ones; a note when not."""
    answers = []
    try:
        probe = _probe(policy.causal)
        for share in (False, True):
            policy.share_prompt = share
            answers.append(policy.forward(probe).log_probs)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError) as error:
        policy.notes.append(f"prompts are not shared: this model's cache refused ({error})")
        return False
    gap = float((answers[0] - answers[1]).abs().max())
    if gap <= _tolerances(policy.causal)[1]:
        return True
    policy.notes.append(f"prompts are not shared: log-probs differ by {gap:.2g} with this cache")
    return False


def _tolerances(causal: Any) -> tuple[float, float]:
    """(relative, absolute): weights that are loaded in bf16 round in every layer."""
    exact = causal.get_output_embeddings().weight.dtype in {torch.float32, torch.float64}
    return (1e-3, TOLERANCE) if exact else (0.05, 0.2)


def _tokens(causal: Any, count: int, seed: int = 0) -> torch.Tensor:
    size = int(causal.get_output_embeddings().weight.shape[0])
    return torch.randint(size, (count,), generator=torch.Generator().manual_seed(seed))


def _probe(causal: Any) -> Rollouts:
    """Two short prompts of different length with two random completions each."""
    prompts = [_tokens(causal, 5, seed=1), _tokens(causal, 3, seed=2)]
    return Rollouts(
        prompts=[{}] * 4,
        completions=[""] * 4,
        groups=torch.tensor([0, 0, 1, 1]),
        mask=torch.ones(4, 6, dtype=torch.bool),
        truncated=torch.zeros(4, dtype=torch.bool),
        trajectory={
            "prompt_ids": [prompts[0], prompts[0], prompts[1], prompts[1]],
            "completion_ids": _tokens(causal, 24).view(4, 6),
        },
    )
