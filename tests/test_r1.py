"""The R1 recipe: its documents, its stages and their resumption, and its report."""

import json
import sys
from itertools import product
from pathlib import Path

import pytest

from groupwise.config.load import load_config
from groupwise.prompts.split import held_out
from groupwise.run.train import train_from_config
from groupwise_verifiable.text.format import ThinkAnswerFormat
from groupwise_verifiable.text.language import LanguageConsistency
from groupwise_verifiable.text.self_correction import SelfCorrection

R1 = Path(__file__).parents[1] / "examples" / "r1"
NAMES = ("documents", "how_to", "sft", "report", "recipe")


@pytest.fixture
def r1(monkeypatch):
    """The recipe module, with its other modules importable."""
    monkeypatch.syspath_prepend(str(R1))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import recipe

    yield recipe
    for name in NAMES:
        sys.modules.pop(name, None)


def test_no_document_has_a_held_out_problem(r1):
    rows = [*r1.documents.cold_start(40), *r1.documents.of_the_base(60)]
    assert len(rows) > 80
    assert not any(held_out(row["prompt"].strip(), r1.documents.HELD_OUT) for row in rows)
    prompts = load_config(R1 / "grpo.yaml", []).config.prompts
    (sums, *_) = load_config(R1 / "last.yaml", []).config.prompts.sources
    assert prompts.options["options"] == sums.options["options"] == r1.documents.TASK
    assert prompts.held_out == r1.documents.HELD_OUT


def test_worked_solutions_are_right_and_in_their_language(r1):
    english, chinese = r1.documents.ENGLISH, r1.documents.CHINESE
    corrected = r1.documents.worked("12 + 34 - 50", [english] * 2, (1, 10))
    assert corrected == "12 plus 34 is 46\n46 minus 50 is 6\nwait, 46 minus 50 is -4"
    assert SelfCorrection()(["p"], [corrected]) == [1.0]
    thought = r1.documents.worked("12 + 34 - 50 + 1", [english, chinese, english])
    assert thought == "12 plus 34 is 46\n46减去50等于-4\n-4 plus 1 is -3"
    language = LanguageConsistency()
    assert language(["p"], [thought]) == [(6 + 6) / (6 + 6 + 4)]
    cold = [row["completion"] for row in r1.documents.cold_start(20)]
    assert language(cold, cold) == ThinkAnswerFormat()(cold, cold) == [1.0] * 20


def test_documents_of_the_base_mix_formats_and_languages(r1):
    texts = [row["completion"] for row in r1.documents.of_the_base(300)]
    formatted = sum(ThinkAnswerFormat()(texts, texts))
    assert 0.04 < formatted / len(texts) < 0.2
    shares = [share for share in LanguageConsistency()(texts, texts) if share is not None]
    assert {0.0, 1.0} < set(shares)
    assert any(0 < share < 1 for share in shares)


@pytest.mark.slow
def test_the_shipped_base_model_rarely_gets_the_rewards(tmp_path):
    few = ["train.steps=0", "evaluation.prompts=60", f"output={tmp_path / 'run'}"]
    before = train_from_config(load_config(R1 / "grpo.yaml", few), quiet=True).before
    assert 0 < before["accuracy"] < 0.3
    assert 0 < before["rewards/format"] < 0.3
    assert 0.2 < before["rewards/language"] < 0.8


def test_a_recipe_continues_with_its_unfinished_stage(r1, tmp_path):
    def stage(name, then="", partly=None):
        makes = tmp_path / f"{name}.txt"
        written = partly or makes
        script = f"import pathlib; pathlib.Path({str(written)!r}).touch(); {then}"
        log = tmp_path / "logs" / f"{name}.log"
        command = (sys.executable, "-c", script)
        return r1.Stage(name=name, command=command, makes=makes, log=log, partly=partly)

    partly = tmp_path / "partly.txt"
    first, second = stage("first"), stage("second", "raise SystemExit('no')", partly)
    messages = []
    with pytest.raises(SystemExit, match=r"second ended with 1; its output is in .*second\.log"):
        r1.run([first, second], messages.append)
    assert (tmp_path / "logs" / "second.log").read_text().strip() == "no"
    assert not second.makes.exists()
    first.makes.write_text("kept")
    r1.run([first, stage("second", partly=partly)], messages.append)
    assert [line.partition(":")[0] for line in messages] == ["first", "first", "second"]
    assert messages[1] == "first: exists already"
    assert first.makes.read_text() == "kept"
    assert second.makes.exists()
    assert not partly.exists()


def test_an_interrupted_run_is_not_a_finished_stage(r1, tmp_path):
    stages = r1.stages(tmp_path, 0, tmp_path, prompts=9, overrides=["train.steps=1"])
    assert [stage.name for stage in stages["r1"]] == [
        *("cold_start", "cold_start_measured", "first", "first_measured"),
        *("sampled", "distilled", "last"),
    ]
    zero, *_ = stages["zero"]
    assert not r1.is_made(zero)
    zero.makes.parent.mkdir()
    for interrupted in (True, False):
        zero.makes.write_text(json.dumps({"interrupted": interrupted}))
        assert r1.is_made(zero) is not interrupted
    assert [zero.command[-1], stages["r1"][4].command[-4]] == ["train.steps=1", "9"]
    models = {str(part) for chain in stages.values() for stage in chain for part in stage.command}
    names = ("cold_start", "distilled", "first/model", "zero/model")
    assert {f"policy.model={tmp_path / name}" for name in names} < models
    made = {stage.makes for chain in stages.values() for stage in chain}
    assert {tmp_path / run / "result.json" for _, run, _ in r1.report.STAGES} < made


def test_the_report_has_every_stage(r1, tmp_path):
    metrics = dict.fromkeys(r1.report.METRICS.values(), 0.25) | {"length/reasoning": 40.0}
    metrics |= {"accuracy": 0.5, "rewards/language": None}
    runs = {run for _, run, _ in r1.report.STAGES}
    for seed, run in product((0, 1), runs):
        folder = tmp_path / f"seed{seed}" / run
        (folder / "samples").mkdir(parents=True)
        after = {**metrics, "accuracy": seed / 2}
        (folder / "result.json").write_text(json.dumps({"before": metrics, "after": after}))
        samples = [
            json.dumps(
                {"greedy": True, "source": n, "prompt": n, "completion": f"<think> {run} {n}"}
            )
            for n in r1.report.SOURCES
        ]
        for when in ("before", "after"):
            (folder / "samples" / f"{when}.jsonl").write_text("\n".join(samples))
        (folder.parent / "logs").mkdir(exist_ok=True)
        log = folder.parent / "logs" / "sampled.log"
        log.write_text("9 prompts, kept 3, of 3 prompts: a.jsonl\n")
    text = r1.report.write(tmp_path, [0, 1])
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert text.startswith(lines[0])
    assert lines[2].startswith("| base | 0.500, 0.500 | 0.250, 0.250 | -, - | 0.250, 0.250 | 40.0")
    assert lines[-3].startswith("| 5. GRPO on sums and requests: R1 | 0.000, 0.500 |")
    assert len(lines) == 2 + len(r1.report.STAGES) + 2
    page = (tmp_path / "report.html").read_text("utf-8")
    for source in r1.report.SOURCES:
        assert f"&lt;think&gt; last {source}" in page
    assert "9 prompts, kept 3, of 3 prompts; 9 prompts" in page
