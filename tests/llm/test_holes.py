"""Rollouts with tokens of a tool: later tokens attend to them, and they are never trained on."""

import json
from dataclasses import replace

import pytest
import torch

from groupwise import Sampler, train

TURNS = [(2, 3, 1), (1, 7, 2), (4, 1, 3), (3, 0, 0), (1, 2, 4), (2, 5, 2)]
"""For each rollout the numbers of tokens: sampled, of a tool, sampled again."""
ROWS = [{"prompt": "a longer prompt: 12+34="}, {"prompt": "Hi"}, {"prompt": "7-5"}]


@pytest.fixture
def policy(request, make):
    return make(getattr(request, "param", "qwen2"), max_new_tokens=10)


def with_tool_answers(policy, gap=0):
    """Sampled rollouts with a tool's answer in the middle of each, after `gap` unused positions."""
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(6))
    width = 12 + gap
    ids = torch.randint(2, 200, (6, width), generator=torch.Generator().manual_seed(3))
    mask, attention = torch.zeros(2, 6, width, dtype=torch.bool)
    for row, (first, tool, second) in enumerate(TURNS):
        start = first + gap
        mask[row, :first] = mask[row, start + tool : start + tool + second] = True
        attention[row] = mask[row]
        attention[row, start : start + tool] = True
    own = rollouts.trajectory["completion_ids"]
    kept = min(width, own.shape[1])
    ids[:, :kept] = torch.where(mask[:, :kept], own[:, :kept], ids[:, :kept])
    trajectory = {**rollouts.trajectory, "completion_ids": ids, "attention": attention}
    return replace(rollouts, mask=mask, sampler_log_probs=None, trajectory=trajectory)


def gradient(policy, total):
    policy.zero_grad(set_to_none=True)
    total.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()]).double()


def slopes(rollouts):
    return torch.linspace(-1, 1, rollouts.mask.numel()).view(rollouts.mask.shape)


@pytest.mark.parametrize("gap", [0, 2])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("policy", ["qwen2", "gpt2", "gemma2", "gemma3"], indirect=True)
@pytest.mark.slow(after=6)
def test_log_probs_are_conditioned_on_tool_tokens(
    policy, transformers_log_probs, allow, share, gap, rounding
):
    allow(policy, training=policy.ability.training if share else "plain")
    rollouts = with_tool_answers(policy, gap)
    ours = policy(rollouts).log_probs
    assert (ours[rollouts.mask] < 0).all()
    assert not ours[~rollouts.mask].any()
    weights = slopes(rollouts)

    def results(log_probs):
        # The sum ignores the mask: positions without a decision add no gradient.
        return log_probs, gradient(policy, (weights * log_probs).sum())

    rounding.same(lambda: results(transformers_log_probs(policy, rollouts)), results(ours))


@pytest.mark.parametrize("share", [True, False])
def test_no_split_into_microbatches_changes_the_gradient(make, share, rounding):
    policy = make(share_prompt=share, temperature=0.7)
    rollouts = with_tool_answers(policy)
    splits = [policy.microbatches(rollouts, n, cut_decisions=True) for n in (1, 24, 40, 10_000)]
    for parts in splits:
        assert sorted(row for rows, _ in parts for row in rows.tolist()) == list(range(6))
    # Also splits within a tool's answer and after the end of a row.
    cuts = [slice(0, 1), slice(1, 4), slice(4, 5), slice(5, 12)]
    splits.append([(rows, cut) for rows in torch.tensor([[5, 0, 2], [1, 4, 3]]) for cut in cuts])

    def gradient_by(parts):
        total = 0.0
        for rows, decisions in parts:
            piece = rollouts.select(rows)
            log_probs = policy(piece, decisions).log_probs
            weights = slopes(rollouts)[rows, : piece.mask.shape[1]][:, decisions]
            total = total + (weights * log_probs).sum()
        return gradient(policy, total)

    rounding.same(lambda: gradient_by(splits[-1]), *map(gradient_by, splits[:-1]))


def test_the_budget_counts_tool_tokens(policy):
    rollouts = with_tool_answers(policy)
    prompts = [len(ids) for ids in rollouts.trajectory["prompt_ids"]]
    parts = policy.microbatches(rollouts, 32, cut_decisions=True)
    for rows, decisions in parts:
        tokens = int(rollouts.extents[rows].sum())
        heads = {int(rollouts.groups[row]): prompts[row] for row in rows}
        assert decisions.stop == int(rollouts.extents[rows].max())
        assert len(rows) == 1 or tokens + sum(heads.values()) <= 32
    assert len(parts) > 2


def test_without_tools_attention_is_the_mask_of_decisions(policy):
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(6))
    assert torch.equal(rollouts.trajectory["attention"], rollouts.mask)
    assert rollouts.facts["completion_ids"] == [
        row[own].tolist()
        for row, own in zip(rollouts.trajectory["completion_ids"], rollouts.mask, strict=True)
    ]


class WithTool(Sampler):
    """Inserts a tool's answer of 4 tokens after the first sampled token."""

    def __init__(self, policy):
        self.policy, self.version = policy, -1

    def follow(self, policy, name, version):
        self.version = version

    def sample(self, prompts, **options):
        rollouts = self.policy.sample(prompts, **options)

        def widened(column, answer):
            between = torch.full((len(column), 4), answer, dtype=column.dtype)
            return torch.cat([column[:, :1], between, column[:, 1:]], dim=1)

        own = rollouts.trajectory["completion_ids"]
        trajectory = {
            **rollouts.trajectory,
            "completion_ids": widened(own, 9),
            "attention": widened(rollouts.mask, True),
        }
        rollouts = replace(
            rollouts,
            mask=widened(rollouts.mask, False),
            sampler_log_probs=None,
            versions=torch.full((len(rollouts),), self.version),
            trajectory=trajectory,
        )
        return replace(rollouts, sampler_log_probs=self.policy(rollouts).log_probs)


def test_a_run_trains_only_on_sampled_tokens(policy, tmp_path, rounding):
    train(
        policy=policy,
        sampler=WithTool(policy),
        prompts=ROWS,
        rewards=[lambda completions, **_: [float(len(set(text))) for text in completions]],
        train={"steps": 2, "groups_per_step": 2, "group_size": 4, "microbatch": 60},
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
        **{"prompts.held_out": 0.0},
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    bound = rounding.ratio_bound(policy, ROWS[0])
    for step in map(json.loads, lines):
        assert step["mismatch/max"] <= bound
        assert step["grad_norm"] > 0
        assert step["trained_decisions"] == step["length"] * 8
