"""The gradient of an update depends neither on its micro-batches nor on its processes."""

import math

import pytest
import torch
from tests import rounding
from tests.core.launching import launch
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from groupwise import LogProbs
from groupwise.algorithms.grpo import GRPO
from groupwise.weights import KeptWeights
from groupwise_algorithms.dapo import DAPO
from groupwise_algorithms.dppo import DPPO
from groupwise_algorithms.dr_grpo import DrGRPO
from groupwise_algorithms.gmpo import GMPO
from groupwise_algorithms.gspo import GSPO
from groupwise_algorithms.reinforce_pp import ReinforcePP

FORMS = {
    "grpo": (GRPO, {}),
    "grpo kl": (GRPO, {"beta": 0.1}),
    "grpo kl k2, entropy": (GRPO, {"beta": 0.1, "kl": "k2", "entropy": 0.05}),
    "grpo batch scale": (GRPO, {"scale": "batch"}),
    "grpo constant": (GRPO, {"normalize": "constant"}),
    "grpo without truncated": (GRPO, {"mask_truncated": True}),
    "dr_grpo": (DrGRPO, {}),
    "dr_grpo kl": (DrGRPO, {"beta": 0.1}),
    "dr_grpo entropy": (DrGRPO, {"entropy": 0.05}),
    "dapo": (DAPO, {}),
    "dapo kl k1": (DAPO, {"beta": 0.1, "kl": "k1"}),
    "dapo entropy": (DAPO, {"entropy": 0.05}),
    "gspo": (GSPO, {"clip_low": 0.2, "clip_high": 0.3}),
    "dppo": (DPPO, {"max_divergence": 0.05}),
    "gmpo": (GMPO, {"clip_low": 0.1}),
    "importance": (GRPO, {"importance_cap": 1.05, "beta": 0.1}),
    "importance coupled": (GRPO, {"importance": "sequence", "importance_mode": "mask"}),
    "importance ratio": (GSPO, {"importance": "ratio", "clip_low": 0.2, "clip_high": 0.3}),
    "importance mask": (GRPO, {"importance": "ratio", "off_policy_mask": 0.02}),
}
# Group 0 is alive, 1 is dead, 2 has a missing reward, 3 is alive and its last rollout is empty.
VALUES = [1.0, 0.0, 0.25, 0.1, 0.1, 0.1, float("nan"), 2.0, -1.0, 0.0, 3.0, 1.0]
CHOSEN = [[1, 2, 0], [2, 0], [1, 1, 1, 1, 2], [0], [1, 0], [2, 2, 0], [1, 0], [1, 1, 0], [0]]
CHOSEN += [[2, 1, 2, 1, 2], [1, 2, 1, 0], []]


def setting(lab, form):
    """A policy changed after sampling; the algorithm; scored rollouts; log-probs for the loss."""
    kind, config = FORMS[form]
    algorithm = kind(kind.Config(**config))
    policy = lab.Tabular(prompts=4, seed=1)
    algorithm.prepare(policy, KeptWeights(policy))
    prompts = [row for row in lab.rows(4) for _ in range(3)]
    rollouts = lab.build(prompts, CHOSEN, group_size=3)
    rollouts.truncated[2] = True
    with torch.no_grad():
        old = policy(rollouts).log_probs
        policy.table += 0.3 * lab.Tabular(prompts=4, seed=2).table
        reference = lab.Tabular(prompts=4, seed=3)(rollouts).log_probs
    log_probs = {"old_log_probs": old, "reference_log_probs": reference}
    if "importance" in form:
        log_probs["sampler_log_probs"] = old + 0.3 * reference
    # The values at padding must not matter.
    log_probs = {k: v.masked_fill(~rollouts.mask, float("inf")) for k, v in log_probs.items()}
    return (
        policy,
        algorithm,
        rollouts,
        lab.scores_of(torch.tensor(VALUES, dtype=torch.float64)),
        log_probs,
    )


def full_gradient(lab, parts):
    """The gradient of the loss over all rollouts of the update in one pass."""
    policy, algorithm, rollouts, scores, log_probs = parts
    policy.zero_grad()
    targets = algorithm.targets(scores, rollouts, {})
    batch = {**targets, **log_probs, "mask": rollouts.mask}
    algorithm.loss(policy(rollouts), batch).sum().backward()
    gradient = lab.gradient(policy)
    assert float(gradient.norm()) > 1e-3
    return gradient


def updater_gradient(lab, budget, parts):
    policy, algorithm, rollouts, scores, log_probs = parts
    policy.zero_grad()
    policy.forward_sizes.clear()
    metrics = lab.updater(policy, algorithm, budget).backward(
        scores=scores, rollouts=rollouts, outputs=log_probs, first=False, corrected=True
    )
    return lab.gradient(policy), metrics


@pytest.mark.rounding
@pytest.mark.parametrize("form", FORMS)
def test_any_budget_gives_the_same_gradient(lab, form):
    parts = setting(lab, form)
    expected = full_gradient(lab, parts)
    metrics = []
    for budget in (1, 4, 7, 11):
        gradient, budget_metrics = updater_gradient(lab, budget, parts)
        assert lab.gap(gradient, expected) < 1e-10
        metrics.append(budget_metrics)
    rounding.same(lambda: updater_gradient(lab, 10_000, parts)[1], *metrics)
    parts[0].forward_sizes.clear()
    updater_gradient(lab, 10_000, parts)
    # Rollouts without a gradient were skipped: weights of 0, or advantage 0 and no other term.
    dense = "kl" in form or "entropy" in form or form == "importance"
    assert sum(parts[0].forward_sizes) == (11 if dense else 7 - parts[1].config.mask_truncated)


@pytest.mark.parametrize(
    "form",
    [n for n, (kind, config) in FORMS.items() if not kind(kind.Config(**config)).couples_decisions],
)
def test_cutting_decisions_apart_in_any_order_gives_the_same_gradient(lab, form):
    """`Policy.microbatches` may cut rows and decisions in any way, `slice(None)` included."""
    parts = setting(lab, form)
    expected = full_gradient(lab, parts)

    def cut(rollouts, budget, *, cut_decisions):
        assert cut_decisions
        order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0))
        half = len(order) // 2
        edges = [(0, 1), (1, 3), (3, 9)]
        pieces = [(order[:half], slice(*edge)) for edge in edges]
        return pieces + [(row.unsqueeze(0), slice(None)) for row in order[half:]]

    parts[0].microbatches = cut
    gradient, _ = updater_gradient(lab, 0, parts)
    assert lab.gap(gradient, expected) < 1e-10
    log_probs = lab.updater(parts[0], parts[1], 0).outputs(parts[2], {"log_probs"})["log_probs"]
    with torch.no_grad():
        expected_log_probs = parts[0](parts[2]).log_probs
    assert log_probs.dtype == torch.float64
    assert torch.equal(log_probs[parts[2].mask], expected_log_probs[parts[2].mask])


def test_gspo_clips_the_ratio_of_whole_completions(lab):
    """Eq. 5 of the GSPO paper for each completion: s = (pi / pi_old) ^ (1 / length)."""
    policy, algorithm, rollouts, scores, other_log_probs = setting(lab, "gspo")
    targets = algorithm.targets(scores, rollouts, {})
    batch = {**targets, **other_log_probs, "mask": rollouts.mask}
    with torch.no_grad():
        log_probs = policy(rollouts).log_probs
        loss = algorithm.loss(policy(rollouts), batch)
    expected, clipped_count = [], 0
    for row, mask in enumerate(rollouts.mask):
        if mask.any():
            old = other_log_probs["old_log_probs"][row][mask].sum()
            ratio = ((log_probs[row][mask].sum() - old) / mask.sum()).exp()
            clipped_ratio = ratio.clamp(1 - 0.2, 1 + 0.3)
            advantage = targets["advantages"][row].double()
            expected.append(-min(ratio * advantage, clipped_ratio * advantage) / len(rollouts))
            clipped_count += bool(clipped_ratio != ratio)
    assert clipped_count
    assert float(loss.sum()) == pytest.approx(float(sum(expected)), rel=1e-6)


def test_gspo_keeps_the_advantage_of_each_decision(lab):
    """A completion has one ratio, but each decision's gradient has its own advantage."""
    mask = torch.tensor([[True, True, True, False]])
    log_probs = torch.tensor([[-1.0, -2.0, -0.5, 9.0]], requires_grad=True)
    advantages = torch.tensor([[2.0, 0.0, -1.0, 7.0]])
    batch = {"mask": mask, "old_log_probs": log_probs.detach() - 0.1 * mask}
    batch |= {"advantages": advantages, "weights": mask / 3}
    algorithm = GSPO(GSPO.Config(clip_low=0.5, clip_high=0.5))
    algorithm.loss(LogProbs(log_probs=log_probs), batch).sum().backward()
    expected = -advantages * mask * math.exp(0.1) / 3
    assert log_probs.grad == pytest.approx(expected)


def test_padding_width_and_order_of_rollouts_change_nothing(lab):
    parts = setting(lab, "grpo kl")
    expected = full_gradient(lab, parts)
    policy, algorithm, rollouts, scores, log_probs = parts
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    shuffled = {name: value[order] for name, value in log_probs.items()}
    gradient, _ = updater_gradient(
        lab, 6, (policy, algorithm, rollouts.select(order), scores.select(order), shuffled)
    )
    assert lab.gap(gradient, expected) < 1e-10


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("padding", [1e4, -1e4, float("inf"), -float("inf"), float("nan")])
def test_values_at_padding_never_reach_the_gradient(lab, form, padding):
    policy, algorithm, rollouts, scores, log_probs = setting(lab, form)
    with torch.no_grad():
        output = policy(rollouts)
    targets = {**algorithm.targets(scores, rollouts, {}), "mask": rollouts.mask}

    def gradients(fill):
        leaves = [
            value.masked_fill(~rollouts.mask, fill).requires_grad_()
            for value in (output.log_probs, output.entropy)
        ]
        batch = targets | {k: v.masked_fill(~rollouts.mask, -fill) for k, v in log_probs.items()}
        loss = algorithm.loss(LogProbs(log_probs=leaves[0], entropy=leaves[1]), batch).sum()
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [torch.zeros(()) if g is None else g for g in grads]

    for expected, gradient in zip(gradients(0.0), gradients(padding), strict=True):
        assert torch.equal(gradient, expected)


def test_denominators_count_skipped_rollouts(lab):
    """A group without variance has no gradient, but counts in the mean: it halves the gradient."""
    policy, algorithm = lab.Tabular(prompts=4), GRPO()
    live = lab.build([lab.rows()[0]] * 2, [[1, 0], [2, 0]], group_size=2)
    both = lab.build(
        [lab.rows()[0]] * 2 + [lab.rows()[1]] * 2, [[1, 0], [2, 0], [1, 0], [2, 0]], group_size=2
    )
    gradients = {}
    for rollouts, values in [(live, [1.0, 0.0]), (both, [1.0, 0.0, 0.1, 0.1])]:
        with torch.no_grad():
            log_probs = {"old_log_probs": policy(rollouts).log_probs}
        scores = lab.scores_of(torch.tensor(values))
        gradients[len(rollouts)], _ = updater_gradient(
            lab, 100, (policy, algorithm, rollouts, scores, log_probs)
        )
        assert policy.forward_sizes == [2]
    assert lab.gap(gradients[4] * 2, gradients[2]) < 1e-10


def test_an_update_without_variance_runs_no_forward_and_keeps_the_weights(lab):
    # The computed mean of three times 0.1 is not 0.1: rounding must not count as variance.
    trainer = lab.trainer(
        reward=lambda completions, **_: [0.1] * len(completions), steps=1, group_size=3
    )
    policy, before = trainer.policy, trainer.policy.table.detach().clone()
    metrics = lab.step(trainer)
    assert policy.forward_sizes == []
    assert torch.equal(policy.table, before)
    assert metrics["zero_variance"] == 1.0
    assert "grad_norm" not in metrics
    assert metrics["loss"] == metrics["trained_decisions"] == 0


def test_an_update_without_variance_but_with_kl_runs(lab):
    trainer = lab.trainer(
        algorithm=GRPO(GRPO.Config(beta=0.1)),
        reward=lambda completions, **_: [0.1] * len(completions),
        updates_per_rollout=2,
        steps=2,
    )
    metrics = [lab.step(trainer) for _ in range(2)]
    # Each of two steps: the reference log-probs of 16 rollouts at once, then two updates of 8.
    assert trainer.policy.forward_sizes == [16, 8, 8] * 2
    assert metrics[0]["grad_norm"] == pytest.approx(0.0, abs=1e-12)
    assert metrics[0]["kl"] == pytest.approx(0.0, abs=1e-12)
    assert metrics[0]["zero_variance"] == 1.0


def half_dead(completions, prompts, **_):
    """A reward that is constant, so without variance, on every other prompt."""
    return [
        0.5 if int(prompt.split()[1]) % 2 else text.count("1") + 0.01 * len(text)
        for text, prompt in zip(completions, prompts, strict=True)
    ]


@pytest.mark.parametrize("max_refills", [0, 1, 20])
def test_dapo_replaces_groups_without_variance(lab, max_refills):
    trainer = lab.trainer(
        policy=lab.Tabular(symbols=4),
        algorithm=DAPO(),
        reward=half_dead,
        max_refills=max_refills,
        groups_per_step=6,
        held_out=0.0,
    )
    scored = trainer.experience.next(trainer.state)
    rollouts, scores, metrics = lab.trained(scored), scored.scores, scored.metrics
    assert len(rollouts) == len(scores.values) == 24
    assert len(rollouts.groups.unique()) == 6
    alive = [not int(row["prompt"].split()[1]) % 2 for row in rollouts.prompts[::4]]
    assert metrics["zero_variance"] > 0
    if max_refills == 0:
        assert metrics["refilled_groups"] == 0
        assert trainer.experience.prompts.drawn == 6
    else:
        assert metrics["refilled_groups"] == trainer.experience.prompts.drawn - 6
        assert metrics["refilled_groups"] > 0
    if max_refills == 20:
        assert all(alive)
    # Rollouts and scores still belong together.
    completions = [str(text) for text in rollouts.completions]
    recomputed = half_dead(completions, [row["prompt"] for row in rollouts.prompts])
    assert scores.total.tolist() == pytest.approx(recomputed)


def test_a_group_is_dead_or_alive_among_those_that_would_be_trained_on(lab):
    """In REINFORCE++ a group of equal rewards is dead alone, and alive beside others.

    The first two rounds are dead. In the third one group has other rewards than the rest, so that
    all groups differ from the mean.
    """
    sizes, calls = [], []

    class Recording(ReinforcePP):
        def no_signal(self, scores, rollouts):
            sizes.append(len(rollouts.groups.unique()))
            return super().no_signal(scores, rollouts)

    def by_round(completions, **_):
        calls.append(len(completions))
        values = [float(len(calls))] * len(completions)
        return values if len(calls) < 3 else [0.5] * 4 + values[4:]

    trainer = lab.trainer(
        algorithm=Recording(ReinforcePP.Config(refill=True)),
        reward=by_round,
        max_refills=9,
        held_out=0.0,
    )
    scored = trainer.experience.next(trainer.state)
    assert scored.metrics["refilled_groups"] == 8
    assert calls == [16, 16, 16]
    assert sizes == [4, 4, 4]  # decided once a round
    assert scored.rollouts.groups.unique().tolist() == [8, 9, 10, 11]
    assert sorted(set(scored.scores.total.tolist())) == [0.5, 3.0]


# ---- processes

CASES = """
from dataclasses import replace

import torch

from groupwise_algorithms.dapo import DAPO
from groupwise_algorithms.gdpo import GDPO
from groupwise.algorithms.grpo import GRPO
from groupwise_algorithms.gspo import GSPO
from groupwise_algorithms.dr_grpo import DrGRPO
from groupwise_algorithms.reinforce_pp import ReinforcePP
from groupwise.prompts.weighted import WeightedPrompts
from groupwise.kit.constraint import Constraint
from groupwise.kit.schedule import Schedule
from groupwise.rewards import Reward
from tests.core.engine import Engine

def rare(completions, **_):
    return [float(text.startswith("33")) for text in completions]

rare.judges = True

def half_dead(completions, prompts, **_):
    return [
        0.5 if int(p.split()[1]) % 2 else t.count("1") + 0.01 * len(t)
        for t, p in zip(completions, prompts, strict=True)
    ]

class Inexact(Engine):
    def sample(self, *args, **options):
        rollouts = super().sample(*args, **options)
        error = 0.05 * torch.arange(rollouts.mask.shape[1])
        return replace(rollouts, sampler_log_probs=rollouts.sampler_log_probs + error)

def breaking(tabular):
    # Fails on whole groups, so on one process all rollouts may fail, and on single ones.
    class Breaking(tabular):
        def sample(self, prompts, **options):
            rollouts = super().sample(prompts, **options)
            seeds = zip(rollouts.prompts, options["seeds"], strict=True)
            bad = ["broke" if row["id"] % 3 == 0 or s % 5 == 0 else None for row, s in seeds]
            return replace(rollouts, failures=bad)
    return Breaking(symbols=4)

class Seeing(GRPO):
    target_inputs = frozenset({"old_log_probs", "reference_log_probs"})

    def targets(self, scores, rollouts, inputs):
        targets = super().targets(scores, rollouts, inputs)
        gap = (inputs["old_log_probs"] - inputs["reference_log_probs"]).float()
        mean = gap[rollouts.mask].mean()
        return {**targets, "advantages": targets["advantages"].unsqueeze(1) - gap - mean}

def long(completions, **_):
    return [float(len(text)) for text in completions]

def balanced(lab):
    return [
        Reward(name="ones", function=lab.ones, weight=Schedule(start=1.0, end=0.2, steps=3)),
        Reward(name="half", function=half_dead, weight=0.5),
        Reward(name="long", function=long, constraint=Constraint(at_most=2.0, start=0.1)),
    ]

def train(lab):
    results = {}
    for name, algorithm, reward, settings in [
        ("grpo", GRPO(GRPO.Config(beta=0.05, entropy=0.01)), lab.ones, {}),
        ("updates", GRPO(GRPO.Config(scale="batch")), lab.ones, {"updates_per_rollout": 2}),
        ("extremes", GRPO(GRPO.Config(scale="batch", beta=0.05)), lab.ones,
         {"updates_per_rollout": 2, "group_size": 6, "keep": {"extremes": 2}}),
        ("target", GRPO(GRPO.Config(beta={"target": 0.01, "gain": 1.0})), lab.ones,
         {"updates_per_rollout": 2, "steps": 5}),
        ("odd", DrGRPO(), lab.ones, {"groups_per_step": 3, "updates_per_rollout": 3}),
        ("alone", GRPO(), lab.ones, {"groups_per_step": 1}),
        ("taught", GRPO(), lab.ones,
         {"groups_per_step": 3, "updates_per_rollout": 3, "sections": {"teacher": "tabular"},
          "objects": {("teacher",): lab.Tabular(symbols=4, seed=9)}}),
        ("dead", GRPO(), half_dead, {"groups_per_step": 2}),
        ("dapo", DAPO(), half_dead, {"groups_per_step": 6, "max_refills": 3, "steps": 4}),
        ("ahead", DAPO(), half_dead, {"groups_per_step": 5, "ahead": 1, "steps": 4}),
        ("engine", GRPO(GRPO.Config(importance="sequence", importance_mode="mask")), lab.ones,
         {"groups_per_step": 3, "epochs": 2, "ahead": 1, "steps": 5, "evaluate_every": 3}),
        ("sees", Seeing(GRPO.Config(beta=0.05)), lab.ones,
         {"groups_per_step": 3, "updates_per_rollout": 3}),
        ("replay", GRPO(), rare, {"groups_per_step": 5, "steps": 8, "replay": {}}),
        ("gdpo", GDPO(GDPO.Config(refill=True)), balanced(lab),
         {"groups_per_step": 5, "max_refills": 3, "ahead": 1, "steps": 4}),
        ("constraint", GRPO(), balanced(lab), {"groups_per_step": 3, "steps": 4}),
        ("failed", DAPO(DAPO.Config(beta=0.05)), lab.ones,
         {"groups_per_step": 2, "updates_per_rollout": 2, "max_refills": 1, "steps": 5}),
        ("whitened", ReinforcePP(ReinforcePP.Config(refill=True)), half_dead,
         {"groups_per_step": 2, "max_refills": 3, "steps": 4}),
    ]:
        policy = breaking(lab.Tabular) if name == "failed" else lab.Tabular(symbols=4)
        if name == "engine":
            settings |= {"sampler": Inexact(policy)}
        settings = {"microbatch": 7, "max_grad_norm": 1e9, **settings}
        trainer = lab.trainer(policy, algorithm, reward, **settings)
        if name == "replay":
            trainer.experience.prompts = WeightedPrompts(
                lab.rows(), explore=0.3, half_life=9.0, size=9, seed=3)
        steps = []
        assert lab.fit(trainer, lambda step, metrics: steps.append(metrics), lambda: None)
        evaluation, moments = trainer.evaluate(), trainer.learner.optimizer.adamw.state
        keep = ("reward", "reward_std", "grad_norm", "loss", "mismatch/kl", "zero_variance",
                "mismatch/mean", "mismatch/max", "importance", "clip_fraction",
                "trained_decisions", "length_max", "prompts/again", "prompts/between",
                "prompts/expected", "prompts/new_accuracy", "replay/share", "replay/bytes",
                "multipliers/long/at_most", "beta", "failed", "length", "teacher_kl")
        results[name] = {
            "table": policy.table.flatten().tolist(),
            "moment": moments[policy.table]["exp_avg"].flatten().tolist(),
            "steps": [{key: step.get(key, 0.0) for key in keep} for step in steps],
            "evaluation": dict(evaluation.metrics),
            "drawn": trainer.experience.prompts.drawn,
            "processes": trainer.experience.accelerator.num_processes,
        }
    return results, trainer.experience.accelerator
"""
CHILD = """
import importlib.util, json, os, signal, sys
import torch
import groupwise
from groupwise.kit import processes
from groupwise.kit.errors import UserError
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("lab", sys.argv[1])
lab = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lab)
results, accelerator = train(lab)

# Ctrl-C reaches one process only. Both must end at that step, or the other waits forever.
stopped = lab.trainer(steps=50)

def interrupt(step, metrics):
    if step == 2 and accelerator.is_main_process:
        os.kill(os.getpid(), signal.SIGINT)

assert not lab.fit(stopped, interrupt, lambda: None)
assert stopped.step == 2
# Only one process reaches its limit of time. Both must end.
late = lab.trainer(steps=50, minutes=1.0 if accelerator.is_main_process else 100.0)
late.resume_at(step=0, seconds=61.0, prompts_state=late.experience.state_dict())
assert lab.fit(late, interrupt, lambda: None)
assert late.step == 0
# Messages of failed rewards: the one of the first process with a failure is kept.
failures = {"both": str(accelerator.process_index), "one": ""}
if accelerator.is_main_process:
    del failures["one"]
assert processes.first_of(failures) == {"both": "0", "one": ""}
# The processes have different configurations: both end before the first step.
rank, folder = accelerator.process_index, sys.argv[2] + ".run"
settings = {"rewards": [lab.ones], "prompts": lab.rows(), "output": folder, "quiet": True}
for differs in ({"train.steps": 3 + rank}, {"resume": bool(rank)}, {"algorithm.beta": 0.1 * rank}):
    try:
        groupwise.train(policy=lab.Tabular(), **settings, **differs)
    except UserError as error:
        results.setdefault("different", []).append(str(error))
assert len(results["different"]) == 3
assert not os.path.exists(folder)
if accelerator.is_main_process:
    with open(sys.argv[2], "w") as file:
        json.dump(results, file)
accelerator.end_training()
"""


@pytest.fixture(scope="module")
def by_count(lab, tmp_path_factory):
    namespace = {}
    exec(CASES, namespace)
    results, metrics = [], []

    def alone():
        results.append(namespace["train"](lab)[0])
        metrics.append({case: comparable(result) for case, result in results[-1].items()})
        return metrics[-1]

    allowed = rounding.bounds(alone, unit=1.0)  # the terms of losses and KL, which may cancel
    return {
        "allowed": tree_unflatten(allowed, tree_structure(metrics[0])),
        1: results[0],
        2: launch(CASES + CHILD, tmp_path_factory.mktemp("processes"), 2),
    }


def comparable(result):
    """Metrics that are numbers; a ratio's distance from one counts beside one."""
    return [
        {
            name: ("mismatch" in name) + value
            for name, value in line.items()
            if not math.isnan(value)
        }
        for line in (*result["steps"], result["evaluation"])
    ]


@pytest.mark.parametrize(
    "case",
    [
        *("grpo", "updates", "odd", "alone", "dead", "dapo", "ahead", "engine", "sees", "gdpo"),
        *("constraint", "replay", "failed", "whitened", "taught", "extremes", "target"),
    ],
)
@pytest.mark.rounding
@pytest.mark.slow
def test_two_processes_train_as_one(by_count, case):
    one, two = by_count[1][case], by_count[2][case]
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["drawn"] == two["drawn"]
    for name in ("moment", "table"):
        left = torch.tensor(one[name], dtype=torch.float64)
        right = torch.tensor(two[name], dtype=torch.float64)
        assert float((left - right).norm() / left.norm()) < 1e-10
    allowed = tree_leaves(by_count["allowed"][case])
    assert rounding.excess(comparable(one), comparable(two), allowed) <= 1
    if case == "failed":
        assert sum(step["failed"] for step in one["steps"]) > 5
    if case == "replay":
        for name in ("prompts/again", "prompts/between", "replay/share"):
            assert any(step[name] for step in one["steps"])


@pytest.mark.slow
def test_the_error_names_the_key_in_which_configurations_of_processes_differ(by_count):
    for message, difference in zip(
        by_count[2]["different"],
        (
            "train.steps is 3 on process 0 and 4 on process 1",
            "--resume is False on process 0 and True on process 1",
            "algorithm.beta is 0.0 on process 0 and 0.1 on process 1",
        ),
        strict=True,
    ):
        assert f"have different configurations: {difference}. Start all of them with the" in message
