"""flow_grpo's prompts and rewards."""

from typing import Any

from groupwise_commands.porting.option import data
from groupwise_commands.porting.port import Port


def write_rewards(port: Port) -> None:
    stated: dict[str, Any] = dict(port.get("reward_fn") or {})
    known = data(__package__, "counterparts")
    for name, weight in stated.items():
        section = known["rewards"].get(name)
        if section is None:
            port.lose(f"reward_fn: {name}", known["lost"].get(name, "no such reward"))
            continue
        unit = known["units"].get(name)
        if unit and len(stated) > 1:
            port.reasons[f"rewards.{len(port.rewards)}"] = unit["why"]
            port.rewards.append({**section, "weight": round(weight / unit["factor"], 8)})
        else:
            port.rewards.append({**section, **({"weight": weight} if weight != 1 else {})})
        if name == "ocr":
            port.todo.append(
                "rewards: image_text reads the words from the column `text`; theirs are those in "
                "quotes in the prompt, so write them into a column"
            )
    if not port.rewards:
        port.todo.append("rewards: none of theirs is here; name one")


def write_prompts(port: Port) -> None:
    folder = port.get("dataset") or "prompts"
    tagged = port.get("prompt_fn") == "geneval"
    for section, split in (("prompts", "train"), ("evaluation.source", "test")):
        name = f"{split}_metadata.jsonl" if tagged else f"{split}.txt"
        port.write(f"{section}.name", "dataset")
        port.write(f"{section}.path", f"{folder}/{name}")
        if not tagged:
            port.write(f"{section}.prompt", "text", "the column of a text file")
