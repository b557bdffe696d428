"""Windows: which denoising steps are decisions; never the last. A group shares its window."""

import math

import pytest
import torch
from pydantic import ValidationError

from groupwise_flow.process.windows import Window

STEPS = 10
WINDOWS = [
    {"kind": "all"},
    {"kind": "fixed", "size": 3, "start": 2},
    {"kind": "fixed", "size": 9},
    {"kind": "random", "size": 2},
    {"kind": "random", "size": 7, "until": 1.0},
    {"kind": "sliding", "size": 4, "every": 3},
    {"kind": "sliding", "size": 2, "start": 5, "stride": 3, "every": 1},
]


@pytest.mark.parametrize("options", WINDOWS)
def test_every_window_lies_within_the_steps_before_the_last(options):
    window = Window(**options)
    length = window.length(STEPS)
    assert length == options.get("size", STEPS - 1)
    for step in range(60):
        starts = window.starts(STEPS, range(step, step + 9), step)
        assert starts.shape == (9,)
        assert int(starts.min()) >= 0
        assert int(starts.max()) + length <= STEPS - 1


def test_all_and_fixed_windows_stay_where_they_are():
    for step in (0, 25, 1000):
        assert Window().starts(STEPS, range(3), step).tolist() == [0, 0, 0]
        fixed = Window(kind="fixed", size=3, start=2)
        assert fixed.starts(STEPS, range(3), step).tolist() == [2, 2, 2]


@pytest.mark.parametrize(("until", "last"), [(0.5, 4), (0.25, 1), (0.01, 0), (1.0, 6)])
def test_a_random_window_starts_before_until(until, last):
    window = Window(kind="random", size=3, until=until)
    starts = window.starts(STEPS, range(400), 0).tolist()
    assert set(starts) == set(range(last + 1))
    # No start is much likelier than another.
    assert min(starts.count(start) for start in set(starts)) > 400 / (last + 1) / 2


@pytest.mark.slow
def test_until_as_k_of_n_steps_gives_k_possible_starts():
    for steps in range(2, 61):
        for k in range(1, steps):
            window = Window(kind="random", size=1, until=k / steps)
            starts = window.starts(steps, range(40 * k), 0)
            assert int(starts.max()) == min(k, steps - 1) - 1, (k, steps)


def test_until_is_rounded_down_to_whole_steps():
    for until, steps, count in [(0.25, 10, 2), (0.35, 10, 3), (0.3, 10, 3), (1 / 3, 30, 10)]:
        drawn = Window(kind="random", size=1, until=until).starts(steps, range(400), 0)
        assert int(drawn.max()) + 1 == count


def test_a_random_start_depends_only_on_the_seed():
    window = Window(kind="random", size=3)
    together = window.starts(STEPS, range(20), 0).tolist()
    assert [int(window.starts(STEPS, [seed], 7)) for seed in range(20)] == together


def test_a_group_shares_its_random_window_in_any_batch(lab):
    policy = lab.policy(steps=12, window={"kind": "random", "size": 2})
    rows = [{"prompt": f"{letter} cat"} for letter in "abcdefgh"]
    seeds = [100 * group + index for group in range(8) for index in range(3)]
    first = policy.sample(rows, group_size=3, seeds=seeds).tensor("first").view(8, 3)
    assert (first == first[:, :1]).all()
    assert len(first[:, 0].unique()) > 2
    for group in range(8):
        own = seeds[3 * group : 3 * group + 3]
        alone = policy.sample(rows[group : group + 1], group_size=3, seeds=own)
        assert alone.tensor("first").tolist() == first[group].tolist()
    # The seed of the group's first member alone sets the window, not those of the others.
    changed = policy.sample(rows[:1], group_size=3, seeds=[0, 71, 72])
    assert changed.tensor("first").tolist() == first[0].tolist()


def test_each_rollout_is_trained_on_a_share_of_its_own_that_depends_only_on_its_seed():
    window = Window(share=0.6)
    trained = window.trained(16, range(500))
    assert trained.shape == (500, 15)
    assert (trained.sum(dim=1) == 9).all()
    assert float(trained.double().mean(dim=0).sub(0.6).abs().max()) < 0.07
    pairs = trained[:, 0] & trained[:, 1]
    assert abs(float(pairs.double().mean()) - 9 * 8 / (15 * 14)) < 0.07
    assert torch.equal(window.trained(16, [7]), trained[7:8])
    assert Window().trained(4, range(2)).all()


def test_decisions_that_are_not_trained_on_get_no_pass(lab, rounding):
    """All are drawn as without a share, and an update computes those of the share alone."""
    policy = lab.policy(steps=7, window={"share": 0.5})
    every = lab.policy(steps=7)
    rollouts = policy.sample(lab.rows, group_size=3, seeds=range(6))
    plain = every.sample(lab.rows, group_size=3, seeds=range(6))
    assert all(map(torch.equal, rollouts.trajectory["path"], plain.trajectory["path"]))
    mask = rollouts.mask
    assert mask.sum(dim=1).tolist() == [3] * 6
    assert len(mask.unique(dim=0)) > 2
    assert plain.mask.all()
    pieces = policy.microbatches(rollouts, 100, cut_decisions=True)
    seen = torch.zeros_like(mask, dtype=torch.int64)
    for rows, decisions in pieces:
        seen[rows, decisions] += 1
    assert torch.equal(seen, mask.long())
    with torch.no_grad():
        again = torch.zeros_like(plain.sampler_log_probs)
        for rows, decisions in pieces:
            again[rows, decisions] = policy(rollouts.select(rows), decisions).log_probs
        rounding.same(lambda: every(plain).log_probs[mask], again[mask])


def test_a_sliding_window_moves_with_training_and_wraps():
    window = Window(kind="sliding", size=4, start=1, stride=2, every=3)
    starts = [int(window.starts(STEPS, [0], step)) for step in range(14)]
    assert starts == [1, 1, 1, 3, 3, 3, 5, 5, 5, 1, 1, 1, 3, 3]
    wide = Window(kind="sliding", size=9, every=1)
    assert [int(wide.starts(STEPS, [0], step)) for step in range(3)] == [0, 0, 0]


def test_a_sliding_window_of_a_policy_follows_the_training_step(lab):
    policy = lab.policy(steps=6, window={"kind": "sliding", "size": 2, "every": 2})
    starts = []
    for step in (0, 1, 2, 5, 8, 0):
        policy.begin(step)
        rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
        assert len(rollouts.tensor("first").unique()) == 1
        starts.append(int(rollouts.tensor("first")[0]))
    assert starts == [0, 0, 1, 2, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "fixed"}, "kind: fixed needs a size"),
        ({"kind": "random"}, "kind: random needs a size"),
        ({"kind": "all", "size": 2}, "leave size unset"),
        ({"kind": "fixed", "size": 0}, "greater than or equal to 1"),
        ({"kind": "fixed", "size": 2, "start": -1}, "greater than or equal to 0"),
        ({"kind": "random", "size": 2, "until": 0.0}, "greater than 0"),
        ({"kind": "sliding", "size": 2, "every": 0}, "greater than or equal to 1"),
        (
            {"kind": "random", "size": 2, "start": 1},
            "start has no effect with kind: random; remove it",
        ),
        ({"kind": "fixed", "size": 2, "until": 0.5}, "until has no effect with kind: fixed"),
        ({"kind": "all", "every": 5}, "every has no effect with kind: all"),
        ({"kind": "jumping", "size": 2}, "'all', 'fixed', 'random' or 'sliding'"),
        ({"share": 0.0}, "greater than 0"),
        ({"length": 3}, "Extra inputs"),
    ],
)
def test_invalid_windows_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        Window(**options)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"kind": "fixed", "size": 3, "start": 7}, 10),
        ({"kind": "sliding", "size": 10}, 10),
        ({"kind": "random", "size": 12}, 12),
    ],
)
def test_a_window_beyond_the_steps_is_refused(options, end):
    message = f"ends at step {end}, and of 10 steps the first 9 can be decisions"
    with pytest.raises(ValueError, match=message):
        Window(**options).length(STEPS)
    window = Window(**options)
    assert window.length(end + 1) == options["size"]


def test_two_steps_have_one_decision_and_one_step_has_none():
    assert Window().length(2) == 1
    with pytest.raises(ValueError, match="the first 0 can be"):
        Window().length(1)


def test_a_share_of_no_decision_is_refused():
    with pytest.raises(ValueError, match=r"a share of 0\.1 of 9 decisions is none"):
        Window(share=0.1).length(STEPS)


def test_a_shrinking_window_stays_as_long_as_in_mixgrpos_exponential_decay():
    """Restated: an iteration counts, and moves the window once it has been long enough there."""
    window = Window(kind="sliding", size=3, start=1, every=5, shrink=0.3, shrink_after=2)
    place, count = 1, 0
    for step in range(80):
        assert window.starts(STEPS, [7], step).tolist() == [place]
        count += 1
        if count >= math.ceil(5 * math.exp(-0.3 * max(0, place - 2))):
            place, count = (place + 1) % 7, 0
    with pytest.raises(ValidationError, match="shrink_after has no effect"):
        Window(kind="sliding", size=3, shrink_after=2)
