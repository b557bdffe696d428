"""examples/bare.py: its updates are those of a run, and it samples what it trains on."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import groupwise
from groupwise.algorithms.grpo import GRPO

EXAMPLES = Path(__file__).parents[1] / "examples"
GROUPS, GROUP_SIZE = 3, 8


@pytest.fixture(scope="module")
def bare():
    spec = importlib.util.spec_from_file_location("bare", EXAMPLES / "bare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def parts(bare):
    """Model, tokenizer and optimizer, as in the example."""
    model = AutoModelForCausalLM.from_pretrained(bare.BASE).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=bare.LEARNING_RATE, weight_decay=0.0)
    return model, AutoTokenizer.from_pretrained(bare.BASE), optimizer


class Recording(GRPO):
    """GRPO that keeps the advantages of its first update."""

    recorded = None

    def targets(self, *arguments):
        targets = super().targets(*arguments)
        if self.recorded is None:
            self.recorded = targets["advantages"]
        return targets


def run(bare, folder, epochs):
    """One step of the real loop; its metrics, advantages [B], and rows of what was sampled."""
    sampled, algorithm = [], Recording()

    def right(prompts, completions, completion_ids, answer):
        rewards = [bare.reward(*pair) for pair in zip(completions, answer, strict=True)]
        sampled.extend(zip(prompts, completions, completion_ids, answer, strict=True))
        return rewards

    groupwise.train(
        EXAMPLES / "arithmetic.yaml",
        rewards=[right],
        algorithm=algorithm,
        output=str(folder),
        quiet=True,
        evaluation={"prompts": 0},
        **{
            "train.steps": 1,
            "train.epochs": epochs,
            "train.groups_per_step": GROUPS,
            "train.group_size": GROUP_SIZE,
            "train.learning_rate": bare.LEARNING_RATE,
            "train.warmup_steps": 0,
            "policy.max_new_tokens": bare.MAX_NEW_TOKENS,
        },
    )
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    return json.loads(line), algorithm.recorded, sampled


def groups_of(bare, model, tokenizer, sampled):
    """The rollouts of the real loop as the example has them, and their rewards [B]."""
    groups, rewards = [], []
    for start in range(0, len(sampled), GROUP_SIZE):
        prompts, texts, ids, answers = zip(*sampled[start : start + GROUP_SIZE], strict=True)
        assert len(set(prompts)) == 1
        prompt = tokenizer(prompts[0], return_tensors="pt").input_ids[0]
        rows = [torch.as_tensor(row) for row in ids]
        lengths = torch.tensor([len(row) for row in rows])
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
        with torch.no_grad():
            old = bare.log_probs(model, prompt, padded)
        pairs = zip(texts, answers, strict=True)
        rewards.append(torch.tensor([bare.reward(*pair) for pair in pairs]))
        groups.append(bare.Group(prompt, padded, mask, old, bare.advantages(rewards[-1])))
    return groups, torch.cat(rewards)


def test_a_step_is_that_of_a_run(bare, parts, tmp_path, rounding):
    """Of two updates, so that one is on rollouts of older weights."""
    epochs = 2
    model, tokenizer, optimizer = parts
    metrics, advantages, sampled = run(bare, tmp_path / "run", epochs)
    groups, rewards = groups_of(bare, model, tokenizer, sampled)
    assert metrics["zero_variance"] < 1
    assert rewards.mean().item() == pytest.approx(metrics["reward"])
    torch.testing.assert_close(torch.cat([group.advantages for group in groups]), advantages)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def updates():
        """The loss, whose terms of about 1 cancel, and the gradient's norm: means, as logged."""
        model.load_state_dict(before[0])
        optimizer.load_state_dict(copy.deepcopy(before[1]))
        each = [bare.update(model, optimizer, groups) for _ in range(epochs)]
        return torch.tensor(each).mean(dim=0).tolist()

    rounding.same(updates, [metrics["loss"], metrics["grad_norm"]], unit=1.0, digits=6)
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert distance(model, trained) < 0.01 * distance(
        trained, AutoModelForCausalLM.from_pretrained(bare.BASE)
    )


def distance(one, other):
    """The norm of the difference of all weights."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return torch.stack([(a - b).detach().norm() for a, b in pairs]).norm().item()


def test_a_completion_ends_with_its_end_token(bare, parts, rounding):
    model, tokenizer, _ = parts
    torch.manual_seed(0)
    prompt = tokenizer("11 + 22 + 33 + 44 =\n", return_tensors="pt").input_ids[0]
    ids, mask, old = bare.sample(model, prompt, 16)
    assert len(set(mask.sum(dim=1).tolist())) > 1
    for row, chosen in zip(ids, mask, strict=True):
        ends = (row == tokenizer.eos_token_id).nonzero().flatten().tolist()
        length = ends[0] + 1 if ends else len(row)
        assert chosen.tolist() == [True] * length + [False] * (len(row) - length)
    rounding.same(lambda: bare.log_probs(model, prompt, ids)[mask], old[mask])


def test_the_example_runs(bare, monkeypatch, capsys):
    for name, value in {"STEPS": 2, "GROUPS": 2, "GROUP_SIZE": 4}.items():
        monkeypatch.setattr(bare, name, value)
    bare.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["step", "1"], ["step", "2"]]
