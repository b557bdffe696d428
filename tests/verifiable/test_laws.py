"""Rewards pass the checks of `groupwise.testing`.

Those that need a model do so in test_reward_model.py and test_learned_text.py.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from groupwise import testing
from groupwise.registry import installed
from groupwise_verifiable.puzzles.source import ReasoningGym

sys.path.insert(0, str(Path(__file__).parent))
from shape_pictures import COLORS, Drawn, picture

SUMS = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(3)]
ANSWERS = [
    "It is 1.",
    "7",
    "<think>1 + 1</think><answer>2</answer>",
    "\\boxed{2}",
    "3",
    "I do not know. I do not know. I do not know.",
]
IDS = {"completion_ids": [list(range(1, 2 + len(text))) for text in ANSWERS]}
CHAINS = ["1+2=3\n3+3=6", "1+2=3", "It is 1.", "3+3=6", "2-5=-3, -3+1=-2", "1+1=2"]


def scene(kind, color, x):
    return picture(Drawn(kind, COLORS[color], x, 14.0, 10.0))


def pictures():
    return [
        scene(kind, color, x)
        for kind, color in (("disk", "red"), ("square", "blue"), ("cross", "red"))
        for x in (9.0, 19.0)
    ]


SCENES = [
    {"prompt": f"a red {kind}", "include": [{"class": kind, "count": 1, "color": "red"}]}
    for kind in ("disk", "square", "cross")
]
LETTERS = [{"prompt": text, "text": text} for text in ("one", "two", "red")]


def white():
    return [Image.new("RGB", (64, 32), (255, 255 - 40 * n, 255)) for n in range(6)]


TEXTS = {
    "math": {},
    "exact_answer": {"extract": "tag"},
    "answer_f1": {"extract": "tag"},
    "numeric_answer": {},
    "think_answer_format": {},
    "think_format": {},
    "tag_count": {},
    "length": {},
    "cosine_length": {"max_length": 100},
    "token_count": {},
    "soft_overlong": {"max_length": 40, "cache": 20},
    "repetition": {},
    "language_consistency": {"language": "en"},
}
IMAGES = {
    "image_contents": (SCENES, pictures),
    "image_text": (LETTERS, white),
    "jpeg_size": (SCENES, pictures),
    "image_diversity": (SCENES, pictures),
    "unchanged": ([{**row, "image": scene("disk", "red", 9.0)} for row in SCENES], pictures),
}


def reward(name, **settings):
    kind = installed().load("rewards", name)
    return kind(kind.Config(**settings)) if settings else kind()


@pytest.mark.parametrize("name", TEXTS)
def test_rewards_of_texts(name):
    instance = reward(name, **TEXTS[name])
    testing.check_reward(instance, SUMS, ANSWERS, group_size=2, facts=IDS)


def test_steps_of_denoising():
    instance = reward("per_step", reward={"name": "image_contents", "mode": "partial"})
    drawn = [torch.from_numpy(np.array(one)).movedim(-1, 0) / 255 for one in pictures()]
    before = reversed(drawn)
    facts = {"predictions": [torch.stack(pair) for pair in zip(before, drawn, strict=True)]}
    testing.check_reward(instance, SCENES, pictures(), group_size=2, facts=facts)


def test_steps_of_sums():
    rows = [{"prompt": f"1 + 2 {sign} {n} ="} for sign, n in (("+", 3), ("-", 5), ("-", 0))]
    lengths = [len(text) + 1 for text in CHAINS]  # a token per character, and the end token
    ends = [[*range(1, length), length - 1] for length in lengths]
    facts = {"character_ends": ends}
    testing.check_reward(
        reward("sum_steps"), rows, CHAINS, group_size=2, facts=facts, decisions=lengths
    )


def test_messages_are_texts():
    chats = [[{"role": "assistant", "content": text}] for text in ANSWERS]
    testing.check_reward(reward("numeric_answer"), SUMS, chats, group_size=2)


@pytest.mark.slow
def test_puzzles():
    source = ReasoningGym(ReasoningGym.Config(task="basic_arithmetic"))
    rows = [source[number] for number in range(3)]
    answers = [rows[0]["answer"], "5", f"it is {rows[2]['answer']}"]
    testing.check_reward(reward("reasoning_gym", tag=None), rows, answers)


@pytest.mark.parametrize("name", IMAGES)
def test_rewards_of_images(name):
    rows, make = IMAGES[name]
    images = make()
    testing.check_reward(reward(name), rows, images, group_size=2)
