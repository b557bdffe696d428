"""Law 1: however an update is split into micro-batches, its gradient is that of the whole loss."""

import pytest
import torch

import groupwise
from groupwise.weights import KeptWeights
from groupwise_algorithms.cispo import CISPO
from groupwise_algorithms.reinforce_pp import ReinforcePP
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.algorithms.flow_guard import FlowGuard

FORMS = {
    "plain": ({}, {}),
    "guided, kl": ({"guidance": 4.0}, {"beta": 0.2}),
    "guided, one branch": ({"guidance": 4.0, "guidance_gradient": "conditional"}, {"beta": 0.2}),
    "guided, published kl": ({"guidance": 4.0}, {"beta": 0.2, "kl": "published"}),
    "window": (
        {"window": {"kind": "random", "size": 2}, "shared_noise": True},
        {"beta": 0.2, "clip_low": 1e-3},
    ),
    "guard": ({"sde": "dance", "noise_level": 0.3}, {"kind": FlowGuard, "scale": "batch"}),
    "cispo": ({}, {"kind": CISPO, "clip_high": 0.05, "beta": 0.2, "kl": "exact"}),
    "reinforce++": ({}, {"kind": ReinforcePP}),
    "lora": ({"lora": {"rank": 2}, "guidance": 2.0}, {"beta": 0.2}),
    "flux": ({"architecture": "flux", "guidance": 3.5}, {"beta": 0.2, "normalize": "constant"}),
}
VALUES = [0.5, 0.0, 2.0, 0.0, 1.0, 0.25, 0.3, 0.3, 0.3]  # the last group has no gradient


def stale_policy(lab, form):
    """A policy some updates after sampling, its rollouts, and old and reference outputs."""
    settings, config = FORMS[form]
    kind = config.get("kind", FlowGRPO)
    config = {"clip_low": 0.05, **{key: value for key, value in config.items() if key != "kind"}}
    policy = lab.policy(**settings)
    algorithm = kind(kind.Config(**config))
    kept = KeptWeights(policy)
    algorithm.prepare(policy, kept)
    kept.keep("reference")
    rows = [*lab.rows, {"prompt": "no bird"}]
    rollouts = policy.sample(rows, group_size=3, seeds=range(9))
    outputs = {"old_log_probs": rollouts.sampler_log_probs}
    with torch.no_grad(), kept.using("reference"):
        outputs["reference_mean"] = outputs["old_mean"] = policy(rollouts).extra["mean"]
    lab.nudge(policy, size=0.02)
    return policy, algorithm, rollouts, outputs


def gradient_in_one_pass(lab, policy, algorithm, rollouts, outputs, *, first):
    """The gradient and the loss over all rollouts, in one backward pass."""
    policy.zero_grad()
    targets = algorithm.targets(lab.scores_of(VALUES), rollouts, {})
    batch = {**targets, **outputs, "mask": rollouts.mask}
    current = policy(rollouts)
    assert (current.log_probs - outputs["old_log_probs"]).abs().max() > 1e-3
    if first:
        batch["old_log_probs"] = current.log_probs.detach()
        batch["old_mean"] = current.extra["mean"].detach()
    loss = algorithm.loss(current, batch).sum()
    loss.backward()
    gradient = lab.gradient(policy)
    assert float(gradient.norm()) > 1e-3
    return {"gradient": gradient, "loss": float(loss.detach())}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow(after=1)
def test_any_split_into_microbatches_gives_the_same_gradient(lab, form, first, rounding):
    policy, algorithm, rollouts, outputs = stale_policy(lab, form)

    def in_one_pass():
        return gradient_in_one_pass(lab, policy, algorithm, rollouts, outputs, first=first)

    results = []

    def check(budget=16384):
        policy.zero_grad()
        options = {"outputs": outputs, "budget": budget, "first": first}
        metrics = lab.update(policy, algorithm, rollouts, values=VALUES, **options)
        results.append({"gradient": lab.gradient(policy), "loss": metrics["loss"]})
        assert ("mismatch/mean" in metrics) == first

    for budget in (1, 4, 27) if not first else (4,):
        check(budget)

    def shuffled(rollouts, budget, *, cut_decisions):
        order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0))
        steps = rollouts.mask.shape[1]
        pieces = [(order[:4], slice(0, 1)), (order[:4], slice(1, steps))]
        return pieces + [(row.unsqueeze(0), slice(None)) for row in order[4:]]

    policy.microbatches = shuffled
    check()
    rounding.same(in_one_pass, *results, unit=1e-2)  # losses may cancel


def test_groups_of_equal_reward_take_no_forward_pass(lab):
    policy, algorithm, rollouts, outputs = stale_policy(lab, "plain")
    sizes = lab.calls(policy)
    metrics = lab.update(policy, algorithm, rollouts, values=VALUES, outputs=outputs)
    assert sum(sizes) == 6 * 4
    assert metrics["trained_decisions"] == 24


def test_outputs_of_all_microbatches_are_joined(lab, rounding):
    policy, _, rollouts, _ = stale_policy(lab, "guided, kl")
    outputs = lab.updater(policy, FlowGRPO(), budget=4).outputs(rollouts, {"mean", "log_probs"})

    def whole():
        current = policy(rollouts)
        return {"log_probs": current.log_probs, "mean": current.extra["mean"]}

    rounding.same(whole, {name: outputs[name] for name in ("log_probs", "mean")})


@pytest.mark.parametrize(("gradient", "saved"), [("both", 0), ("conditional", 2)])
def test_the_reference_is_evaluated_once_for_the_rollouts_of_a_step(
    lab, tmp_path, monkeypatch, gradient, saved
):
    window = {"kind": "fixed", "size": 2}
    policy = lab.policy(guidance=2.0, guidance_gradient=gradient, window=window)
    lab.nudge(policy)
    sizes, switches, using = lab.calls(policy), [], KeptWeights.using

    def counted(kept, name):
        if name is not None:
            switches.append((name, len(sizes)))
        return using(kept, name)

    monkeypatch.setattr(KeptWeights, "using", counted)
    groupwise.train(
        policy=policy,
        algorithm={"name": "flow_grpo", "beta": 0.1},
        prompts=[{"prompt": f"{letter} cat"} for letter in "abcdef"],
        rewards=[lab.redness],
        train={
            "steps": 2,
            "groups_per_step": 2,
            "group_size": 3,
            "epochs": 2,
            "updates_per_rollout": 2,
            "learning_rate": 1e-3,
        },
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
    )
    # 10 passes for sampling and 4 for the reference. The 4 updates have 2 micro-batches each, of 2
    # passes. In the first one the sampler's unconditional branch is still valid, and is reused
    # where it has no gradient.
    passes_per_step = 10 + 4 + 4 * 4 - saved
    assert switches == [("reference", 10), ("reference", passes_per_step + 10)]
    assert len(sizes) == 2 * passes_per_step


def test_guard_compares_with_the_means_at_the_beginning_of_the_step(lab, tmp_path):
    """In the first update they are the current means; later ones compute them beforehand."""
    policy, twin = (lab.policy(window={"kind": "fixed", "size": 2}) for _ in range(2))
    drawn, sample = [], policy.sample
    policy.sample = lambda *args, **more: drawn.append(sample(*args, **more)) or drawn[-1]
    batches, algorithm = [], FlowGuard(FlowGuard.Config(clip_low=0.1))
    loss = algorithm.loss
    algorithm.loss = lambda current, batch: batches.append((current, batch)) or loss(current, batch)
    groupwise.train(
        policy=policy,
        algorithm=algorithm,
        prompts=[{"prompt": f"{letter} cat"} for letter in "ab"],
        rewards=[lab.redness],
        train={
            "steps": 1,
            "groups_per_step": 2,
            "group_size": 2,
            "updates_per_rollout": 2,
            "learning_rate": 1e-3,
        },
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
    )
    assert len(batches) == 4  # two updates, a decision at a time
    for current, batch in batches[:2]:
        assert torch.equal(current.extra["mean"], batch["old_mean"])
    with torch.no_grad():
        first_means = twin(drawn[0]).extra["mean"].flatten(0, 1).flatten(1)
    for current, batch in batches[2:]:
        assert (current.extra["mean"] - batch["old_mean"]).abs().max() > 1e-4
        distances = torch.cdist(batch["old_mean"].flatten(0, 1).flatten(1), first_means)
        assert distances.amin(dim=1).max() < 1e-3
        assert distances.amax(dim=1).min() > 1


@pytest.mark.parametrize("form", ["plain", "flux", "lora"])
def test_every_trained_weight_gets_a_gradient(lab, form):
    """Otherwise processes that average their gradients would wait for each other."""
    policy, algorithm, rollouts, outputs = stale_policy(lab, form)
    lab.update(policy, algorithm, rollouts, values=VALUES, outputs=outputs)
    without = [n for n, p in policy.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
