"""Card: the README.md of a saved model, with facts about its run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.config import yaml_lines
from groupwise.config.learners import SOLE
from groupwise.config.measures import RewardSection
from groupwise.config.sections import RunConfig
from groupwise.kit import secrets
from groupwise.kit.metric_names import JUDGED, Family, titled
from groupwise.kit.schedule import Schedule
from groupwise.policy import Policy
from groupwise.storage.disk import write
from groupwise.version import __version__

SHOWN = (*JUDGED, "reward", "greedy_reward")


def write_cards(
    model: Path, policies: Mapping[str, Policy], config: RunConfig, result: Mapping[str, Any]
) -> None:
    """Write README.md beside the weights of each trained policy, in the format of model hubs.

    model: the folder of the models; policies: by label; result: the content of result.json.
    """
    for label, learning in config.learners.items():
        if learning.learns:
            folder = model if label == SOLE else model / label
            for each in (model, folder):  # a policy may save nothing
                each.mkdir(exist_ok=True)
            write(folder / "README.md", _card(folder, policies[label].card, label, config, result))


def _card(
    folder: Path,
    card: Mapping[str, Any],
    label: str,
    config: RunConfig,
    result: Mapping[str, Any],
) -> str:
    facts = dict(card)
    usage = str(facts.pop("usage", "")).replace("{path}", str(folder.resolve()))
    head = yaml_lines.write({**facts, "tags": ["groupwise", "grpo"]})
    parts = [
        f"---\n{head}---\n\n# {folder.resolve().parent.name}\n",
        _what(facts, label, config, result),
        f"## How to load it\n\n```python\n{usage.strip()}\n```\n" if usage else "",
        _results(result),
        f"Trained with Groupwise {__version__}; the whole configuration is in `config.yaml`.\n",
    ]
    return secrets.redacted("\n".join(filter(None, parts)))  # `Policy.card` may contain options


def _what(facts: Mapping[str, Any], own: str, config: RunConfig, result: Mapping[str, Any]) -> str:
    learning = config.learners[own]
    rows = {
        "base model": facts.get("base_model"),
        "prompts": _described(config.prompts.name, config.prompts.options),
        "rewards": "; ".join(map(_reward, config.rewards)),
        "algorithm": _described(learning.algorithm.name, learning.algorithm.options),
        "trained with": ", ".join(label for label in config.learners if label != own) or None,
        "steps": f"{result['steps']}, each of {config.train.groups_per_step} groups of "
        f"{learning.train.group_size} completions",
        "seed": config.seed,
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value is not None]
    return "\n".join(["| of the run | |", "|---|---|", *lines, ""])


def _reward(section: RewardSection) -> str:
    label = f"{section.label}: " if section.label else ""
    return f"{label}{_described(section.name, section.options)}{_counts(section)}"


def _counts(section: RewardSection) -> str:
    """The weight or bounds of a reward, "" for a weight of 1."""
    weight = section.weight
    if section.constraint is not None:
        bounds = section.constraint.bounds.items()
        words = [f"{name.replace('_', ' ')} {bound:g}" for name, bound in bounds]
        return f", {' and '.join(words)}"
    if isinstance(weight, Schedule):
        return f", weight {weight.start:g} to {weight.end:g} over {weight.steps} steps"
    return "" if weight in (None, 1) else f", weight {weight:g}"


def _described(name: str, options: Mapping[str, Any]) -> str:
    """A name and its options, without long ones such as lists of rows."""
    words = {
        key: " ".join(str(value).replace("|", "\\|").split()) for key, value in options.items()
    }
    shown = [f"{key}: {value}" for key, value in words.items() if 0 < len(value) < 80]
    return f"{name} ({', '.join(shown)})" if shown else name


def _results(result: Mapping[str, Any]) -> str:
    before, after = result["before"], result["after"]
    names = [name for name in (*SHOWN, *_watched(after)) if name in after]
    if not names:
        return ""
    lines = [
        f"| {titled(name, result.get('accuracy'))} | {_number(before.get(name))} | "
        f"{_number(after[name])} |"
        for name in names
    ]
    title = f"## On {after.get('prompts', 0):.0f} held-out prompts\n"
    return "\n".join([title, "| | before | after |", "|---|---|---|", *lines, ""])


def _watched(metrics: Mapping[str, Any]) -> list[str]:
    return [name for name in metrics if name.startswith((f"{Family.REWARDS}/", f"{Family.WATCH}/"))]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
