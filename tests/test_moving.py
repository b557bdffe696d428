"""The example of films: its prompts, its reward and what does not please it, two training steps."""

import random
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from groupwise.config.load import load_config
from groupwise.prompts.split import held_out
from groupwise.run.train import train_from_config
from groupwise_messages.video import Video

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = (
    *("policy.evaluation_steps=2", "policy.steps=4", "policy.window.size=1"),
    *("train.groups_per_step=2", "train.group_size=3", "train.steps=2"),
    *("evaluation.prompts=2", "evaluation.samples=2"),
)


@pytest.fixture(autouse=True)
def imports_from_examples(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.delitem(sys.modules, "small_wan", raising=False)


@pytest.fixture
def drawn():
    """Every second row, and a film of each, [frames, height, width, 3]."""
    from moving import films

    chance, rows = random.Random(0), [*films.rows()][::2]
    return rows, [films.draw(row, chance).transpose(0, 2, 3, 1) for row in rows]


def rewards(rows, shown):
    from moving import films

    columns = {name: [row[name] for row in rows] for name in ("color", "shape", "direction")}
    return np.array(films.moves([Video(pixels, 8.0) for pixels in shown], **columns))


def test_a_film_of_its_prompt_is_right(drawn):
    rows, shown = drawn
    assert (rewards(rows, shown) == 1.0).all()
    others = [row["prompt"] for row in rows[1:]] + [rows[0]["prompt"]]
    assert (rewards(rows[1:] + rows[:1], shown) < 1.0).all(), others


@pytest.mark.parametrize(
    ("attack", "most"),
    [
        ([0, 0, 0, 0, 0], 0.0),  # stands still, and shows what it should
        ([4, 3, 2, 1, 0], 0.0),  # moves the other way
        ([0, 4, 0, 4, 0], 0.0),  # to and fro
        ([0, 0, 0, 0, 4], 0.25),  # one jump
    ],
)
def test_frames_that_are_right_earn_nothing_without_their_motion(attack, most, drawn):
    rows, shown = drawn
    assert (rewards(rows, [pixels[attack] for pixels in shown]) == most).all()


def test_a_film_that_moves_and_shows_something_else_is_not_right(drawn):
    rows, shown = drawn
    colors = [pixels[..., ::-1] for pixels in shown]  # red and blue change places
    changed = [row["color"] in ("red", "blue") for row in rows]
    assert (rewards(rows, colors)[changed] < 1.0).all()
    empty = [np.full_like(pixels, 255) for pixels in shown]
    assert (rewards(rows, empty) == 0.0).all()


def test_no_caption_of_the_base_model_is_held_out():
    from moving import films, make_base

    chance = random.Random(0)
    rows = [row for row in films.rows() if not held_out(row["prompt"], make_base.HELD_OUT)]
    captions = [(row["prompt"], make_base.noisy(row, chance)) for row in rows for _ in range(20)]
    assert not any(held_out(caption, make_base.HELD_OUT) for _, caption in captions)
    wrong = sum(caption != prompt for prompt, caption in captions) / len(captions)
    assert wrong == pytest.approx(make_base.WRONG, abs=0.05)
    assert {row["prompt"] for row in films.Prompts()} == {row["prompt"] for row in films.rows()}


def test_an_autoencoder_trained_by_frames_is_diffusers_own(rounding):
    """Whose convolutions read the frames before, too, with weights that are 0."""
    import small_wan
    import torch

    torch.manual_seed(0)
    vae, films = small_wan.autoencoder(), torch.randint(256, (2, 5, 3, 32, 32), dtype=torch.uint8)
    before = [weight.clone() for weight in vae.parameters()]
    small_wan.train_autoencoder(vae, films, minutes=0.01)
    changed = [not torch.equal(*pair) for pair in zip(before, vae.parameters(), strict=True)]
    assert all(changed)
    framewise = deepcopy(vae)
    small_wan._by_frames(framewise)

    def moments():
        latents = small_wan.encode(vae, films)
        return latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))

    def decoded(vae):
        return small_wan._decode(vae, small_wan.encode(vae, films))

    with torch.no_grad():
        rounding.same(moments, (torch.zeros(8), torch.ones(8)), unit=1.0)
        rounding.same(lambda: decoded(vae), decoded(framewise))


@pytest.mark.slow
def test_two_steps_of_filming(tmp_path):
    loaded = load_config(EXAMPLES / "moving.yaml", [*SMALL, f"output={tmp_path / 'run'}"])
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 2
    assert 0 <= result.before["rewards/moves"] <= 1
    assert result.before["watch/motion"] > 0
    assert list((tmp_path / "run" / "samples" / "after").glob("*.apng"))


@pytest.mark.slow
def test_the_shipped_model_films_some_prompts(tmp_path):
    overrides = ["train.steps=0", "evaluation.samples=10", f"output={tmp_path / 'run'}"]
    loaded = load_config(EXAMPLES / "moving.yaml", overrides)
    assert 0.02 < train_from_config(loaded, quiet=True).before["accuracy"] <= 0.4
