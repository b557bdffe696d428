"""Rewards that learn from a verifier, which the policy never sees."""

import json
from typing import Literal

import pytest
import torch
from accelerate.utils import gather_object
from tests.core.launching import call
from tests.repeated import repeatable
from torch import nn

from groupwise import train
from groupwise.kit.errors import UserError
from groupwise.learned import Examples, Learned, Learning
from groupwise.rewards import Reward
from groupwise.scoring.scorer import Scorer


class Counts(Learned):
    """A linear network, initially 0, on the number of times each symbol is in a completion."""

    class Config(Learning):
        symbols: Literal[3] = 3

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(config.symbols, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @property
    def network(self):
        return self.linear

    def inputs(self, rollouts):
        return [self.read(text) for text in rollouts.completions]

    def read(self, text):
        return torch.tensor([float(text.count(symbol)) for symbol in "012"])

    def logits(self, inputs):
        return self.linear(torch.stack(list(inputs))).squeeze(1)

    def __call__(self, completions, **columns):
        return self.logits([self.read(text) for text in completions]).sigmoid().tolist()


def counts(**settings):
    return Counts(Counts.Config(**{"labels": "verifier", "learning_rate": 0.3} | settings))


def verifier(completions, **columns):
    """Right: more 1s than 2s. No label for the completion "0"."""
    return [
        None if text == "0" else float(text.count("1") > text.count("2")) for text in completions
    ]


def examples(count, seed=0):
    """Linearly separable examples: right if the first number is larger than the second."""
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return Examples(list(inputs), (inputs[:, 0] > inputs[:, 1]).float())


# ---- learning


def test_a_separable_problem_is_learned_in_a_few_updates():
    reward = counts(examples=16)
    first = reward.learn(examples(64))
    assert first["agreement"] == pytest.approx(float(1 - examples(64).labels.mean()))
    assert (first["ranking"], first["overrated"] + first["labels"]) == (0.5, 0.5)
    for number in range(3):
        last = reward.learn(examples(64, seed=number + 1))
    assert last["agreement"] > 0.9
    assert last["ranking"] > 0.97
    assert last["loss"] < first["loss"] / 2
    assert reward.rounds == 4


def test_agreement_is_measured_before_learning_from_the_same_examples():
    reward, batch = counts(epochs=200), examples(32)
    assert reward.learn(batch)["ranking"] == 0.5
    assert reward.learn(batch)["ranking"] > 0.99


def test_a_tenth_of_a_round_is_older_examples():
    reward, batches = counts(examples=10**6), []
    update = reward._update
    reward._update = lambda part: batches.append(part) or update(part)
    for number in range(3):
        reward.learn(examples(45, seed=number))
    assert [len(batch) for batch in batches] == [45, 50, 50]
    earlier = {tuple(x.tolist()) for n in range(2) for x in examples(45, seed=n).inputs}
    assert sum(tuple(x.tolist()) in earlier for x in batches[2].inputs) == 5


def test_a_uniform_sample_of_older_examples_is_kept():
    reward = counts(memory=100, learning_rate=1e-3)
    for number in range(20):
        numbers = torch.arange(50.0) + 50 * number
        reward.learn(Examples([x.expand(3) for x in numbers], (numbers % 2)))
    memory = torch.tensor([float(inputs[0]) for inputs in reward._old.inputs])
    assert len(memory) == 100
    assert 400 < memory.mean() < 600
    assert all(reward._old.labels == memory % 2)


def test_labels_of_one_class_are_learned_only_with_older_ones_of_the_other():
    reward, batch = counts(replay=0.5), examples(20)
    one_class = Examples(batch.inputs, torch.ones(20))
    before = reward.linear.weight.clone()
    metrics = reward.learn(one_class)
    assert metrics["one_class"] == 1
    assert "loss" not in metrics
    assert "ranking" not in metrics
    assert torch.equal(reward.linear.weight, before)
    assert "loss" in reward.learn(Examples(batch.inputs, torch.zeros(20)))
    assert not torch.equal(reward.linear.weight, before)


# ---- in a run


def run(lab, folder, reward, *, steps=4, resume=False, teacher=verifier, quiet=True, **options):
    return train(
        policy=lab.Tabular(),
        algorithm="grpo",
        prompts=lab.rows(),
        rewards=[reward],
        watch=[teacher],
        train={"groups_per_step": 2, "group_size": 4, "learning_rate": 0.3, "steps": steps},
        evaluation={"prompts": 1},
        output=folder,
        resume=resume,
        quiet=quiet,
        **{"prompts.held_out": 0.3, **options},
    )


def lines(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row]


def test_the_policy_never_sees_the_verifier(lab, tmp_path):
    """Rewards and metrics of the policy come only from the learned reward."""
    reward = counts()
    result = run(lab, tmp_path / "run", reward)
    for row in lines(tmp_path / "run"):
        assert row["reward"] == row["rewards/Counts"]
        assert "rewards/verifier" not in row
        assert {"Counts/agreement", "Counts/labels"} <= row.keys()
    assert reward.rounds == 4
    assert "watch/verifier" in result.after
    # At first all rewards are equal, so the first step has no variance.
    assert lines(tmp_path / "run")[0]["zero_variance"] == 1


def test_completions_without_a_label_are_not_learned_from(lab, tmp_path):
    reward = counts()
    run(lab, tmp_path / "run", reward)
    assert sum(row["Counts/unlabelled"] for row in lines(tmp_path / "run")) > 0
    assert all(inputs[1:].any() for inputs in reward._old.inputs)


def test_the_reward_learns_every_so_many_steps(lab, tmp_path):
    calls = []

    def teacher(completions, **columns):
        calls.append(len(completions))
        return verifier(completions)

    reward = counts(every=2, labels="teacher")
    run(lab, tmp_path / "run", reward, steps=5, teacher=teacher, **{"evaluation.prompts": 0})
    assert ["Counts/agreement" in row for row in lines(tmp_path / "run")] == [0, 1, 0, 1, 0]
    assert calls == [8, 8]
    run(lab, tmp_path / "never", counts(every=0))
    assert not any(n.startswith("Counts/") for row in lines(tmp_path / "never") for n in row)


def test_a_resumed_run_equals_an_uninterrupted_one(lab, tmp_path):
    expected, halved = counts(), counts()
    uninterrupted = run(lab, tmp_path / "through", expected)
    run(lab, tmp_path / "halved", counts(), steps=2)
    resumed = run(lab, tmp_path / "halved", halved, resume=True)
    expected_lines, resumed_lines = (
        [repeatable(r) for r in lines(tmp_path / n)] for n in ("through", "halved")
    )
    assert expected_lines == resumed_lines
    assert torch.equal(uninterrupted.policy.table, resumed.policy.table)
    assert torch.equal(expected.linear.weight, halved.linear.weight)
    assert expected.rounds == halved.rounds == 4
    assert torch.equal(torch.stack([*expected._old.inputs]), torch.stack([*halved._old.inputs]))


def test_the_state_of_another_network_is_refused():
    state = {**counts().state_dict(), "network": {"other": torch.zeros(1)}}
    with pytest.raises(ValueError, match="the saved network has parameters of other names"):
        counts().load_state_dict(state)


def weights_of_each_process(lab, folder):
    reward = counts()
    run(lab, folder, reward, steps=3)
    return gather_object([reward.linear.weight.tolist()])


def test_two_processes_learn_the_same_reward_as_one(lab, tmp_path):
    two = call(weights_of_each_process, tmp_path, 2)
    reward = counts()
    run(lab, tmp_path / "alone", reward, steps=3)
    assert two[0] == two[1]
    torch.testing.assert_close(torch.tensor(two[0]), reward.linear.weight.detach())


# ---- what is refused


def check_refused(lab, message, **sections):
    data = {
        "prompts": {"name": "rows", "rows": lab.rows()},
        "rewards": [{"name": "tests.core.test_learned:Counts", "labels": "verifier"}],
        "watch": ["tests.core.test_learned:verifier"],
    }
    with pytest.raises(UserError, match=message) as caught:
        train({**data, **sections}, policy=lab.Tabular())
    assert len(str(caught.value).splitlines()) == 1


def test_a_verifier_that_is_also_a_trained_reward_is_refused(lab):
    learns = {"name": "tests.core.test_learned:Counts", "labels": "verifier"}
    trained = "tests.core.test_learned:verifier"
    check_refused(
        lab, r"rewards\.0\.labels: no watched reward 'verifier'; list the verifier", watch=[]
    )
    check_refused(
        lab,
        r"rewards\.0\.labels: no watched reward 'verifer', did you mean 'verifier'\?; list",
        rewards=[{**learns, "labels": "verifer"}],
    )
    check_refused(
        lab,
        r"rewards\.0\.labels: expected a watched reward; the policy is trained on 'verifier'",
        rewards=[learns, trained],
        watch=[],
    )
    check_refused(
        lab,
        r"rewards\.0\.labels: 'verifier' is the same verifier as the trained reward 'twin'",
        rewards=[learns, {"name": trained, "label": "twin"}],
    )
    check_refused(
        lab,
        r"watch\.1: a reward that learns must be trained on",
        watch=[trained, {**learns, "label": "other"}],
    )
    check_refused(
        lab, r"rewards\.0\.replay: expected less than 1", rewards=[{**learns, "replay": 1}]
    )


def test_labels_outside_0_to_1_are_refused(lab, tmp_path):
    def verifier(completions, **columns):
        return [2.0 * len(text) for text in completions]

    with pytest.raises(
        UserError, match=r"'Counts' cannot learn: expected labels from 0 to 1, .*'ver"
    ):
        run(lab, tmp_path / "run", counts(), teacher=verifier)


def test_a_warning_about_one_class_is_printed_once(lab, tmp_path, capsys):
    def verifier(completions, **columns):
        return [1.0] * len(completions)

    run(lab, tmp_path / "run", counts(), teacher=verifier, quiet=False)
    output = capsys.readouterr()
    assert (output.out + output.err).count("reward 'Counts' learned nothing in this step") == 1


def test_a_learned_reward_cannot_be_isolated(lab):
    with pytest.raises(UserError, match="has a state, which would be lost if it"):
        Scorer([Reward(name="learned", function=counts(), isolate=True)])
