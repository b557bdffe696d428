"""Rewards of TRL and open-r1, by the names that files have for them."""

from collections.abc import Mapping
from typing import Any

from groupwise_commands.porting.port import Port

TRL: Mapping[str, Mapping[str, Any]] = {
    "accuracy_reward": {"name": "math", "rules": "trl", "gold": "solution"},
    "reasoning_accuracy_reward": {
        "name": "math",
        "rules": "trl",
        "gold": "solution",
        "after": "</think>",
    },
    "think_format_reward": {"name": "think_format"},
    "get_soft_overlong_punishment": {"name": "soft_overlong", "max_length": 1280, "cache": 256},
}
"""TRL's own rewards, by name; the last one with the arguments that `trl grpo` gives it."""
OF_MATH = {"rules": "open_r1", "gold": "solution"}
OPEN_R1: Mapping[str, Mapping[str, Any]] = {
    "accuracy": {"name": "math", **OF_MATH},
    "format": {"name": "think_answer_format"},
    "tag_count": {"name": "tag_count"},
    "length": {"name": "length", "unit": "characters", **OF_MATH},
    "repetition_penalty": {"name": "repetition", "over": "words"},
    "soft_overlong_punishment": {"name": "soft_overlong"},
    "cosine": {"name": "cosine_length", **OF_MATH},
}
"""By the names of open-r1's registry, which are no paths of functions."""
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "repetition_penalty": {"size": "repetition_n_grams", "max_penalty": "repetition_max_penalty"},
    "soft_overlong_punishment": {"max_length": "max_completion_len", "cache": "soft_punish_cache"},
    "cosine": {
        "max_length": "cosine_max_len",
        "right_short": "cosine_max_value_correct",
        "right_long": "cosine_min_value_correct",
        "wrong_short": "cosine_min_value_wrong",
        "wrong_long": "cosine_max_value_wrong",
    },
}
"""Options of these, each with the name that open-r1's files have for it."""
ABSENT = ("reasoning_steps", "code", "binary_code", "ioi_code", "cf_code", "code_format")
"""Those of its registry that are not here."""


def write_rewards(port: Port) -> None:
    weights = port.get("reward_weights")
    names = [*(port.get("reward_funcs") or [])]
    model = port.get("reward_model_name_or_path")
    sections: list[dict[str, Any] | None] = []
    sections += [{"name": "reward_model", "model": model}] if model else []
    sections += [_section(port, name) for name in names]
    if weights is not None and len(weights) != len(sections):
        count = f"{len(weights)} for {len(sections)} rewards that could be read"
        port.lose(f"reward_weights: {weights}", count)
        weights = None
    for number, section in enumerate(sections):
        if section is not None:
            own = {} if weights is None else {"weight": weights[number]}
            port.rewards.append(section | own)
    if not port.rewards:
        port.todo.append("rewards: functions as module:function; the file names none that is here")


def _section(port: Port, name: str) -> dict[str, Any] | None:
    """The section of a reward; None if it has no counterpart."""
    module, _, function = name.replace(":", ".").rpartition(".")
    if function in TRL and module in ("", "trl.rewards", "trl"):
        return dict(TRL[function])
    if name in OPEN_R1:
        if name == "cosine":
            port.todo.append("rewards: cosine_length counts tokens, theirs characters: max_length")
        options = OPTIONS.get(name, {})
        return {**OPEN_R1[name], **{ours: port.get(theirs) for ours, theirs in options.items()}}
    if name in ABSENT:
        port.lose(f"reward_funcs: {name}", "no such reward")
        return None
    if "/" in name:  # a hub name
        return {"name": "reward_model", "model": name}
    return {"name": f"{module}:{function}" if module else name}
