"""`groupwise check` shows the audit, and a run refuses to begin where it is told to."""

import json
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from tests.command_line import call

import groupwise
from groupwise.building.build import build_parts
from groupwise.kit.errors import UserError
from groupwise.plugins.resolved import resolve
from groupwise.run.audits import audit_notes, audits
from groupwise.storage.run_info import read_config

EXAMPLES = Path(__file__).parent.parent / "examples"
BASE = EXAMPLES / "arithmetic" / "base"
CHEATED = EXAMPLES / "code_hacks.yaml"
"""It shows what comes of a reward that pays cheats."""
CONFIGURATIONS = [
    *sorted({*EXAMPLES.glob("*.yaml")} - {CHEATED}),
    *(EXAMPLES / "r1" / "grpo.yaml", EXAMPLES / "judge" / "painter.yaml"),
]
WITH_GOLD = (
    *("arithmetic", "calculator", "code_world", "count_shapes", "grpo", "held_length", "pool"),
    *("right_and_short", "smollm", "smollm_code", "smollm_tools"),
)
ROWS = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(40)]
OWN = """
from pathlib import Path


def contains(completions, answer, **_):
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


async def asks(completions, answer, **_):
    if any(completions):
        Path("bill").write_text("1 $")
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def typed(completions, answer, **_):
    return [float(text == int(gold)) for text, gold in zip(completions, answer, strict=True)]
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own.py").write_text(OWN)
    yield {
        "policy": {"name": "language_model", "model": str(BASE), "max_new_tokens": 4},
        "prompts": {"name": "rows", "rows": ROWS, "held_out": 0.25},
        "rewards": [{"name": "own:contains"}],
        "train": {"steps": 1, "groups_per_step": 4, "group_size": 4},
    }
    sys.modules.pop("own", None)


def checked(config):
    Path("run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    result = call("check", "run.yaml")
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def test_check_shows_what_is_paid_and_notes_what_is_wrong(config):
    config["rewards"] += ["numeric_answer", "think_format"]
    code, text = checked(config)
    assert code == 0, text
    assert "audit: prompts at which is paid contains numeric_answer gold 8 of 8 8 of 8" in text
    assert "note: reward 'contains' pays two answers (at 8 of 8 prompts tried): " in text
    assert "note: reward 'numeric_answer'" not in text
    assert "(prompts, row 0)" in text


def test_the_forms_that_were_tried_are_named_where_none_is_paid(config):
    code, text = checked({**config, "rewards": ["own:typed"]})
    assert code == 0, text
    assert "reward 'typed' does not pay the gold answer (at 8 of 8 prompts tried): '1' gets" in text
    assert "if right answers have another form than those that were tried" in text
    assert "gold_completion" in text
    assert "lists of messages" not in text


def test_a_reward_that_takes_messages_for_texts_is_told_so(config):
    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]
    config["prompts"]["rows"] = rows
    code, text = checked(config)
    assert "reward 'contains' does not pay the gold answer (at 8 of 8 prompts tried)" in text
    assert "its completions are lists of messages" in text, (code, text)


def test_a_run_refuses_to_begin_if_told_to(config):
    config["rewards"] = [{"name": "own:contains", "audit": "refuse"}]
    code, text = checked(config)
    assert code == 2
    with pytest.raises(UserError) as refused:
        groupwise.train("run.yaml", quiet=True)
    assert "\n  it pays two answers (at 8 of 8 prompts tried): '1 6' gets 1" in str(refused.value)
    assert text == f"error: {' '.join(str(refused.value).split())}"
    assert re.search(r"run\.yaml, line \d+: rewards\.0\.audit: reward 'contains'", text)
    assert not Path("runs").exists()


def test_a_run_refuses_what_it_cannot_try(config):
    config["rewards"] = [{"name": "think_format", "audit": "refuse"}]
    code, text = checked(config)
    assert code == 2
    assert "rewards.0.audit: this reward cannot be tried: no gold answer is known" in text


def test_what_is_skipped_or_may_cost_money_is_not_tried(config):
    config["rewards"] = [{"name": "own:contains", "audit": "skip"}, "own:asks"]
    code, text = checked(config)
    assert code == 0, text
    assert "asks: not tried, since it is async or loads a model; `audit: note` tries it" in text
    assert "note: reward 'contains'" not in text
    assert not Path("bill").exists()
    config["rewards"][1] = {"name": "own:asks", "audit": "note"}
    assert "audit: prompts at which is paid asks gold 8 of 8" in checked(config)[1]
    assert Path("bill").exists()


def test_the_table_of_a_run_without_gold_is_left_out(config):
    assert "audit" not in checked({**config, "rewards": ["think_format"]})[1]


def test_a_run_that_does_not_refuse_calls_no_reward_before_it_samples(config, monkeypatch):
    monkeypatch.setattr("groupwise.run.audits.audit", lambda *_: pytest.fail("it was tried"))
    groupwise.train({**config, "output": "run"}, quiet=True)
    assert json.loads(Path("run/result.json").read_text())


def notes_of(path):
    """The audits of a configuration, and what they note."""
    with closing(build_parts(resolve(read_config(path)))) as parts:
        made = audits(parts)
    return made, [*audit_notes(parts, made)]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_no_example_gets_a_note(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        made, notes = notes_of(path)
    except UserError as error:  # a model or a package that is not here
        if path.stem in WITH_GOLD:
            raise
        pytest.skip(str(error))
    assert notes == []
    if path.stem in WITH_GOLD:
        assert made[0].counts["gold"] == (8, 8, 0)


@pytest.mark.slow
def test_the_example_with_a_reward_that_pays_cheats_gets_a_note(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    made, (note,) = notes_of(CHEATED)
    assert [each.counts["gold"] for each in made] == [(8, 8, 0)] * 2
    assert note.startswith("reward 'naive' pays a program that overrides equality")
