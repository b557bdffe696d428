"""`groupwise check`: refuses what a run refuses, loads no weights, counts prompts and memory."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from tests.command_line import call

from groupwise.kit.errors import UserError
from groupwise.registry import installed

BASE = Path(__file__).parent.parent / "examples" / "arithmetic" / "base"
ROWS = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(40)]


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return {
        "policy": {"name": "language_model", "model": str(BASE), "max_new_tokens": 4},
        "prompts": {"name": "rows", "rows": ROWS, "held_out": 0.25},
        "rewards": [{"name": "numeric_answer"}],
        "train": {"steps": 1, "groups_per_step": 4, "group_size": 4},
    }


def check(config, *arguments):
    Path("run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return call("check", "run.yaml", *arguments)


def rows_of(result):
    assert result.exit_code == 0, result.output
    lines = filter(str.strip, result.stdout.splitlines())
    return {line.rpartition("  ")[0].strip(): line.split()[-1] for line in lines}


def test_rewards_know_how_many_steps_the_run_has(config):
    """A reward with a schedule would divide by 0."""
    Path("scheduled.py").write_text(
        "def scheduled(completions, trainer_state, **_):\n"
        "    share = trainer_state.global_step / trainer_state.max_steps\n"
        "    return [share] * len(completions)\n"
    )
    result = check({**config, "rewards": ["scheduled:scheduled"]})
    assert result.exit_code == 0, result.output
    assert "scheduled" in result.stdout


def test_rollouts_of_an_evaluation_are_of_the_prompts_that_there_are(config):
    lines = rows_of(check(config))
    assert int(lines["rollouts per evaluation"]) == 2 * int(lines["evaluated"])


@pytest.mark.slow
def test_so_few_evaluated_prompts_that_they_tell_little_are_noted(config):
    result = check(config)
    count = int(rows_of(result)["evaluated"])
    assert f"only {count} prompts are evaluated: the standard error" in result.stdout
    few = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(2)]
    config["prompts"] = {"name": "rows", "rows": few, "held_out": 0.001}
    assert "held_out: 0.001 keeps none of 2 rows: nothing is evaluated" in check(config).stdout
    many = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(400)]
    assert (
        "are evaluated: the"
        not in check({**config, "prompts": {"name": "rows", "rows": many}}).stdout
    )


def test_prompts_are_counted(config):
    lines = rows_of(check(config))
    held_out = int(lines["held out"])
    assert (lines["rows"], lines["evaluated"]) == ("40", str(held_out))
    assert 4 <= held_out <= 16
    doubled = {**config, "prompts": {**config["prompts"], "rows": ROWS * 2}}
    lines = rows_of(check(doubled))
    assert lines["held out"] == str(2 * held_out)
    assert lines["different questions held out"] == lines["evaluated"] == str(held_out)


def test_derived_counts_of_a_batch(config):
    train = {"steps": 10, "groups_per_step": 8, "group_size": 4, "updates_per_rollout": 2}
    config |= {"train": {**train, "epochs": 3}, "evaluation": {"prompts": 7, "samples": 2}}
    lines = rows_of(check(config))
    assert {name: lines[name] for name in lines if name.startswith(("rollouts ", "updates "))} == {
        "rollouts per step": "32",
        "rollouts per update": "16",
        "updates per step": "6",
        "updates in total": "60",
        "rollouts in total": "320",
        "rollouts per evaluation": "21",
    }
    assert lines["groups per update"] == "4"


def test_too_few_held_out_prompts_are_refused(config):
    config["evaluation"] = {"prompts": 39}
    result = check(config)
    assert result.exit_code == 2
    assert "evaluation.prompts asks for 39 held-out prompts, but only" in result.stderr


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("rewards", [{"name": "toys:plain", "lenght": 3}], "did you mean 'length'?"),
        ("rewards", [{"name": "toys:needs"}], "reward 'needs' needs the column 'gold'"),
        ("rewards", [{"name": "reasoning_gym", "task": "chain_sums"}], "chain_sum"),
        ("prompts", {"name": "reasoning_gym", "task": "chain_sums"}, "chain_sum"),
        (
            "prompts",
            {"name": "reasoning_gym", "task": "chain_sum", "options": {"min_term": 2}},
            "min_term",
        ),
        ("prompts", {"name": "dataset", "path": "nowhere.jsonl"}, "no file nowhere.jsonl"),
        ("callbacks", [{"name": "toys:Watcher", "evry": 3}], "did you mean 'every'?"),
        ("algorithm", {"name": "toys:Valued"}, "needs value, which policy 'language_model' does"),
        ("rewards", [{"name": "toys:plain"}, {"name": "toys:plain"}], "two rewards are named"),
        ("rewards", [{"name": "some/reward-model"}], "docs/rewards.md, Reward models"),
    ],
)
def test_check_refuses_what_a_run_refuses(config, section, value, message):
    Path("toys.py").write_text(
        "import groupwise\n"
        "from groupwise.algorithms.grpo import GRPO\n\n"
        "def plain(completions, length=2): ...\n\n"
        "def needs(completions, gold): ...\n\n"
        "class Watcher(groupwise.Callback):\n"
        "    def __init__(self, every=1): raise RuntimeError('built')\n\n"
        "class Valued(GRPO):\n"
        "    def __init__(self, config=None):\n"
        "        super().__init__(config)\n"
        "        self.needs = frozenset({'value'})\n"
    )
    sys.modules.pop("toys", None)
    config[section] = value
    config["evaluation"] = {"prompts": 0}
    result = check(config)
    assert result.exit_code == 2, result.output
    assert message in result.stderr.replace("\n", " ")


def test_no_weights_are_loaded(config, monkeypatch):
    Path("heavy.py").write_text(
        "class Heavy:\n"
        "    def load(self): raise RuntimeError('loaded')\n"
        "    def __call__(self, completions, **columns): raise RuntimeError('called')\n"
    )
    sys.modules.pop("heavy", None)
    config["rewards"] = ["heavy:Heavy"]
    from transformers import PreTrainedModel

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("weights"))
    assert check(config).exit_code == 0


def test_more_processes_than_groups_give_a_warning(config):
    config["train"]["updates_per_rollout"] = 2
    message = "4 processes share 2 groups an update, so 2 of them sample nothing: set train.groups"
    assert message in check(config, "--processes", "4").stdout
    assert "sample nothing" not in check(config, "--processes", "2").stdout


@pytest.mark.slow
def test_a_learning_rate_that_is_low_for_adapters_gives_a_warning(config):
    """The default of 1e-6 is for training all weights."""
    assert "learning_rate" not in check(config).stdout
    config["policy"]["lora"] = {"rank": 4}
    message = (
        "warning: learning_rate 1e-06: low for the adapters of this policy, which usually take"
    )
    assert f"{message} 1e-05 or more" in check(config).stdout
    assert "learning_rate" not in check(config, "train.learning_rate=1e-5").stdout
    assert "learning_rate 0: nothing" in check(config, "train.learning_rate=0").stdout


def test_options_of_the_default_algorithm_need_no_name(config):
    config["algorithm"] = {"beta": 0.1}
    assert "uses a reference" in check(config).stdout
    assert "did you mean 'beta'?" in check({**config, "algorithm": {"betta": 0.1}}).stderr


def test_an_override_can_append_a_callback(config):
    config["train"]["steps"] = 0
    config["evaluation"] = {"prompts": 1}
    Path("watching.py").write_text(
        "import groupwise\n\n"
        "class Watcher(groupwise.Callback):\n"
        "    def on_start(self, policy): print('watched')\n"
    )
    sys.modules.pop("watching", None)
    Path("run.yaml").write_text(yaml.safe_dump(config))
    line = ["train", "run.yaml", "callbacks.0=watching:Watcher", "--quiet"]
    result = call(*line)
    assert result.exit_code == 0, result.output
    assert "watched" in result.stdout


def test_messages_in_a_csv_file_are_parsed(tmp_path):
    kind = installed().load("prompts", "dataset")

    messages = [{"role": "user", "content": 'say "hi", twice'}]
    path = tmp_path / "rows.csv"

    def read(*cells):
        lines = ['"' + cell.replace('"', '""') + '"' for cell in cells]
        path.write_text("prompt\n" + "\n".join(lines) + "\n")
        data = kind(kind.Config(path=str(path)))
        return [data[number]["prompt"] for number in range(len(cells))]

    assert read(json.dumps(messages), "plain") == [messages, "plain"]
    assert read("[1, 2", "[not messages]") == ["[1, 2", "[not messages]"]
    for invalid in (str(messages), json.dumps(messages)[:-3], "[]", json.dumps(messages[0])):
        with pytest.raises(UserError, match=r"row 1: expected messages as JSON"):
            read(json.dumps(messages), invalid)
    with pytest.raises(UserError, match=r"row 0: expected messages as JSON, .* found \[\{'role'"):
        read(str(messages))


def test_the_policy_is_on_its_device_before_prompts_are_checked(config, monkeypatch):
    """Its trial run must be on the device of the run."""
    from groupwise import train
    from groupwise.kit import processes
    from groupwise_llm.policy import LanguageModel

    calls = []

    def refuse(self, rows):
        calls.append("prompts")
        raise UserError("these prompts")

    monkeypatch.setattr(LanguageModel, "place", lambda self, device: calls.append(device))
    monkeypatch.setattr(LanguageModel, "check_prompts", refuse)
    with pytest.raises(UserError, match="these prompts"):
        train(config)
    assert calls == [processes.accelerator().device, "prompts"]


def test_each_policy_of_a_chain_has_its_memory_and_its_warnings(config):
    policy = config.pop("policy")
    config["environment"] = "chain"
    config["players"] = [
        {"label": "first", "policy": policy, "train": {"learning_rate": 0}},
        {"label": "second", "policy": policy, "algorithm": {"beta": 0.1}},
    ]
    result = check(config, "train.learning_rate=1e-4")
    assert result.exit_code == 0, result.output
    for label in ("first", "second"):
        assert f"memory of {label}, estimated for" in result.stdout
    assert "warning: first: learning_rate 0" in result.stdout
    assert "warning: second: the algorithm uses a reference" in result.stdout
    assert result.stdout.count("warning: ") == 2


def test_prompts_that_take_long_to_read_are_counted_in_part(config, monkeypatch):
    assert "of the first 1" not in check(config).output
    monkeypatch.setattr("groupwise.cli.check.SECONDS_OF_CHECKING", -1.0)
    result = check(config)
    assert result.exit_code == 0, result.output
    assert " of the first 1\n" in result.output


def checked_gold(config, path, content, reward="exact_answer"):
    """What `check` says of the answers in a file."""
    Path(path).write_text(content)
    config["prompts"] = {"name": "dataset", "path": path, "held_out": 0}
    config["rewards"], config["evaluation"] = [reward], {"prompts": 0}
    Path("run.yaml").write_text(yaml.safe_dump(config))
    result = call("check", "run.yaml")
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("path", "head", "cell"),
    [
        ("rows.csv", "prompt,answer\n", "p{n},{gold}\n"),
        ("rows.jsonl", "", '{{"prompt": "p{n}", "answer": "{gold}"}}\n'),
    ],
)
@pytest.mark.parametrize("gold", ["true", "02113", "NA", "5.0", "9" * 25])
def test_the_right_answer_is_the_text_of_the_file(config, path, head, cell, gold):
    content = head + "".join(cell.format(n=n, gold=gold) for n in range(4))
    code, text = checked_gold(config, path, content)
    assert code == 0, text
    assert f"the right answer to the first prompt: '{gold}'" in text


@pytest.mark.slow
def test_a_gold_of_several_values_is_refused_with_its_row(config):
    rows = [{"prompt": f"p{n}", "answer": "5"} for n in range(3)]
    rows[1]["answer"] = ["3", "4"]
    for reward in ("numeric_answer", "math"):
        code, text = checked_gold(
            config, "rows.jsonl", "".join(json.dumps(r) + "\n" for r in rows), reward
        )
        assert code == 0, text
        assert (
            f"reward '{reward}' does not apply to 1 of the first 3 prompts, from which it learns"
            in text
        )
        assert (
            "expected one gold answer, a string, a number or a truth value, found a list of 2"
            in text
        )
        assert "(prompts, row 1)" in text
        alone = json.dumps(rows[1]) + "\n"
        code, text = checked_gold(config, "rows.jsonl", alone, reward)
        assert code == 2
        assert "(prompts, row 0)" in text


@pytest.mark.parametrize("form", ["list", "mapping"])
@pytest.mark.slow(after=1)
def test_accepted_answers_are_tried_and_their_neighbours_are_wrong(config, form):
    rows = [
        {"prompt": f"p{n}", "answer": [f"{name} 1", f"Saint {name}"]}
        for n, name in enumerate(("Paul", "Anne", "John", "Mary"))
    ]
    if form == "mapping":
        rows = [
            {**row, "answer": {"value": row["answer"][0], "aliases": row["answer"]}} for row in rows
        ]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    for reward in ("exact_answer", "answer_f1"):
        code, text = checked_gold(config, "rows.jsonl", content, reward)
        assert code == 0, text
        assert "the right answer to the first prompt: 'Paul 1'" in text
        assert "does not apply" not in text
        assert "gives less than 1" not in text
        for kind in ("gold with a changed digit", "another row's gold", "two answers"):
            assert (f"{kind} 0 of 4 " in f"{text} ") == (reward == "exact_answer"), kind


@pytest.mark.parametrize(
    ("judges", "named"), [("judges = True", True), ("", True), ("judges = False", False)]
)
def test_a_reward_whose_right_completion_gets_less_than_1_is_named_with_the_row(
    config, judges, named
):
    """Unless it says that 1 does not mean right: a length has no perfect value."""
    module = f"letters_{len(judges)}"  # imported once in a process
    Path(f"{module}.py").write_text(
        f"""
class Letters:
    {judges or "pass"}
    required_columns = {{"gold": "answer"}}

    def gold_completion(self, row):
        return row["answer"]

    def __call__(self, prompts, completions, *, answer, **columns):
        return [float(text == gold) * (1 - 0.2 * ("e" in gold)) for text, gold in
                zip(completions, answer, strict=True)]
"""
    )
    rows = "".join(
        json.dumps({"prompt": f"p{n}", "answer": gold}) + "\n" for n, gold in enumerate("abcde")
    )
    code, text = checked_gold(config, "rows.jsonl", rows, f"{module}:Letters")
    assert code == 0, text
    note = (
        "reward 'Letters' gives less than 1 to the gold answer of 1 of the first 5 "
        "prompts itself: 'e' gets 0.8 (prompts, row 4)"
    )
    assert (note in text) == named, text
