"""One picture that is not finite is a failed sample: the run goes on without it."""

import json
import math

import pytest
import torch

import groupwise
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.passes import latents

PROMPTS = [{"prompt": f"{letter} {animal}"} for letter in "abcdefgh" for animal in ("cat", "dog")]


@pytest.fixture
def spoiled(monkeypatch):
    """Noise that is NaN for some seeds; the set of spoiled seeds is returned, and may be filled."""
    normal, spoiled = latents._normal, set()

    def noise(seed, decisions, shape):
        start, rest = normal(seed, decisions, shape)
        return (start * math.nan if seed in spoiled else start), rest

    monkeypatch.setattr(latents, "_normal", noise)
    return spoiled


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"guidance": 3.0, "guidance_gradient": "conditional"},
        {"precision": "bf16", "lora": {"rank": 2}},
    ],
)
def test_a_picture_that_is_not_finite_changes_nothing_of_the_others(lab, spoiled, form):
    policy = lab.policy(**form)
    policy.begin(0)
    clean = policy.sample(lab.rows, group_size=3, seeds=range(6))
    assert clean.failures is None
    spoiled.add(0)
    policy.begin(0)
    rollouts = policy.sample(lab.rows, group_size=3, seeds=range(6))
    assert rollouts.failed.tolist() == [True, *[False] * 5]
    assert "not finite" in rollouts.failures[0]
    rest = range(1, 6)
    one, other = clean.select(rest), rollouts.select(rest)
    assert torch.equal(one.sampler_log_probs, other.sampler_log_probs)
    for left, right in zip(one.facts["pixels"], other.facts["pixels"], strict=True):
        assert torch.equal(left, right)
    if "precision" in form:
        assert math.isfinite(rollouts.facts["log_prob_error"][0])
    assert rollouts.sampler_log_probs.isfinite().all()
    assert all(column.isfinite().all() for column in rollouts.trajectory["path"])
    assert all(column.isfinite().all() for column in rollouts.trajectory.get("unconditional", ()))
    assert all(image.isfinite().all() for image in rollouts.facts["pixels"])


def test_its_gradient_is_that_of_the_others(lab, spoiled):
    spoiled.add(2)
    policy = lab.policy()
    rollouts = policy.sample(lab.rows, group_size=3, seeds=range(6))
    values = [1.0, 0.0, math.nan, 0.5, 0.2, 0.0]
    scores = lab.scores_of(values)
    gradients = []
    for own, judged in (
        (rollouts.select(~rollouts.failed), scores.select(~rollouts.failed)),
        (rollouts.select([0, 1, 3, 4, 5]), lab.scores_of([v for v in values if not math.isnan(v)])),
    ):
        policy.zero_grad()
        lab.updater(policy, FlowGRPO(), budget=2).backward(scores=judged, rollouts=own, outputs={})
        gradients.append(lab.gradient(policy))
    assert float(gradients[0].norm()) > 0
    assert torch.equal(*gradients)


def test_a_decoder_that_overflows_is_a_failed_sample(lab):
    policy = lab.policy()
    decode = policy.adapter.decode

    def overflows(latents):
        images = decode(latents).clone()
        images[1, 0, 3, 3] = math.nan
        return images

    policy.adapter.decode = overflows
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    assert rollouts.failed.tolist() == [False, True, False, False]
    assert rollouts.facts["pixels"][1].isfinite().all()


@pytest.mark.parametrize("algorithm", ["flow_grpo", {"name": "grpo", "beta": 0.1}], ids=str)
def test_a_run_with_one_spoiled_picture_goes_on_and_shows_it(lab, spoiled, tmp_path, algorithm):
    seen = []

    def redness(completions, pixels, **_):
        assert all(image.isfinite().all() for image in pixels)
        seen.append(len(completions))
        return lab.redness(completions)

    policy = lab.policy()
    sample = policy.sample

    def spoiling(prompts, *, seeds, **options):
        spoiled.add(seeds[1])  # one of every batch
        return sample(prompts, seeds=seeds, **options)

    policy.sample = spoiling
    result = groupwise.train(
        policy=policy,
        algorithm=algorithm,
        prompts={"name": "rows", "rows": PROMPTS, "held_out": 0.5},
        rewards=[redness],
        train={"steps": 2, "groups_per_step": 2, "group_size": 4, "learning_rate": 1e-3},
        evaluation={"prompts": 3},
        output=tmp_path / "run",
        quiet=True,
    )
    rows = map(json.loads, (result.folder / "metrics.jsonl").read_text().splitlines())
    steps = [row for row in rows if "loss" in row]
    assert [row["failed"] for row in steps] == [1, 1]
    assert all(row["skipped_updates"] == 0 < row["grad_norm"] for row in steps)
    assert seen == [2, 7, 7, 2]
    assert result.after["failed"] == 1
    samples = (result.folder / "samples" / "after.jsonl").read_text().splitlines()
    failed = [sample for sample in map(json.loads, samples) if "failed" in sample]
    assert len(failed) == 1
    assert (result.folder / failed[0]["image"]).exists()
    page = (result.folder / "report.html").read_text()
    assert "failed: the model's outputs in float32 are not finite" in page.replace("&#x27;", "'")
