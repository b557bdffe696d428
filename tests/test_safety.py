"""The example of requests that should be refused: its language, its judge, and what pays."""

import sys
from pathlib import Path
from statistics import mean

import pytest

from groupwise.config.load import load_config
from groupwise.prompts.split import held_out
from groupwise.run.train import train_from_config
from groupwise_judge.generative import GenerativeJudge

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = ("safety.yaml", "r1/last.yaml")


@pytest.fixture(autouse=True)
def imports_from_examples(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "r1"), str(EXAMPLES), *sys.path])
    yield
    for name in ("how_to", "make_judge", "r1", "r1.how_to", "small_chat", "small_qwen2"):
        sys.modules.pop(name, None)


def harm_of(file):
    """The judge of a configuration, and its constraint."""
    sections = load_config(EXAMPLES / file, []).config.rewards
    harm = next(section for section in sections if section.label == "harmless")
    config = GenerativeJudge.Config(
        model=str(EXAMPLES / "r1" / "judge"), question=harm.options["question"]
    )
    return GenerativeJudge(config), harm.constraint


def test_what_is_held_out_is_in_no_document_and_has_phrasings_of_its_own():
    import how_to

    for harmful in (True, False):
        source = how_to.Requests(harmful)
        for row in source:
            verb = next(verb for verb in how_to.VERBS if row["pair"].startswith(f"{verb} "))
            assert how_to.is_harmful(verb, row["pair"].removeprefix(verb)) is harmful
            is_held = held_out(row["pair"], how_to.HELD_OUT)
            assert row["prompt"].startswith(how_to.HELD_OUT_PHRASINGS) is is_held
    held = {row["pair"] for row in how_to.requests(True, held=True)}
    assert len(held) > 10
    trained = [*how_to.of_the_base(3000), *how_to.supervised(400, 40)]
    assert not any(f"{pair} " in row["prompt"] for row in trained for pair in held)
    for file in FILES:
        assert load_config(EXAMPLES / file, []).config.prompts.held_out == how_to.HELD_OUT


def test_a_word_is_one_token_of_the_policy_and_does_not_change_how_sums_are_read():
    import how_to
    from transformers import AutoTokenizer

    names = ("r1", "arithmetic")
    base, before = (AutoTokenizer.from_pretrained(EXAMPLES / name / "base") for name in names)
    assert all(len(base.encode(word)) == 1 for word in how_to.WORDS)
    question = "State the final answer to the following arithmetic problem: 12 + 34 - 5 =\n"
    assert base.encode(question) == before.encode(question)


def test_the_judge_that_ships_is_right_about_held_out_replies():
    import make_judge

    assert make_judge.right(EXAMPLES / "r1" / "judge", 150) >= 0.98


@pytest.mark.parametrize("file", FILES)
def test_neither_refusing_everything_nor_answering_everything_pays(file):
    """Six ways to reply to all requests, by the configuration's own judge and constraint."""
    import how_to

    judge, constraint = harm_of(file)
    rows = {harmful: how_to.requests(harmful, held=True)[:20] for harmful in (True, False)}
    refusal = how_to.REFUSAL
    replies = {
        "as it should": lambda row, harmful: refusal if harmful else row["wanted"],
        "refuses all": lambda row, harmful: refusal,
        "answers all": lambda row, harmful: row["wanted"],
        "the wrong way round": lambda row, harmful: row["wanted"] if harmful else refusal,
        "refuses and answers": lambda row, harmful: f"{refusal} {row['wanted']}",
        "says nothing": lambda row, harmful: "",
    }
    helpful, harmless = dict[str, float](), dict[str, float]()
    for name, reply in replies.items():
        texts = {h: [reply(row, h) for row in own] for h, own in rows.items()}
        wanted = {h: [row["wanted"] for row in own] for h, own in rows.items()}
        helpful[name] = mean(v for h in rows for v in how_to.answered(texts[h], wanted[h]))
        harmless[name] = mean(judge([row["prompt"] for row in rows[True]], texts[True]))

    def total(name, multiplier):
        return helpful[name] - multiplier * constraint.violation("at_least", harmless[name])

    best, *others = replies
    violations = {name: constraint.violation("at_least", harmless[name]) for name in replies}
    assert violations[best] <= 0 < violations["answers all"]
    # Without the constraint it pays to answer everything; with it the multiplier rises until it
    # does not, and comes down again under the policy that keeps it.
    assert total("answers all", 0.0) > total(best, 0.0) + 0.3
    violation = violations["answers all"]
    rising = constraint.multiplier(constraint.ascended(constraint.start, violation), violation)
    assert rising > 3
    for name in others:
        assert total(name, rising) < total(best, rising) - 0.3, name
    # To refuse everything earns less at every multiplier.
    for multiplier in (0.0, 1.0, constraint.largest):
        assert total("refuses all", multiplier) < total(best, multiplier) - 0.3


@pytest.mark.parametrize("file", [FILES[0], pytest.param(FILES[1], marks=pytest.mark.slow)])
def test_two_steps_with_the_judge_and_the_constraint(file, tmp_path):
    overrides = ["train.groups_per_step=4", "train.group_size=4", "train.steps=2"]
    overrides += ["evaluation.prompts=8", "evaluation.every=0", f"output={tmp_path / 'run'}"]
    result = train_from_config(load_config(EXAMPLES / file, overrides), quiet=True)
    assert result.steps == 2
    for name in ("watch/answered", "watch/refused", "rewards/helpful", "rewards/harmless"):
        assert 0 <= result.after[name] <= 1
