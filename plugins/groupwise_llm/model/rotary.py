"""Rotary: frequencies of rotary embeddings that are the same in every pass of a run.

Of some models (LongRoPE, arXiv 2402.13753: Phi-3 and Phi-4-mini) they depend on the longest
position in the pass, so a row's log-probs would depend on the rows beside it, and its cached keys
would be rotated by other frequencies than the tokens after the limit.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

NEAR = 4
"""Positions whose rotation is compared with and without a distant position in the pass."""


def fix(model: Any, longest: int | None) -> list[str]:
    """Have every pass use the frequencies of a row of `longest` tokens, where they depend on it.

    longest: most tokens of prompt and completion in the run; None if unlimited. A note says so
    where they do depend on it. The model may have shapes without data.
    """
    if longest is None:
        return []
    changed = [module for module in _rotary(model) if _depends(module, longest)]
    for module in changed:
        module.forward = partial(_forward, module.forward, longest - 1)
    return list(dict.fromkeys(_note(module, longest) for module in changed))


def original_positions(config: Any) -> int | None:
    """The length up to which a LongRoPE model uses its short factors; None for other models.

    config: transformers' configuration of the text model.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type") != "longrope":
        return None
    limit: int | None = parameters.get("original_max_position_embeddings")
    return limit


def _forward(
    forward: Any, farthest: int, x: Tensor, position_ids: Tensor, *rest: Any, **options: Any
) -> Any:
    """The rotation at these positions [..., t], in a pass that has the position `farthest`."""
    last = position_ids.new_full((*position_ids.shape[:-1], 1), farthest)
    turned = forward(x, torch.cat([position_ids, last], dim=-1), *rest, **options)
    if isinstance(turned, Tensor):
        return turned[..., :-1, :]
    return tuple(part[..., :-1, :] for part in turned)


def _rotary(model: Any) -> Iterator[Any]:
    """The modules that hold frequencies and compute the rotation from positions of text."""
    of_text = model.config.get_text_config(decoder=True) is model.config
    for module in (model if of_text else model.get_decoder()).modules():
        buffers = [name for name, _ in module.named_buffers(recurse=False)]
        if any(name.endswith("inv_freq") for name in buffers):
            arguments = list(signature(module.forward).parameters)
            if arguments[1:2] == ["position_ids"]:
                yield module


def _depends(module: Any, longest: int) -> bool:
    """Whether the first positions are rotated otherwise beside the position longest - 1."""
    device = next(module.buffers()).device
    if device.type == "meta":
        module, device = type(module)(module.config), torch.device("cpu")
    near = torch.arange(NEAR, device=device).unsqueeze(0)
    x = torch.zeros(1, NEAR, 1, device=device)
    for options in _options(module):
        alone = module(x, near, **options)
        beside = _forward(module.forward, longest - 1, x, near, **options)
        pairs = [(alone, beside)] if isinstance(alone, Tensor) else zip(alone, beside, strict=True)
        if not all(torch.equal(*pair) for pair in pairs):
            return True
    return False


def _options(module: Any) -> list[Mapping[str, Any]]:
    """The arguments of `forward` beside the positions, for each type of layer."""
    if "layer_type" not in signature(module.forward).parameters:
        return [{}]
    kinds = getattr(module, "layer_types", None) or module.config.layer_types
    return [{"layer_type": kind} for kind in sorted(set(kinds))]


def _note(module: Any, longest: int) -> str:
    kind = getattr(module, "rope_type", None) or type(module).__name__
    limit = original_positions(getattr(module, "config", None))
    short = (
        f"; for those of rows up to {limit} tokens set policy.max_prompt_tokens so that prompt and "
        f"completion have no more"
        if limit
        else ""
    )
    return (
        f"this model's rotary frequencies ({kind}) depend on the longest row of a pass; every pass "
        f"of the run uses those of {longest} tokens, the most that prompt and completion may have"
        f"{short}"
    )
