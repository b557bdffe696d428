"""flow_grpo's prompts and rewards."""

from typing import Any

from groupwise_commands.porting.option import Group, changed, settled
from groupwise_commands.porting.pictures import add_reward
from groupwise_commands.porting.port import Port

LOST = {
    "deqa": "no such reward",
    "qwenvl": "`generative_judge` with a vision-language model asks such questions",
    "seedscore": "no such reward",
    "video_ocr": "no videos",
    "image_similarity": "no editing",
    "unifiedreward": "`judge` with a server of the model: docs/judges.md",
    "aesthetic": "`aesthetic` needs the file of LAION's head: docs/clip.md",
    "hpsv3_score": "`hps_v3` needs the text that the model reads: docs/clip.md",
}
"""Their rewards that are not written, and why."""
COMMON = {"hpsv2_score": "hpsv2"}


def _rewards(port: Port) -> None:
    stated: dict[str, Any] = dict(port.get("reward_fn") or {})
    for name, weight in stated.items():
        if not add_reward(port, COMMON.get(name, name), weight, several=len(stated) > 1):
            port.lose(f"reward_fn: {name}", LOST.get(name, "no such reward"))
    if not port.rewards:
        port.todo.append("rewards: none of theirs is here; name one")


def _prompts(port: Port) -> None:
    folder = port.get("dataset") or "prompts"
    tagged = port.get("prompt_fn") == "geneval"
    for section, split in (("prompts", "train"), ("evaluation.source", "test")):
        name = f"{split}_metadata.jsonl" if tagged else f"{split}.txt"
        port.write(f"{section}.name", "dataset")
        port.write(f"{section}.path", f"{folder}/{name}")
        if not tagged:
            port.write(f"{section}.prompt", "text", "the column of a text file")


DATA = Group(
    title="Prompts and rewards",
    options=(
        changed(
            "dataset",
            "`prompts: {name: dataset, path: ...}`",
            _prompts,
            "",
            "a folder with `train.txt` and `test.txt`, or GenEval's `train_metadata.jsonl` and "
            "`test_metadata.jsonl`; the second is `evaluation.source`",
            always=True,
        ),
        settled("prompt_fn", here="`prompts.path`", default="imagenet_animals"),
        settled("prompt_fn_kwargs"),
        changed(
            "reward_fn",
            "`rewards`, each with a `weight`",
            _rewards,
            kind=(dict,),
            note="`geneval` is `image_contents` with `mode: flow_grpo`, `ocr` is `image_text` with "
            "`detect: true` and `inside: true`, `pickscore` is `preference` with `preset: "
            "pickscore`; in process, without a server; as there, rewards are weighted and summed "
            "before advantages are computed, so weights carry the factor between units",
            always=True,
        ),
        settled("main_reward", here="`evaluation.accuracy`", note="of their GARDO script"),
    ),
)
