"""Rollouts: selecting, joining, and wrong shapes."""

from dataclasses import fields, replace
from itertools import takewhile
from pathlib import Path

import pytest
import torch

from groupwise.rollouts import LogProbs, Rollouts

CHOSEN = [[1, 2, 0], [2, 0], [1, 1, 1, 1, 2], [0], [], [1, 0]]


@pytest.fixture
def rollouts(lab):
    plain = lab.build(lab.rows(6), CHOSEN)
    torch.manual_seed(0)
    return replace(
        plain,
        sampler_log_probs=torch.randn(6, 5).masked_fill(~plain.mask, 0.0),
        truncated=torch.tensor([False, True, False, False, True, False]),
        facts={"completion_ids": CHOSEN, "sampled_mass": list(range(6))},
        trajectory={
            **plain.trajectory,
            "latents": torch.randn(6, 5, 2, 3).masked_fill(~plain.mask[..., None, None], 0.0),
            "fixed": list(torch.randn(6, 7)),
            "scalar": torch.arange(6.0),
        },
    )


def assert_equal(left, right):
    """Asserts that both are equal except for padding; widths may differ."""
    assert list(left.prompts) == list(right.prompts)
    assert list(left.completions) == list(right.completions)
    assert torch.equal(left.groups, right.groups)
    assert torch.equal(left.truncated, right.truncated)
    assert torch.equal(left.lengths, right.lengths)
    assert {k: list(v) for k, v in left.facts.items()} == {
        k: list(v) for k, v in right.facts.items()
    }
    assert left.trajectory.keys() == right.trajectory.keys()
    for row in range(len(left)):
        one, other = left.mask[row], right.mask[row]
        assert torch.equal(left.sampler_log_probs[row][one], right.sampler_log_probs[row][other])
        for name, column in left.trajectory.items():
            value, other_value = column[row], right.trajectory[name][row]
            if name in {"symbols", "latents"}:
                value, other_value = value[one], other_value[other]
            assert torch.equal(value, other_value), name


@pytest.mark.parametrize("cut", [[6], [1, 5], [2, 2, 2], [3, 1, 2], [1] * 6])
def test_concat_of_selected_parts_restores_the_rollouts(rollouts, cut):
    parts = [rollouts.select(part) for part in torch.arange(6).split(cut)]
    joined = Rollouts.concat(parts)
    assert_equal(joined, rollouts)
    assert joined.mask.shape == rollouts.mask.shape
    assert torch.equal(joined.sampler_log_probs, rollouts.sampler_log_probs)
    assert torch.equal(joined.trajectory["latents"], rollouts.trajectory["latents"])


def test_select_trims_padding_to_the_longest(rollouts):
    part = rollouts.select([1, 3])
    assert part.mask.shape == (2, 2)
    assert part.sampler_log_probs.shape == (2, 2)
    assert part.trajectory["symbols"].shape == (2, 2)
    assert part.trajectory["latents"].shape == (2, 2, 2, 3)
    assert [len(row) for row in part.trajectory["fixed"]] == [7, 7]
    assert [len(symbols) for symbols in part.trajectory["ragged"]] == [2, 1]


def test_select_keeps_holes(rollouts):
    """Holes between decisions, such as a tool's answer, are not padding."""
    mask = rollouts.mask.clone()
    mask[2, 1:4] = False
    part = replace(rollouts, mask=mask).select([2, 3])
    assert part.mask.shape == (2, 5)
    assert part.mask[0].tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    "rows",
    [
        [4, 0, 0, 2],
        torch.tensor([4, 0, 0, 2]),
        torch.tensor([4, 0, 0, 2], dtype=torch.int32),
    ],
)
def test_select_may_repeat_and_reorder(rollouts, rows):
    part = rollouts.select(rows)
    assert list(part.completions) == ["", "120", "120", "11112"]
    assert part.facts["sampled_mass"] == [4, 0, 0, 2]
    assert part.groups.tolist() == [4, 0, 0, 2]


def test_select_accepts_a_bool_mask(rollouts):
    chosen = torch.tensor([True, False, False, True, False, True])
    assert_equal(rollouts.select(chosen), rollouts.select([0, 3, 5]))
    assert_equal(rollouts.select(chosen.tolist()), rollouts.select([0, 3, 5]))


def test_an_empty_selection_has_no_rollouts(rollouts):
    for none in ([], torch.zeros(6, dtype=torch.bool), torch.zeros(0, dtype=torch.int64)):
        empty = rollouts.select(none)
        assert len(empty) == 0
        assert empty.mask.shape == (0, 0)
        assert_equal(Rollouts.concat([empty, rollouts]), rollouts)
    no_decisions = rollouts.select([4])
    assert no_decisions.mask.shape == (1, 0)
    assert no_decisions.lengths.tolist() == [0]


def test_joined_rollouts_have_log_probs_only_if_all_parts_have(rollouts):
    without = replace(rollouts, sampler_log_probs=None)
    assert Rollouts.concat([rollouts, without]).sampler_log_probs is None
    assert without.select([0]).sampler_log_probs is None


def test_an_empty_part_without_columns_takes_none_from_the_others(rollouts):
    bare = rollouts.select([])
    bare = replace(bare, facts={}, trajectory={}, sampler_log_probs=None)
    joined = Rollouts.concat([bare, rollouts])
    assert joined.facts == rollouts.facts
    assert joined.trajectory.keys() == rollouts.trajectory.keys()
    assert torch.equal(joined.sampler_log_probs, rollouts.sampler_log_probs)
    assert len(Rollouts.concat([bare, bare])) == 0


def test_facts_that_only_some_parts_have_are_none_in_the_others(rollouts):
    """In any order of the parts: an environment may return a column for some episodes only."""
    more = replace(rollouts, facts={**rollouts.facts, "seen": [*range(6)]})
    none = [None] * 6
    assert Rollouts.concat([more, rollouts]).facts["seen"] == [*range(6), *none]
    assert Rollouts.concat([rollouts, more]).facts["seen"] == [*none, *range(6)]


def test_trajectories_with_other_columns_cannot_be_joined(rollouts):
    column = rollouts.trajectory["symbols"]
    more = replace(rollouts, trajectory={**rollouts.trajectory, "further": column})
    for parts in ([more, rollouts], [rollouts, more]):
        with pytest.raises(ValueError, match="only some parts have further"):
            Rollouts.concat(parts)


def test_concat_of_nothing_raises():
    with pytest.raises(ValueError, match="at least one part"):
        Rollouts.concat([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completions": ["a"]}, "completions has length 1, prompts has 6"),
        ({"groups": torch.zeros(5, dtype=torch.int64)}, "groups has length 5"),
        ({"truncated": torch.zeros(7, dtype=torch.bool)}, "truncated has length 7"),
        ({"facts": {"odd": [1]}}, r"facts\['odd'\] has length 1"),
        ({"trajectory": {"odd": torch.zeros(2, 5)}}, r"trajectory\['odd'\] has length 2"),
        (
            {"mask": torch.ones(6, 5)},
            r"mask must be \[B, T\] bool, received \[6, 5\] torch.float32",
        ),
        ({"mask": torch.ones(6, dtype=torch.bool)}, r"received \[6\] torch.bool"),
        ({"sampler_log_probs": torch.zeros(6, 4)}, r"log_probs \[6, 4\] and mask \[6, 5\]"),
        ({"sampler_log_probs": torch.zeros(3, 5)}, "sampler_log_probs has length 3"),
    ],
)
def test_wrong_shapes_are_named(rollouts, change, message):
    with pytest.raises(ValueError, match=message):
        replace(rollouts, **change)


def test_the_manual_has_a_table_of_all_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text("utf-8")
    for kind in (Rollouts, LogProbs):
        _, _, table = page.partition(f"| field of `{kind.__name__}` |")
        lines = takewhile(bool, table.splitlines()[2:])
        named = [line.split("`")[1] for line in lines]
        assert named == [each.name for each in fields(kind)]
