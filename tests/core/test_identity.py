"""Rows by their content: the held-out split and replay must agree in every process."""

import datetime as dt
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from groupwise.kit.errors import UserError
from groupwise.prompts.identity import fingerprint, identity
from groupwise.prompts.split import held_out

SPLIT = """
import datetime, sys
import numpy as np, torch
from PIL import Image
from groupwise.prompts.identity import identity
from groupwise.prompts.split import held_out

def content(number):
    generator = np.random.default_rng(number)
    pixels = generator.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return {
        "image": Image.fromarray(pixels),
        "palette": Image.fromarray(pixels).convert("P"),
        "array": pixels, "objects": np.array([number, "x"], dtype=object),
        "tensor": torch.from_numpy(pixels).bfloat16(), "scalar": torch.tensor(float(number)),
        "bytes": pixels.tobytes(), "number": np.float32(number),
        "day": datetime.date(2024, 1, 1 + number % 28), "words": {"b", "a", str(number)},
    }

rows = [[{"role": "user", "content": [content(number)]}] for number in range(60)]
for row in rows:
    print(int(held_out(row, 0.5)), identity(row))
"""


@pytest.mark.slow
def test_two_processes_agree_on_the_split_whatever_a_message_holds():
    def run(seed):
        return subprocess.run(
            [sys.executable, "-c", SPLIT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()

    pytest.importorskip("PIL")
    one, two = run("1"), run("2")
    assert one == two
    assert len(set(one)) == 60
    assert 15 < sum(line.startswith("1") for line in one) < 45


def test_the_text_of_a_row_tells_contents_apart():
    image = pytest.importorskip("PIL.Image").new("RGB", (4, 6), "red")
    other = image.copy()
    other.putpixel((0, 0), (0, 0, 1))
    palette = image.convert("P")
    painted = palette.copy()
    painted.putpalette([9, 9, 9] * 256)
    values = [
        *(image, other, image.resize((6, 4)), image.convert("RGBA"), palette, painted),
        *(image.tobytes(), np.asarray(image), torch.zeros(2, 3), torch.zeros(3, 2)),
        *(torch.zeros(2, 3, dtype=torch.bfloat16), torch.ones(2, 3), np.zeros((2, 3))),
        *("red", 1, 1.5, "1", None, dt.date(2024, 1, 2), [1], {"a": 1}, {"b": 1}),
    ]
    texts = [identity({"content": value}) for value in values]
    assert len(set(texts)) == len(values)
    for value, text in zip(values, texts, strict=True):
        assert identity({"content": value}) == text
    assert identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1})
    assert identity(image) == identity(image.copy())


def test_splits_of_plain_prompts_are_what_they_were():
    """Runs that were started before must keep their split."""
    assert identity([{"role": "user", "content": "é"}]) == (
        '[{"content": "\\u00e9", "role": "user"}]'
    )
    assert identity({"day": dt.datetime(2024, 1, 2, 3, 4)}) == '{"day": "2024-01-02 03:04:00"}'
    assert held_out("a question", 0.5) == held_out("a question", 0.51)
    assert identity(Path("a/b")) == '"a/b"'


@dataclass
class Opaque:
    number: int = 0


@pytest.mark.parametrize("value", [object(), Opaque()])
def test_a_prompt_without_a_known_content_is_refused(lab, value):
    prompts = lab.Prompts([{"prompt": [{"role": "user", "content": value}], "id": 1}], fraction=0.5)
    with pytest.raises(UserError, match=r"prompts\.key: .* holds an object of type .*; set prompt"):
        prompts.take(1)
    assert len(lab.Prompts(prompts.source, fraction=0.0, key="id").take(1)) == 1


@pytest.mark.parametrize("value", [object(), {"nested": [Opaque()]}, {(1, 2): 3}])
def test_replay_names_the_column_that_it_cannot_identify(value):
    """`prompts.key` would be no remedy: replay goes by all columns of a row."""
    row = {"prompt": "a", "gold": "b", "state": value}
    with pytest.raises(UserError, match=r"train\.replay: .* its column 'state' holds") as refusal:
        fingerprint(row)
    assert "leave this column out of the rows, or leave train.replay out" in str(refusal.value)
    assert "prompts.key" not in str(refusal.value)
    assert fingerprint({**row, "state": 1}) != fingerprint({**row, "state": 2})


@pytest.mark.parametrize("value", [{(1, 2): 3}, {"a": 1, 2: 3}])
def test_keys_that_json_cannot_write_or_sort_are_refused(value):
    with pytest.raises(UserError, match=r"prompts\.key: .* holds a mapping with such keys"):
        identity(value)
