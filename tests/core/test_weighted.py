"""Prompts weighted by success: what is drawn, what is remembered, and that resuming is exact."""

import json
from collections import Counter

import pytest
import torch

from groupwise import train
from groupwise.errors import UserError
from groupwise.prompts.draws import MOST_RESTS
from groupwise.prompts.outcomes import RESTING, UNSEEN, Outcome, Outcomes, worth
from groupwise.prompts.weighted import Weighted
from groupwise.storage.state import decode, encode


def rows(count):
    return [{"prompt": f"question {number}", "id": number} for number in range(count)]


def weighted(source, **settings):
    usual = {"explore": 0.5, "half_life": 100.0, "size": 1000, "fraction": 0.0, "seed": 4}
    return Weighted(source, **{**usual, **settings})


def steps(prompts, rate, count, *, each=8, size=8):
    """Draws of so many steps; a prompt's completions are right by `rate` of its number."""
    drawn, metrics = [], {}
    for _ in range(count):
        draws = prompts.take(each)
        metrics = prompts.observe(
            {draw.number: Outcome(round(size * rate(draw.row["id"])), size) for draw in draws}
        )
        drawn.append([draw.row["id"] for draw in draws])
    return drawn, metrics


def thirds(number):
    """Never right, right half of the time, always right."""
    return (number % 3) / 2


# ---- the equation


@pytest.mark.parametrize(("right", "judged"), [(0, 0), (3, 8), (8, 8), (0.7, 2.5)])
def test_worth_is_the_posterior_mean_of_p_times_not_p(right, judged):
    p = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    density = p**right * (1 - p) ** (judged - right)
    expected = float((density * p * (1 - p)).sum() / density.sum())
    assert worth(right, judged) == pytest.approx(expected, 1e-4)


def test_what_is_known_fades_to_what_is_known_of_an_unseen_question():
    outcomes = Outcomes(half_life=10.0, size=5)
    outcomes.add(1, 0, Outcome(16, 16), 100)
    values = [worth(*outcomes.of(1, now)) for now in (100, 110, 130, 1000)]
    assert values == sorted(values)
    assert values[0] < RESTING < values[2] < values[3] == pytest.approx(UNSEEN)
    outcomes.add(1, 0, Outcome(0, 16), 110)
    assert outcomes.of(1, 110) == (8.0, 24.0)
    assert [float(column) for column in outcomes.counts(120)] == [4.0, 12.0]


# ---- what is drawn


def test_middling_prompts_are_drawn_most_and_settled_ones_now_and_then():
    drawn, metrics = steps(weighted(rows(60), half_life=200.0), thirds, 100)
    first, later = drawn[:20], drawn[20:]
    assert {number for step in first for number in step} == set(range(60))  # all are explored
    kinds = Counter(number % 3 for step in later for number in step)
    assert kinds[1] > 0.75 * sum(kinds.values())
    assert all(kinds[kind] > 10 for kind in (0, 2))  # they may have changed
    assert all(max(Counter(step).values()) <= 2 for step in later)  # one by weight, one in order
    expected = {"always_right": 1 / 3, "never_right": 1 / 3, "between": 1 / 3, "known": 60}
    for name, value in expected.items():
        assert metrics[f"prompts/{name}"] == pytest.approx(value)
    assert 0.3 < metrics["prompts/expected"] < 0.7
    assert metrics["prompts/again"] > 0
    assert "prompts/new_accuracy" not in metrics


def test_what_was_always_right_and_is_forgotten_is_drawn_again():
    prompts = weighted(rows(40), half_life=100.0)
    steps(prompts, lambda _: 1.0, 20)
    drawn, _ = steps(prompts, lambda number: 0.5 if number == 7 else 1.0, 40)
    counts = Counter(number for step in drawn for number in step)
    assert counts[7] > 2 * max(count for number, count in counts.items() if number != 7)


def test_unseen_prompts_are_the_next_in_the_usual_order():
    prompts, drawn = weighted(rows(1000)), []
    for _ in range(10):
        draws = prompts.take(8)
        drawn += [draw.row["id"] for draw in draws]
        metrics = prompts.observe({draw.number: Outcome(8, 8) for draw in draws})
        assert (metrics["prompts/again"], metrics["prompts/new_accuracy"]) == (0.0, 1.0)
    assert drawn == [draw.row["id"] for draw in weighted(rows(1000)).take(80)]


def test_where_all_rest_one_is_taken_all_the_same():
    source = rows(2 * MOST_RESTS)
    prompts = weighted(source, half_life=1e9)
    steps(prompts, lambda _: 1.0, 2 * len(source) // 8)
    before = prompts.position
    assert len(prompts.take(1)) == 1
    assert prompts.position == before + MOST_RESTS + 1
    assert len(weighted(rows(1)).take(5)) == 5  # of a source with fewer rows than draws


def test_rows_that_ask_the_same_share_what_is_known():
    source = [
        {"prompt": f"{style} {number}", "question": number, "id": number}
        for number in range(30)
        for style in ("Please:", "Now:")
    ]
    prompts = weighted(source, key="question")
    steps(prompts, thirds, 30)
    assert len(prompts.outcomes) == 30


def test_a_draw_of_which_nothing_came_is_not_waited_for():
    """As where a policy of a chain could take none of what the one before wrote."""
    prompts = weighted(rows(20))
    draws = prompts.take(4)
    prompts.observe({draw.number: Outcome(4, 8) for draw in draws[1:]})
    assert not prompts._pending
    assert len(prompts.outcomes) == 3


def test_what_was_not_judged_tells_nothing():
    prompts = weighted(rows(20))
    draws = prompts.take(4)
    metrics = prompts.observe({draw.number: Outcome(0, 0) for draw in draws})
    assert len(prompts.outcomes) == 0
    assert "prompts/new_accuracy" not in metrics


# ---- exactly the same


def test_draws_are_a_function_of_seed_and_outcomes():
    def drawn(seed):
        return steps(weighted(rows(50), seed=seed), thirds, 30)[0]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize("made", [0, 3, 25])
def test_resuming_goes_on_as_if_it_had_never_stopped(made):
    through, resumed = weighted(rows(50)), weighted(rows(50))
    steps(through, thirds, made)
    state, tensors = encode(through.state_dict(), "prompts")
    steps(resumed, thirds, 5)  # what it did before does not matter
    resumed.take(8)
    resumed.load_state_dict(decode(json.loads(json.dumps(state)), tensors))
    assert steps(resumed, thirds, 20) == steps(through, thirds, 20)


def test_a_run_that_has_other_rows_by_now_draws_none_that_it_must_not():
    prompts = weighted(rows(50), explore=0.01)
    steps(prompts, thirds, 30)
    fewer = weighted([*rows(20), {"prompt": "another", "id": 1}], explore=0.01, fraction=0.4)
    fewer.load_state_dict(prompts.state_dict())
    fewer.skips = lambda row: row["id"] == 4
    for draw in fewer.take(60):
        assert not fewer.is_held_out(draw.row)
        assert draw.row["id"] != 4


# ---- large sources


def test_a_million_rows_cost_what_is_remembered_of_them():
    class Source:
        made = 0

        def __len__(self):
            return 1_000_000

        def __getitem__(self, index):
            self.made += 1
            return {"prompt": f"question {index}", "id": index}

    source = Source()
    prompts = weighted(source, size=256, half_life=50.0)
    before = source.made
    steps(prompts, thirds, 100)
    assert source.made - before == 800
    assert 200 < len(prompts.outcomes) <= 256
    newest = prompts.outcomes.column("drawn")
    assert int(newest.min()) > 300  # those drawn longest ago are forgotten
    columns = prompts.state_dict()["outcomes"]
    assert sum(column.nbytes for column in columns.values()) == 32 * len(prompts.outcomes)
    room = sum(column.nbytes for column in prompts.outcomes._columns.values())
    assert room <= 32 * 256 * 1.5


# ---- a run


def some_right(completions, prompts, **_):
    """Right where the first symbol is that of the prompt's number."""
    return [
        float(text[0] == str(int(prompt.split()[1]) % 3))
        for text, prompt in zip(completions, prompts, strict=True)
    ]


some_right.judges = True


def run(lab, folder, *, resume=False, weighting=None, **more):
    settings = {"steps": 6, "groups_per_step": 4, "group_size": 4, "learning_rate": 0.3}
    return train(
        policy=lab.Tabular(),
        prompts=lab.rows(),
        rewards=[some_right],
        train={**settings, "checkpoint_every": 3, **more},
        evaluation={"prompts": 1},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.3, "prompts.weighting": weighting or {"half_life": 4}},
    )


def lines(folder):
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if "time" not in k and "second" not in k} for r in read]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_resumed_run_draws_the_same(lab, tmp_path, ahead):
    whole = run(lab, tmp_path / "through", ahead=ahead)
    run(lab, tmp_path / "cut", ahead=ahead, steps=3)
    resumed = run(lab, tmp_path / "cut", ahead=ahead, resume=True)
    made = [[r for r in lines(tmp_path / n) if "loss" in r] for n in ("through", "cut")]
    assert made[0] == made[1]
    assert torch.equal(whole.policy.table, resumed.policy.table)
    assert made[0][-1]["prompts/known"] > 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_with_a_step_ahead_outcomes_are_a_step_older(lab, ahead):
    seen = []

    class Noting(Weighted):
        def take(self, count):
            numbers = self.outcomes.column("drawn").tolist()
            seen.append(max(numbers, default=0))
            return super().take(count)

    trainer = lab.trainer(reward=some_right, ahead=ahead, steps=6)
    trainer.experience.prompts = Noting(lab.rows(), explore=0.5, half_life=9.0, size=9)
    assert lab.fit(trainer)
    # Outcomes carry the number of draws made when they came; of 4 draws a step.
    assert seen == ([0, 4, 8, 12, 16, 20] if not ahead else [0, 0, 8, 12, 16, 20])


def test_refilled_groups_are_taken_note_of(lab):
    from groupwise.algorithms.grpo import GRPO

    algorithm = GRPO(GRPO.Config(refill=True))
    trainer = lab.trainer(algorithm=algorithm, reward=some_right, group_size=2)
    trainer.experience.prompts = weighted(lab.rows())
    assert lab.step(trainer)["refilled_groups"] > 0
    assert not trainer.experience.prompts._pending
    assert trainer.experience.prompts.drawn > 4


# ---- refused


def graded(completions, **_):
    return [0.5 for _ in completions]


class Measures:
    judges = False

    def __call__(self, completions, **_):
        return [0.5 for _ in completions]


@pytest.mark.parametrize(
    ("reward", "more", "message"),
    [
        (
            some_right,
            {"prompts.shuffle": False},
            r"prompts\.shuffle: false keeps the source's order, but prompts\.weighting changes",
        ),
        (Measures(), {}, r"prompts\.weighting: needs to know which completions are right, and r"),
        (graded, {}, r"prompts\.weighting: the first reward gives values other than 0 and 1"),
        (
            some_right,
            {"watch": [{"name": graded, "label": "w"}], "evaluation.accuracy": "w"},
            r"prompts\.weighting: needs .* names 'w', which is only watched and not called in t",
        ),
        (
            some_right,
            {"prompts.weighting": {"explore": 0}},
            r"prompts\.weighting\.explore: expected more than 0, found 0",
        ),
    ],
)
def test_contradictions_are_told(lab, tmp_path, reward, more, message):
    with pytest.raises(UserError, match=message):
        train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[reward],
            train={"steps": 1, "groups_per_step": 2},
            output=tmp_path / "run",
            quiet=True,
            **{"prompts.weighting": {}, **more},
        )
