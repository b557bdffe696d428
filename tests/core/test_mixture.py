"""A mixture of sources: each is drawn as if there were no other, by its share of the draws."""

from collections import Counter
from itertools import islice

import pytest
import torch
from tests.repeated import lines

from groupwise import train
from groupwise.building.weighting import draws_of
from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.prompts.mixture import Mixture, shared_out
from groupwise.prompts.outcomes import Outcome
from groupwise.storage.files import AFTER
from groupwise.storage.samples import read_samples

SHARES = {"sums": 3.0, "chats": 1.0}


def rows_of(label, count=60, **columns):
    return [{"prompt": f"{label} {n}", "id": n % 8, **columns} for n in range(count)]


def mixture(shares=SHARES, counts=(40, 12)):
    sources = {label: rows_of(label, n) for label, n in zip(shares, counts, strict=False)}
    return Mixture(Mixture.Config(), sources, shares, "source")


def draws(source, weighting=None, **settings):
    config = load_config({
        "policy": "tabular", "prompts": {"name": "rows", "weighting": weighting}, "rewards": ["x"],
    }).config  # fmt: skip
    return draws_of(config, source, **{"seed": 3, "fraction": 0.2, **settings})


def prompts_of(groups, label):
    return [(g.row["prompt"], g.seed_space, g.seed_number) for g in groups if g.source == label]


# ---- draws


@pytest.mark.parametrize("weighting", [None, {"half_life": 4}])
def test_a_source_is_drawn_as_if_there_were_no_other(weighting):
    counts = {"sums": 40, "chats": 30}
    both = draws(mixture(counts=counts.values()), weighting)
    alone = {label: draws(mixture({label: 1.0}, [n]), weighting) for label, n in counts.items()}
    assert prompts_of(both.evaluation(8), "sums") == prompts_of(alone["sums"].evaluation(6), "sums")
    for _ in range(10):  # passes over both
        taken = both.take(16)
        others = {"sums": alone["sums"].take(12), "chats": alone["chats"].take(4)}
        both.observe({g.number: Outcome(g.number % 3 * 2, 4) for g in taken})
        for label, own in others.items():
            assert prompts_of(taken, label) == prompts_of(own, label)
            numbers = [g.number for g in taken if g.source == label]
            alone[label].observe({
                g.number: Outcome(n % 3 * 2, 4) for g, n in zip(own, numbers, strict=True)
            })  # fmt: skip


@pytest.mark.parametrize("shares", [SHARES, {"a": 1.0, "b": 1.0, "c": 0.1}, {"a": 0.9, "b": 0.2}])
def test_draws_keep_the_shares_at_every_moment(shares):
    whole, drawn = sum(shares.values()), Counter[str]()
    for size in (1, 5, 16, 3) * 20:
        drawn.update(shared_out(size, {label: drawn[label] for label in shares}, shares))
        for label, share in shares.items():
            assert abs(drawn[label] - drawn.total() * share / whole) < 1
    assert drawn.total() == 500


def test_numbers_and_seeds_are_distinct_and_rows_have_their_source():
    groups = draws(mixture()).take(40)
    assert [group.number for group in groups] == [*range(40)]
    assert len({(group.seed_space, group.seed_number) for group in groups}) == 40
    assert all(group.row["source"] == group.source for group in groups)
    assert Counter(group.source for group in groups) == {"sums": 30, "chats": 10}


class Worded(list):
    """Rows that ask the same question in several wordings."""

    key = "id"


def test_a_source_holds_out_by_its_own_column_of_questions():
    rows = Worded(rows_of("sums", 200))
    source = Mixture(Mixture.Config(), {"sums": rows, "chats": rows_of("chats")}, SHARES, "source")
    both, alone = draws(source, fraction=0.4), draws(rows, fraction=0.4)
    taken = [group.row for group in both.take(64) if group.source == "sums"]
    assert [row["prompt"] for row in taken] == [g.row["prompt"] for g in alone.take(48)]
    held = {g.row["id"] for g in both.evaluation(8, distinct=False) if g.source == "sums"}
    assert held
    assert held.isdisjoint(row["id"] for row in taken)


def test_all_that_reads_rows_sees_all_sources():
    prompts = draws(mixture())
    assert len(prompts.source) == 52
    assert [row["source"] for row in islice(prompts.rows(), 4)] == ["sums", "chats"] * 2
    assert Counter(row["source"] for row in prompts.rows()) == {"sums": 40, "chats": 12}
    assert prompts.row(41)["prompt"] == prompts.source[41]["prompt"] == "chats 1"
    assert prompts.row(41).place == "prompts.sources.1, row 1"
    prompts.skips = lambda row: row["source"] == "chats"
    with pytest.raises(UserError, match="leaves none of 12 prompts"):
        prompts.take(8)


@pytest.mark.parametrize("weighting", [None, {"half_life": 4}])
def test_resumed_draws_equal_uninterrupted_ones(reloaded, weighting):
    def steps(prompts, count):
        taken = [prompts.take(8) for _ in range(count)]
        for groups in taken:
            prompts.observe({g.number: Outcome(g.number % 5, 4) for g in groups})
        return [(g.number, g.row, g.seed_number) for groups in taken for g in groups]

    through, resumed = draws(mixture(), weighting), draws(mixture(), weighting)
    steps(through, 1)
    state = reloaded(through.state_dict())
    resumed.load_state_dict(state)
    assert steps(resumed, 1) == steps(through, 1)
    grown = draws(mixture({**SHARES, "new": 1.0}, (40, 12, 5)), weighting)
    grown.load_state_dict(state)
    assert "new" in {group.source for group in grown.take(8)}


# ---- runs


def run(lab, folder, sources, record=None, *, resume=False, **options):
    """A run in which nothing is learned unless `learning_rate` is set."""

    def ends(completions, prompts, purpose, **_):
        if record is not None and purpose == "train":
            record.extend(zip(prompts, completions, strict=True))
        return [float(text[-1] == "0") for text in completions]

    def longer(completions, extra, **_):
        return [len(text) * each for text, each in zip(completions, extra, strict=True)]

    ends.judges = True
    columns = {"sums": {}, "chats": {"extra": 2.0}}
    settings = {"steps": 3, "group_size": 4, "learning_rate": 1e-30, **options}
    return train(
        policy=lab.Tabular(),
        prompts={
            "sources": [
                {"name": rows_of(n, **columns[n]), "label": n, "share": SHARES[n]} for n in sources
            ]
        },
        rewards=[{"name": ends, "sources": ["sums"]}, {"name": longer, "sources": ["chats"]}][
            : len(sources)
        ],
        train=settings,
        evaluation={"prompts": 8},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.3},
    )


def test_a_run_samples_of_a_source_what_a_run_of_it_alone_samples(lab, tmp_path):
    both, alone = [], []
    run(lab, tmp_path / "both", ["sums", "chats"], both, groups_per_step=8)
    run(lab, tmp_path / "alone", ["sums"], alone, groups_per_step=6)
    assert both == alone
    assert len(both) == 3 * 6 * 4


def test_rewards_judge_their_sources_and_metrics_are_of_each(lab, tmp_path):
    result = run(lab, tmp_path / "run", ["sums", "chats"], groups_per_step=8, learning_rate=0.1)
    steps = [line for line in lines(tmp_path / "run") if "loss" in line]
    for line in steps:
        assert line["accuracy/sums"] == line["accuracy"] == line["rewards/ends"]
        assert line["reward/chats"] == pytest.approx(line["rewards/longer"])
        mean = 0.75 * line["reward/sums"] + 0.25 * line["reward/chats"]
        assert line["reward"] == pytest.approx(mean)
        assert "accuracy/chats" not in line
        assert line["unscored"] == 0
    for metrics in (result.before, result.after):
        assert metrics["accuracy/sums"] == metrics["accuracy"]
        assert "accuracy/chats" not in metrics
        assert metrics["reward/chats"] == pytest.approx(metrics["rewards/longer"])
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    for title in ("Reward by source", "by source, in training", "by source, held out"):
        assert title in page
    samples = [s for s in read_samples(tmp_path / "run" / AFTER) if not s["greedy"]]
    assert Counter(sample["source"] for sample in samples) == {"sums": 6, "chats": 2}


@pytest.mark.slow
def test_a_run_that_was_cut_goes_on_to_the_same_bits(lab, tmp_path):
    options = {"groups_per_step": 8, "learning_rate": 0.1, "checkpoint_every": 2}
    through = run(lab, tmp_path / "through", ["sums", "chats"], **options)
    run(lab, tmp_path / "cut", ["sums", "chats"], **{**options, "steps": 2})
    resumed = run(lab, tmp_path / "cut", ["sums", "chats"], resume=True, **options)
    assert torch.equal(through.policy.table, resumed.policy.table)


# ---- refusals


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"prompts": {"name": "mixture"}}, r"prompts\.sources: a mixture needs them"),
        ({"prompts": {"name": "rows", "sources": ["a"]}}, "'rows' has no sources of its own"),
        ({"prompts": {"sources": ["a", "a"]}}, r"prompts\.sources\.1: another source is named 'a'"),
        ({"prompts": {"sources": [{"name": "a", "share": 0}]}}, r"sources\.0\.share"),
        ({"rewards": [{"name": "x", "sources": ["a"]}]}, "there is no mixture"),
        (
            {"prompts": {"sources": ["maths"]}, "rewards": [{"name": "x", "sources": ["math"]}]},
            r"rewards\.0\.sources: prompts\.sources has no 'math', did you mean 'maths'",
        ),
        (
            {"prompts": {"sources": ["a"]}, "train": {"data_epochs": 1}},
            "passed at different speeds; set train.steps",
        ),
    ],
)
def test_what_does_not_fit_is_refused(sections, message):
    with pytest.raises(UserError, match=message):
        load_config({"policy": "p", "prompts": "rows", "rewards": ["x"], **sections})


def test_a_column_that_rows_have_already_is_refused():
    taken = Mixture(Mixture.Config(), {"a": [{"prompt": "x", "source": "web"}]}, {"a": 1}, "source")
    with pytest.raises(UserError, match=r"set prompts\.label_column to another name"):
        draws(taken)
