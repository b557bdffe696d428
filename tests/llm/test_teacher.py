"""A language model as a teacher: a larger one of the same vocabulary, or an earlier self."""

import copy

import pytest
import torch
from tests.command_line import call
from transformers import AutoModelForCausalLM

import groupwise
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise.rewards import Scores
from groupwise.testing import updater_of
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

LARGER = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 300}
WEIGHT = 0.5


def gradient_of(policy, rollouts, teacher):
    """The gradient of an update without reward, in micro-batches, and its metrics."""
    algorithm = GRPO(GRPO.Config(teacher_weight=WEIGHT))
    algorithm.take_teacher(policy.provides)
    updater = updater_of(policy, algorithm, 60)
    count = len(rollouts)
    scores = Scores(
        names=("reward",),
        weights=(1.0,),
        values=torch.zeros(count, 1, dtype=torch.float64),
        failed=torch.zeros(count, dtype=torch.bool),
    )
    of_teacher = updater.outputs(rollouts, algorithm.teacher, of=teacher)
    policy.zero_grad()
    metrics = updater.backward(
        scores=scores,
        rollouts=rollouts,
        outputs={f"teacher_{name}": value for name, value in of_teacher.items()},
    )
    return {name: p.grad for name, p in policy.named_parameters() if p.requires_grad}, metrics


def test_the_gradient_is_the_log_ratio_times_that_of_the_log_prob(
    make, rows, transformers_log_probs, rounding
):
    policy = make(temperature=0.7)
    teacher = make(model=LARGER, temperature=0.7)
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    gradients, metrics = gradient_of(policy, rollouts, teacher)

    def stated():
        with torch.no_grad():
            ratio = transformers_log_probs(teacher, rollouts)
            ratio = ratio - transformers_log_probs(policy, rollouts)
        policy.zero_grad()
        log_probs = policy(rollouts).log_probs.masked_fill(~rollouts.mask, 0.0)
        ((-WEIGHT * ratio * log_probs).sum(dim=1) / rollouts.lengths).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
        return gradient, -ratio[rollouts.mask].mean()

    ours = torch.cat([gradients[name].flatten() for name, _ in policy.named_parameters()])
    rounding.same(stated, (ours, metrics["teacher_kl"]))


def test_a_policy_learns_nothing_from_itself(make, rows, rounding):
    policy = make(temperature=1.3)
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))

    def learned():
        gradients, metrics = gradient_of(policy, rollouts, copy.deepcopy(policy))
        return torch.cat([g.flatten() for g in gradients.values()]), metrics["teacher_kl"]

    nothing = torch.zeros(sum(p.numel() for p in policy.parameters()))
    # Another batch size rounds log-probs differently.
    rounding.same(learned, (nothing, 0.0), unit=1.0)


def test_other_vocabularies_are_refused_before_weights_are_loaded(saved, tmp_path):
    policy = {"name": "language_model", "model": str(saved()), "max_new_tokens": 4}
    rest = {
        "prompts": [{"prompt": f"{n}+1="} for n in range(4)],
        "rewards": [lambda completions: [0.0 for _ in completions]],
        "evaluation": {"prompts": 0},
        "output": tmp_path / "run",
    }
    other, smaller = saved(pad="<pad>"), saved(vocab_size=200)
    for folder, message in {
        other: r"teacher: the teacher reads the policy's tokens, .* differ in \d+ entries",
        smaller: r"teacher: .* has logits for 200 tokens, expected at least 258, those that the",
    }.items():
        with pytest.raises(UserError, match=message):
            groupwise.train(policy=policy, teacher={"model": str(folder)}, **rest)
    assert not (tmp_path / "run").exists()
    LanguageModel.check_teacher(
        Settings(model=str(saved())), LanguageModel, Settings(model=str(saved(**LARGER)))
    )


def test_check_counts_the_memory_of_the_teacher(saved, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(
        f"policy: {{name: language_model, model: {saved()}, max_new_tokens: 4}}\n"
        f"teacher: {{model: {saved(**LARGER)}}}\n"
        "prompts: {name: rows, rows: [{prompt: '1+1=', answer: 2}, {prompt: '1+2=', answer: 3}]}\n"
        "rewards: [{name: numeric_answer, weight: 0}]\n"
    )
    printed = call("check", config).output
    lines = {line.rpartition("  ")[0].strip(): line.split()[-2:] for line in printed.splitlines()}
    for name, of in {"weights": {}, "teacher: weights": LARGER}.items():
        model = AutoModelForCausalLM.from_pretrained(saved(**of))
        bytes_of_weights = sum(p.nbytes for p in model.parameters())
        assert lines[name] == [f"{bytes_of_weights / 2**20:.1f}", "MiB"]
