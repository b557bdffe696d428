"""Options that open-r1's configurations have beside TRL's."""

from typing import Any

from groupwise_commands.porting.option import Group, Option, absent, changed, settled
from groupwise_commands.porting.port import Port


def _column(port: Port) -> None:
    port.write("prompts.prompt", port.get("dataset_prompt_column"))
    port.write("prompts.chat", value=True)


def _system(port: Port) -> None:
    if port.get("system_prompt"):
        port.write("prompts.system", port.get("system_prompt"))
        port.write("prompts.chat", value=True)


def _template(port: Port) -> None:
    if port.get("chat_template"):
        known = port.get("chat_template_kwargs") or {}
        port.write("policy.chat_template", {**known, "chat_template": port.get("chat_template")})


def _of_reward(name: str, default: Any, reward: str, note: str = "") -> Option:
    return settled(name, here=f"`rewards: [{reward}]`", note=note, default=default)


OPEN_R1 = Group(
    title="Options of open-r1 beside TRL's",
    options=(
        changed("dataset_prompt_column", "`prompts.prompt`, with `chat: true`", _column, "prompt"),
        changed("system_prompt", "`prompts.system`", _system, kind=(str,)),
        changed("chat_template", "`policy.chat_template`", _template, kind=(str,)),
        _of_reward("cosine_min_value_wrong", 0.0, "cosine_length", "`wrong_short`"),
        _of_reward("cosine_max_value_wrong", -0.5, "cosine_length", "`wrong_long`"),
        _of_reward("cosine_min_value_correct", 0.5, "cosine_length", "`right_long`"),
        _of_reward("cosine_max_value_correct", 1.0, "cosine_length", "`right_short`"),
        _of_reward("cosine_max_len", 1000, "cosine_length", "in characters there"),
        _of_reward("repetition_n_grams", 3, "repetition"),
        _of_reward("repetition_max_penalty", -1.0, "repetition"),
        _of_reward("max_completion_len", 16384, "soft_overlong"),
        _of_reward("soft_punish_cache", 4096, "soft_overlong"),
        settled(
            "overwrite_output_dir",
            "overwrite_hub_revision",
            "hub_model_revision",
            "wandb_log_unique_prompts",
            "num_completions_to_print",
            "code_language",
        ),
        absent("dataset_mixture", note="one data set; join them in a file"),
        absent("benchmarks", note="`evaluation.source`", default=[]),
        absent("push_to_hub_revision", note="no such option", default=False),
    ),
)
