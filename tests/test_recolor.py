"""The example of edits: its pictures, its rewards and what does not please them, two steps."""

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from groupwise.config.load import load_config
from groupwise.prompts.split import held_out
from groupwise.registry import installed
from groupwise.run.train import train_from_config
from groupwise_verifiable.images.unchanged import Unchanged

EXAMPLES = Path(__file__).parents[1] / "examples"
CONFIG = EXAMPLES / "recolor.yaml"
BASE = EXAMPLES / "recolor" / "base"
SMALL = (
    *("policy.evaluation_steps=2", "policy.steps=4", "policy.decisions=1"),
    *("train.groups_per_step=2", "train.group_size=3", "train.steps=2"),
    *("prompts.size=60", "evaluation.prompts=2", "evaluation.samples=2"),
)


@pytest.fixture(autouse=True)
def imports_from_examples(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])


@pytest.fixture
def drawn():
    """Edits, their sources and their results."""
    from recolor import edits

    chance = random.Random(0)
    own = [edits.draw_edit(chance) for _ in range(80)]
    return own, [edit.source(chance) for edit in own], [edit.result(chance) for edit in own]


def judged(own, sources, pictures):
    """For each picture whether the instruction was followed, and how much of the rest is left."""
    from recolor import edits

    wanted = {name: [getattr(edit.after, name) for edit in own] for name in edits.WANTED}
    unchanged = Unchanged(Unchanged.Config(mask="mask"))
    rest = unchanged([""] * len(own), pictures, image=sources, mask=[edit.mask for edit in own])
    return np.array(edits.follows(pictures, **wanted)), np.array(rest)


def bound():
    (constraint,) = (own.constraint for own in load_config(CONFIG).config.rewards if own.constraint)
    return constraint.at_least


def test_an_edit_as_asked_is_right_and_leaves_the_rest_alone(drawn):
    own, sources, results = drawn
    followed, rest = judged(own, sources, results)
    assert (followed == 1.0).all()
    assert (rest == 1.0).all()
    kinds = Counter(edit.instruction.split()[0] for edit in own)
    assert min(kinds["make"], kinds["move"]) >= 25


def test_the_source_as_it_was_earns_nothing(drawn):
    own, sources, _ = drawn
    followed, _ = judged(own, sources, sources)
    assert (followed == 0.0).all()


def test_a_new_picture_that_ignores_the_source_earns_next_to_nothing(drawn):
    """Also one that shows what another source would become by the same instruction: the rest is
    below the bound where the instruction happens to be followed."""
    own, sources, results = drawn
    places = {edit.instruction: number for number, edit in enumerate(own)}
    others = [places[edit.instruction] for edit in own]
    new = [other != number for number, other in enumerate(others)]
    followed, rest = judged(own, sources, [results[other] for other in others])
    assert followed[new].mean() < 0.1
    assert rest[new].mean() < bound() - 0.1
    assert (rest[new] < bound())[followed[new] > 0].all()


def test_a_thing_that_is_also_left_where_it_was_earns_nothing(drawn):
    from recolor import edits

    chance, (own, sources, _) = random.Random(0), drawn
    moved = [number for number, edit in enumerate(own) if edit.instruction.startswith("move")]
    own, sources = ([values[number] for number in moved] for values in (own, sources))
    twice = [edits.drawn([edit.after, *edit.before], edit.radius, chance) for edit in own]
    followed, _ = judged(own, sources, twice)
    assert (followed == 0.0).all()


@pytest.mark.parametrize("change", ["color", "place"])
def test_an_edit_of_the_other_shape_as_well_is_below_the_bound(change, drawn):
    from recolor import edits

    chance, (own, sources, _) = random.Random(0), drawn

    def careless(edit):
        other = edit.before[1]
        colors = [name for name in edits.COLOURS if name != other.color]
        places = (edits.place(chance) for _ in count())
        new = {"color": chance.choice(colors), "place": next(places)}
        changed = replace(other, **{change: new[change]})
        while not edits.apart(edit.after, changed, edit.radius):
            changed = replace(other, place=next(places))
        return replace(edit, before=(edit.before[0], changed)).result(chance)

    followed, rest = judged(own, sources, [careless(edit) for edit in own])
    assert (followed == 1.0).all()
    assert rest.mean() < bound()


def test_no_scene_of_the_base_model_is_held_out():
    from recolor import make_base

    chance = random.Random(0)
    pairs = [make_base.draw_pair(chance) for _ in range(300)]
    told = [replace(pair, instruction=make_base.noisy(pair, chance)) for pair in pairs]
    assert not any(held_out(each.scene, make_base.HELD_OUT) for each in (*pairs, *told))
    assert {each.instruction for each in told} <= {*make_base.INSTRUCTIONS}
    shown = [make_base.carelessly(pair, chance) for pair in pairs]
    for others, share in ((told, make_base.WRONG), (shown, make_base.CARELESS)):
        changed = [one != other for one, other in zip(pairs, others, strict=True)]
        assert np.mean(changed) == pytest.approx(share, abs=0.08)
    assert load_config(CONFIG).config.prompts.held_out == make_base.HELD_OUT


def test_a_row_is_the_same_whenever_it_is_read():
    from recolor.edits import Prompts

    first, again, other = Prompts(3)[1], Prompts(3)[1], Prompts(3, seed=1)[1]
    pictures = [
        {name: row.pop(name).tobytes() for name in ("image", "mask")}
        for row in (first, again, other)
    ]
    assert first == again
    assert pictures[0] == pictures[1] != pictures[2]


def test_the_base_is_trained_on_latents_as_the_policy_reads_them(rounding):
    import small_kontext
    import small_sd3
    import torch
    from recolor.edits import Prompts

    own = load_config(CONFIG).config.policy
    kind = installed().load("policies", own.name)
    policy = kind(kind.Config(**{**own.options, "model": str(BASE)}))
    policy.place("cpu")
    rows = [*Prompts(3)]
    pictures = torch.stack([small_sd3.to_tensor(row["image"]) for row in rows])
    pictures = pictures.to(memory_format=torch.channels_last)  # as they are read: same kernels
    vae = policy.adapter.pipeline.vae
    read = policy.adapter.encode([policy.adapter.columns(row) for row in rows])["references"]
    rounding.same(lambda: small_kontext.packed(vae, pictures), read)
    places = policy.adapter._places(torch.zeros(1))
    assert torch.equal(small_kontext.places(len(places) // 2), places)


def test_two_steps_of_editing(tmp_path):
    loaded = load_config(CONFIG, [*SMALL, f"output={tmp_path / 'run'}"])
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 2
    assert 0 < result.before["rewards/unchanged"] <= 1
    assert list((tmp_path / "run" / "samples" / "after").glob("*.png"))
    sample = json.loads((tmp_path / "run" / "samples" / "after.jsonl").read_text().splitlines()[0])
    assert (tmp_path / "run" / sample["images"][0]).is_file()


@pytest.mark.slow
def test_the_shipped_model_follows_some_instructions(tmp_path):
    overrides = ["train.steps=0", "evaluation.prompts=50", f"output={tmp_path / 'run'}"]
    before = train_from_config(load_config(CONFIG, overrides), quiet=True).before
    assert 0.25 < before["accuracy"] <= 0.65
    assert 0.85 < before["rewards/unchanged"] < bound()
