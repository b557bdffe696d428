"""Prompts weighted by success: draws, remembered outcomes, exact resuming."""

from collections import Counter

import pytest
import torch
from tests.repeated import cut, lines

from groupwise import train
from groupwise.kit.errors import UserError
from groupwise.prompts.outcomes import RESTING, UNSEEN, Outcome, Outcomes, worth
from groupwise.prompts.weighted import WeightedPrompts

MOST_RESTS = 100
"""The most rows that are passed over for one draw."""


def rows(count):
    return [{"prompt": f"question {number}", "id": number} for number in range(count)]


def weighted(source, **settings):
    defaults = {"explore": 0.5, "half_life": 100.0, "size": 1000, "fraction": 0.0, "seed": 4}
    return WeightedPrompts(source, **{**defaults, **settings})


def steps(prompts, rate, count, *, each=8, size=8):
    """Draws of `count` steps, and the last metrics; rate(id): the share of right completions."""
    drawn_ids, metrics = [], {}
    for _ in range(count):
        draws = prompts.take(each)
        metrics = prompts.observe(
            {draw.number: Outcome(round(size * rate(draw.row["id"])), size) for draw in draws}
        )
        drawn_ids.append([draw.row["id"] for draw in draws])
    return drawn_ids, metrics


def thirds(number):
    """Success rates by number: 0, 0.5, 1, 0, 0.5, 1, ..."""
    return (number % 3) / 2


# ---- the equation


@pytest.mark.parametrize(("right", "judged"), [(0, 0), (3, 8), (8, 8), (0.7, 2.5)])
def test_worth_is_the_posterior_mean_of_p_times_not_p(right, judged):
    p = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    density = p**right * (1 - p) ** (judged - right)
    expected = float((density * p * (1 - p)).sum() / density.sum())
    assert worth(right, judged) == pytest.approx(expected, 1e-4)


def test_the_weight_of_old_outcomes_fades_to_that_of_an_unseen_prompt():
    outcomes = Outcomes(half_life=10.0, size=5)
    outcomes.add(1, 0, Outcome(16, 16), 100)
    values = [worth(*outcomes.of(1, now)) for now in (100, 110, 130, 1000)]
    assert values == sorted(values)
    assert values[0] < RESTING < values[2] < values[3] == pytest.approx(UNSEEN)
    outcomes.add(1, 0, Outcome(0, 16), 110)
    assert outcomes.of(1, 110) == (8.0, 24.0)
    assert [float(column) for column in outcomes.counts(120)] == [4.0, 12.0]


# ---- draws


def test_prompts_of_medium_success_are_drawn_most_and_others_sometimes():
    drawn, metrics = steps(weighted(rows(60), half_life=200.0), thirds, 100)
    first, later = drawn[:20], drawn[20:]
    # Each is drawn at least once.
    assert {number for step in first for number in step} == set(range(60))
    kinds = Counter(number % 3 for step in later for number in step)
    assert kinds[1] > 0.75 * sum(kinds.values())
    assert all(kinds[kind] > 10 for kind in (0, 2))  # their success rate may change
    # In a step at most once by weight and once in order.
    assert all(max(Counter(step).values()) <= 2 for step in later)
    expected = {"always_right": 1 / 3, "never_right": 1 / 3, "between": 1 / 3, "known": 60}
    for name, value in expected.items():
        assert metrics[f"prompts/{name}"] == pytest.approx(value)
    assert 0.3 < metrics["prompts/expected"] < 0.7
    assert metrics["prompts/again"] > 0
    assert "prompts/new_accuracy" not in metrics


def test_a_prompt_that_is_no_longer_always_right_is_drawn_more_often():
    prompts = weighted(rows(40), half_life=100.0)
    steps(prompts, lambda _: 1.0, 20)
    drawn, _ = steps(prompts, lambda number: 0.5 if number == 7 else 1.0, 40)
    counts = Counter(number for step in drawn for number in step)
    assert counts[7] > 2 * max(count for number, count in counts.items() if number != 7)


def test_unseen_prompts_are_drawn_in_the_usual_order():
    prompts, drawn = weighted(rows(1000)), []
    for _ in range(10):
        draws = prompts.take(8)
        drawn += [draw.row["id"] for draw in draws]
        metrics = prompts.observe({draw.number: Outcome(8, 8) for draw in draws})
        assert (metrics["prompts/again"], metrics["prompts/new_accuracy"]) == (0.0, 1.0)
    assert drawn == [draw.row["id"] for draw in weighted(rows(1000)).take(80)]


def test_if_all_prompts_are_always_right_one_is_still_drawn():
    source = rows(2 * MOST_RESTS)
    prompts = weighted(source, half_life=1e9)
    steps(prompts, lambda _: 1.0, 2 * len(source) // 8)
    before = prompts.position
    assert len(prompts.take(1)) == 1
    assert prompts.position == before + MOST_RESTS + 1
    assert len(weighted(rows(1)).take(5)) == 5  # fewer rows than draws


def test_rows_with_the_same_key_share_their_outcomes():
    source = [
        {"prompt": f"{style} {number}", "question": number, "id": number}
        for number in range(30)
        for style in ("Please:", "Now:")
    ]
    prompts = weighted(source, key="question")
    steps(prompts, thirds, 30)
    assert len(prompts.outcomes) == 30


def test_without_a_key_each_row_has_its_own_outcomes():
    """Rows may have the same prompt, and different pictures or gold answers."""
    source = [{"prompt": "How many?", "id": number} for number in range(30)]
    prompts = weighted(source)
    steps(prompts, thirds, 30)
    assert len(prompts.outcomes) == 30


def test_a_draw_without_an_outcome_is_dropped():
    """As in a chain, if a policy skips all completions of the one before."""
    prompts = weighted(rows(20))
    draws = prompts.take(4)
    outcomes = {draw.number: Outcome(4, 8) for draw in draws[1:]}
    prompts.observe(outcomes, [draw.number for draw in draws])
    assert not prompts._pending
    assert len(prompts.outcomes) == 3


def test_unjudged_completions_are_no_outcomes():
    prompts = weighted(rows(20))
    draws = prompts.take(4)
    metrics = prompts.observe({draw.number: Outcome(0, 0) for draw in draws})
    assert len(prompts.outcomes) == 0
    assert "prompts/new_accuracy" not in metrics


# ---- determinism and resuming


def test_draws_are_determined_by_seed_and_outcomes():
    def drawn(seed):
        return steps(weighted(rows(50), seed=seed), thirds, 30)[0]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize("count", [0, 3, 25])
def test_resumed_draws_equal_uninterrupted_ones(count, reloaded):
    uninterrupted, resumed = weighted(rows(50)), weighted(rows(50))
    steps(uninterrupted, thirds, count)
    state = reloaded(uninterrupted.state_dict())
    steps(resumed, thirds, 5)  # earlier draws do not matter
    resumed.take(8)
    resumed.load_state_dict(state)
    assert steps(resumed, thirds, 20) == steps(uninterrupted, thirds, 20)


def test_with_changed_rows_no_held_out_or_skipped_row_is_drawn():
    prompts = weighted(rows(50), explore=0.01)
    steps(prompts, thirds, 30)
    changed = weighted([*rows(20), {"prompt": "another", "id": 1}], explore=0.01, fraction=0.4)
    changed.load_state_dict(prompts.state_dict())
    changed.skips = lambda row: row["id"] == 4
    for draw in changed.take(60):
        assert not changed.is_held_out(draw.row)
        assert draw.row["id"] != 4


# ---- large sources


def test_a_million_rows_cost_only_the_memory_of_remembered_outcomes():
    class Source:
        reads = 0

        def __len__(self):
            return 1_000_000

        def __getitem__(self, index):
            self.reads += 1
            return {"prompt": f"question {index}", "id": index}

    source = Source()
    prompts = weighted(source, size=256, half_life=50.0)
    before = source.reads
    steps(prompts, thirds, 100)
    assert source.reads - before == 800
    assert 200 < len(prompts.outcomes) <= 256
    newest = prompts.outcomes.column("drawn")
    assert int(newest.min()) > 300  # the oldest outcomes are dropped
    columns = prompts.state_dict()["outcomes"]
    assert sum(column.nbytes for column in columns.values()) == 32 * len(prompts.outcomes)
    allocated = sum(column.nbytes for column in prompts.outcomes._columns.values())
    assert allocated <= 32 * 256 * 1.5


# ---- a run


def some_right(completions, prompts, **_):
    """Right if the first symbol is the number of the prompt modulo 3."""
    return [
        float(text[0] == str(int(prompt.split()[1]) % 3))
        for text, prompt in zip(completions, prompts, strict=True)
    ]


some_right.judges = True


def run(lab, folder, *, resume=False, weighting=None, **options):
    settings = {"steps": 6, "groups_per_step": 4, "group_size": 4, "learning_rate": 0.3}
    return train(
        policy=lab.Tabular(),
        prompts=lab.rows(),
        rewards=[some_right],
        train={**settings, "checkpoint_every": 3, **options},
        evaluation={"prompts": 1},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.3, "prompts.weighting": weighting or {"half_life": 4}},
    )


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_resumed_run_draws_the_same(lab, tmp_path, ahead):
    uninterrupted = run(lab, tmp_path / "through", ahead=ahead)
    cut(tmp_path / "through", tmp_path / "cut", step=3)
    resumed = run(lab, tmp_path / "cut", ahead=ahead, resume=True)
    metrics = [[r for r in lines(tmp_path / n) if "loss" in r] for n in ("through", "cut")]
    assert metrics[0] == metrics[1]
    assert torch.equal(uninterrupted.policy.table, resumed.policy.table)
    assert metrics[0][-1]["prompts/known"] > 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_with_ahead_outcomes_are_one_step_older(lab, ahead):
    latest = []

    class Recording(WeightedPrompts):
        def take(self, count):
            numbers = self.outcomes.column("drawn").tolist()
            latest.append(max(numbers, default=0))
            return super().take(count)

    trainer = lab.trainer(reward=some_right, ahead=ahead, steps=6)
    trainer.experience.prompts = Recording(lab.rows(), explore=0.5, half_life=9.0, size=9)
    assert lab.fit(trainer)
    # An outcome has the number of draws made before it; there are 4 draws in a step, and ahead the
    # first step draws those of the second, too.
    assert latest == ([0, 4, 8, 12, 16, 20] if not ahead else [0, 8, 12, 16, 20])


def test_outcomes_of_replaced_groups_are_observed(lab):
    from groupwise.algorithms.grpo import GRPO

    algorithm = GRPO(GRPO.Config(refill=True))
    trainer = lab.trainer(algorithm=algorithm, reward=some_right, group_size=2)
    trainer.experience.prompts = weighted(lab.rows())
    assert lab.step(trainer)["refilled_groups"] > 0
    assert not trainer.experience.prompts._pending
    assert trainer.experience.prompts.drawn > 4


# ---- what is refused


def graded(completions, **_):
    return [0.5 for _ in completions]


class NotJudging:
    judges = False

    def __call__(self, completions, **_):
        return [0.5 for _ in completions]


@pytest.mark.parametrize(
    ("reward", "sections", "message"),
    [
        (
            some_right,
            {"prompts.shuffle": False},
            r"prompts\.shuffle: false keeps the source's order, but prompts\.weighting changes",
        ),
        (NotJudging(), {}, r"prompts\.weighting: needs .* set evaluation.accuracy to one whose 1"),
        (graded, {}, r"prompts\.weighting: needs .* no reward says that it tells right from wr"),
        (
            some_right,
            {"watch": [{"name": graded, "label": "w"}], "evaluation.accuracy": "w"},
            r"prompts\.weighting: needs .* says so, 'w', is only watched and not called in",
        ),
        (
            some_right,
            {"prompts.weighting": {"explore": 0}},
            r"prompts\.weighting\.explore: expected more than 0, found 0",
        ),
    ],
)
def test_contradicting_settings_are_refused(lab, tmp_path, reward, sections, message):
    with pytest.raises(UserError, match=message):
        train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[reward],
            train={"steps": 1, "groups_per_step": 2},
            output=tmp_path / "run",
            quiet=True,
            **{"prompts.weighting": {}, **sections},
        )
