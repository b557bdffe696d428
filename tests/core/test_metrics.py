"""The law of metrics: each is what its name says, for any micro-batches, updates and processes.

Every metric of a step is computed again from the step's rollouts by its definition, and a step may
have no metric without a definition here. Metrics of replay and of weighted prompts have theirs in
test_replay.py and test_weighted.py.
"""

import copy
import json
import math
import re
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.calls import trained
from tests.core.conftest import Tabular, fit, lab_of_tests, rows
from tests.core.engine import Engine
from tests.core.launching import launch
from torch import Tensor

from groupwise import Environment
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Reward, Scores
from groupwise.rollouts import Rollouts
from groupwise_algorithms.cispo import CISPO
from groupwise_algorithms.dr_grpo import DrGRPO
from groupwise_algorithms.sapo import SAPO

OF_MACHINE = re.compile(r"(time|reward_time|memory)/.*|decisions_per_second")
"""Metrics of the machine: by its clock, and its memory; they are only checked to be there."""


class Drawer(Tabular):
    """A tabular policy that states the entropy of each completion, and wrong log-probs."""

    facts = frozenset({"completion_ids", "entropy"})
    logged = frozenset({"entropy"})
    exact = False

    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        with torch.no_grad():
            entropy = self.forward(rollouts).entropy.masked_fill(~rollouts.mask, 0.0)
        error = 0.03 * (1 + torch.arange(rollouts.mask.shape[1]))
        return replace(
            rollouts,
            sampler_log_probs=rollouts.sampler_log_probs + error,
            facts={**rollouts.facts, "entropy": (entropy.sum(1) / rollouts.lengths).tolist()},
        )


class Exact(Drawer):
    """States its log-probs as they are, so that they stand for the policy's own."""

    exact = True

    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        error = 0.03 * (1 + torch.arange(rollouts.mask.shape[1]))
        return replace(rollouts, sampler_log_probs=rollouts.sampler_log_probs - error)


class Scaled(Drawer):
    scale_loss = True


def number(prompt: str) -> int:
    return int(prompt.split()[1])


def half_dead(completions, prompts, **_):
    """Constant on every other prompt, so that its group is dead."""
    return [
        0.5 if number(p) % 2 else t.count("1") + 0.01 * len(t)
        for t, p in zip(completions, prompts, strict=True)
    ]


def partial(completions, prompts, log_metric, **_):
    """Does not apply to some completions; logs a number of each batch."""
    log_metric("longest", max(map(len, completions)))
    return [None if len(t) == 2 and number(p) % 2 == 0 else len(t) / 5
            for t, p in zip(completions, prompts, strict=True)]  # fmt: skip


def breaks(completions, prompts, **_):
    """Fails on some completions, and on all of one prompt."""
    values = zip(completions, prompts, half_dead(completions, prompts), strict=True)
    return [math.nan if len(t) == 2 or number(p) == 10 else value for t, p, value in values]


def ends(completions, prompts, **_):
    """1 where the completion ends by itself on an even prompt: right or wrong."""
    return [
        float(t.endswith("0") and number(p) % 3 != 0)
        for t, p in zip(completions, prompts, strict=True)
    ]


ends.judges = True


class Counted(Environment):
    """Returns numbers with each episode, and None for some."""

    one_call, multi_turn = True, False

    def columns(self, labels):
        return ["calls", "won", "note"]

    def logged(self, labels):
        return ["calls", "won"]

    async def play(self, row, players):
        (player,) = players.values()
        reply = await player(row)
        length, known = len(reply.text), number(row["prompt"]) % 2
        return {"calls": length % 3, "won": length > 3 if known else None, "note": reply.text}


@dataclass(frozen=True)
class Case:
    kind: type[Tabular]
    algorithm: type[GRPO]
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    rewards: tuple[Any, ...] = (half_dead,)
    engine: bool = False
    environment: Environment | None = None


CASES = {
    "dead groups": Case(Drawer, GRPO),
    "exact": Case(Exact, GRPO, {}, {"updates_per_rollout": 2}),
    "updates": Case(Drawer, GRPO, {}, {"updates_per_rollout": 4}),
    "epochs": Case(Drawer, DrGRPO, {}, {"updates_per_rollout": 2, "epochs": 3}),
    "masked": Case(Drawer, GRPO, {"mask_truncated": True}, {"updates_per_rollout": 2}),
    "kl": Case(Drawer, GRPO, {"beta": 0.1, "mask_truncated": True}, {"epochs": 2}),
    "bonus": Case(Drawer, GRPO, {"entropy": 0.05}, {"updates_per_rollout": 2}),
    "capped": Case(Drawer, CISPO, {"clip_low": 0.05, "clip_high": 0.05}, {"epochs": 3}),
    "gate": Case(Drawer, SAPO, {}, {"updates_per_rollout": 2, "epochs": 2}),
    "engine": Case(Drawer, GRPO, {}, {"updates_per_rollout": 2}, engine=True),
    "right": Case(Exact, GRPO, {}, {"updates_per_rollout": 2}, (ends,)),
    "several": Case(Drawer, GRPO, {}, {"updates_per_rollout": 4}, (half_dead, partial)),
    "failed": Case(Drawer, GRPO, {}, {"updates_per_rollout": 2}, (breaks,)),
    "all dead": Case(Drawer, GRPO, {}, {}, (lambda completions, **_: [0.1] * len(completions),)),
    "scaled": Case(Scaled, GRPO, {}, {"updates_per_rollout": 4}),
    "environment": Case(Drawer, GRPO, rewards=(breaks,), environment=Counted()),
}
"""In "updates" and "scaled" each group is an update, so those of dead groups have no gradient."""


# ---- a run that keeps what its metrics are about


@dataclass
class Step:
    """A step's rollouts and scores, and the weights at its start and before each update."""

    rollouts: Rollouts
    scores: Scores
    start: Tensor
    tables: list[Tensor] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    case: Case
    trainer: Any
    reference: Tensor
    steps: list[Step] = field(default_factory=list)


def run_of(case: Case, **settings: Any) -> Run:
    policy = case.kind(prompts=12, symbols=4, seed=1)
    algorithm = case.algorithm(case.algorithm.Config(**case.options))
    titles = ("first", "second")
    trainer = lab_of_tests.trainer(
        policy,
        algorithm,
        [Reward(name=n, function=f) for n, f in zip(titles, case.rewards, strict=False)],
        source=rows(12),
        sampler=Engine(policy) if case.engine else None,
        sections={"environment": "counted"} if case.environment else {},
        objects={("environment",): case.environment} if case.environment else {},
        **{"learning_rate": 0.3, "steps": 2, **case.settings, **settings},
    )
    run = Run(case, trainer, policy.table.detach().clone())
    following, accumulate = trainer.experience.next, trainer.learner.updater.accumulate

    def next_step(state, **options):
        scored = following(state, **options)
        start = policy.table.detach().clone()
        run.steps.append(Step(trained(scored), scored.scores, start))
        return scored

    def recorded(*arguments, **options):
        run.steps[-1].tables.append(policy.table.detach().clone())
        return accumulate(*arguments, **options)

    trainer.experience.next = next_step
    object.__setattr__(trainer.learner.updater, "accumulate", recorded)

    def on_step(step, metrics):
        run.steps[-1].metrics = dict(metrics)

    assert fit(trainer, on_step, lambda: None)
    return run


# ---- the definitions


@dataclass
class Decision:
    """A decision in an update: its advantage, and its log-probs by the policy in the update, by the
    policy at the start of the step, by the sampler and by the reference."""

    advantage: float
    now: float
    old: float
    sampler: float
    reference: float


def mean(values):
    values = [v for v in values if not math.isnan(v)]
    return math.fsum(values) / len(values) if values else math.nan


class Definitions:
    """The metrics of a step by their definitions, one decision after the other."""

    def __init__(self, run: Run, step: Step) -> None:
        self.run, self.step, self.case = run, step, run.case
        # A failed completion is counted, and in no mean.
        self.failed = int(step.scores.failed.sum())
        others = ~step.scores.failed
        self.rollouts, self.scores = step.rollouts.select(others), step.scores.select(others)
        self.settings = run.trainer.config.train
        self.algorithm = run.trainer.algorithm
        self.groups = self.rollouts.groups.tolist()

    def outputs(self, table: Tensor) -> Any:
        policy = copy.deepcopy(self.run.trainer.policy)
        policy.table.data = table.clone()
        return policy, Tabular.forward(policy, self.rollouts)

    # -- of the rollouts

    def of_rollouts(self) -> dict[str, float]:
        rollouts, scores = self.rollouts, self.scores
        totals, lengths = scores.total.tolist(), rollouts.mask.sum(1).tolist()
        members = {g: [n for n, own in enumerate(self.groups) if own == g] for g in self.groups}
        scored = {
            g: [totals[n] for n in own if not math.isnan(totals[n])] for g, own in members.items()
        }
        stds = [
            (statistics.stdev(scored[g]) if len(scored[g]) > 1 else 0.0)
            for g, total in zip(self.groups, totals, strict=True)
            if not math.isnan(total)
        ]
        dead = [max(scored[g], default=0) - min(scored[g], default=0) < 1e-9 for g in self.groups]
        _, current = self.outputs(self.step.start)
        metrics = {
            "reward": mean(totals),
            "reward_std": mean(stds),
            "zero_variance": mean(map(float, dead)),
            "length": mean(lengths),
            "length_max": max(lengths),
            "truncated": mean(rollouts.truncated.double().tolist()),
            "entropy": mean(current.entropy[rollouts.mask].tolist()),
            "failed": self.failed,
            **({"failed/first": self.failed} if self.failed else {}),
            "unscored": sum(map(math.isnan, totals)),
            **{f"rewards/{n}": mean(scores.column(n).tolist()) for n in scores.names},
        }
        if ends in self.case.rewards:
            metrics["accuracy"] = mean(scores.column("first").tolist())
        if self.case.environment:
            columns = [
                (len(text) % 3, float(len(text) > 3) if number(row["prompt"]) % 2 else math.nan)
                for text, row in zip(rollouts.completions, rollouts.prompts, strict=True)
            ]
            calls, won = zip(*columns, strict=True)
            metrics |= {"environment/calls": mean(calls), "environment/won": mean(won)}
        if partial in self.case.rewards:
            metrics["second/longest"] = max(lengths)  # the rewards are called on one batch
        return metrics

    # -- of the updates

    def updates(self):
        """The rows of each update with the weights before it."""
        parts = torch.tensor(sorted(set(self.groups))).tensor_split(
            self.settings.updates_per_rollout
        )
        plan = [[n for n, g in enumerate(self.groups) if g in part.tolist()] for part in parts]
        plan = plan * self.settings.epochs
        assert len(plan) == len(self.step.tables)
        return list(zip(plan, self.step.tables, strict=True))

    def of_updates(self) -> dict[str, float]:
        """A decision is trained if its completion has a weight, and an advantage or another term
        of the loss."""
        config, mask = self.algorithm.config, self.rollouts.mask
        dense = bool(config.beta or config.entropy)
        old = self.outputs(self.step.start)[1].log_probs.detach()
        reference = self.outputs(self.run.reference)[1].log_probs.detach()
        losses, norms, zeros = [], [], []
        trained: list[dict[str, float]] = []
        compared: list[float] = []
        for index, (chosen, table) in enumerate(self.updates()):
            part = self.rollouts.select(chosen)
            targets = self.algorithm.targets(self.scores.select(torch.tensor(chosen)), part, {})
            policy, current = self.outputs(table)
            live = {
                row: float(advantage)
                for row, advantage, weights in zip(
                    chosen, targets["advantages"], targets["weights"], strict=True
                )
                if weights.any() and (dense or advantage != 0)
            }
            width = part.mask.shape[1]
            batch = {**targets, "mask": part.mask, "old_log_probs": old[chosen, :width]}
            batch["reference_log_probs"] = reference[chosen, :width]
            if self.case.engine:
                batch["sampler_log_probs"] = part.sampler_log_probs
            cut = replace(
                current,
                log_probs=current.log_probs[chosen, :width],
                entropy=current.entropy[chosen, :width],
            )
            loss = self.algorithm.loss(cut, batch).sum()
            losses.append(loss.item())
            if live:
                (gradient,) = torch.autograd.grad(loss, policy.table)
                norms.append(float(gradient.norm()))
                zeros.append(float((gradient == 0).double().mean()))
            for row, advantage in live.items():
                for t in mask[row].nonzero().flatten().tolist():
                    decision = Decision(
                        advantage,
                        now=current.log_probs[row, t].item(),
                        old=old[row, t].item(),
                        sampler=self.rollouts.sampler_log_probs[row, t].item(),
                        reference=reference[row, t].item(),
                    )
                    entropy = {"trained_entropy": current.entropy[row, t].item()}
                    trained.append({**entropy, **self.of_decision(decision)})
                    if index == 0 or not self.case.kind.exact or self.case.engine:
                        compared.append(decision.sampler - decision.old)
        metrics: dict[str, float] = {
            "loss": mean(losses),
            "learning_rate": self.settings.learning_rate,
            "skipped_updates": 0,
            "trained_decisions": len(trained),
        }
        if norms:
            metrics["grad_norm"] = mean(norms)
            metrics |= {n: mean([decision[n] for decision in trained]) for n in trained[0]}
        if norms and self.case.kind.scale_loss:
            metrics |= {"loss_scale": 2.0**24, "zero_gradients": mean(zeros), "overflows": 0}
        if compared:
            metrics["mismatch/mean"] = mean(map(abs, compared))
            metrics["mismatch/max"] = max(map(abs, compared))
            metrics["mismatch/kl"] = mean([math.expm1(-gap) + gap for gap in compared])
        return metrics

    def of_decision(self, decision: Decision) -> dict[str, float]:
        config, metrics = self.algorithm.config, {}
        ratio, advantage = math.exp(decision.now - decision.old), decision.advantage
        if isinstance(self.algorithm, SAPO):
            tau = config.tau_positive if advantage > 0 else config.tau_negative
            p = 1 / (1 + math.exp(-tau * (ratio - 1)))
            metrics["gate"] = 4 * p * (1 - p)
        elif isinstance(self.algorithm, CISPO):
            metrics["clip_fraction"] = float(not 0.95 <= ratio <= 1.05)
        else:
            cut = ratio > 1 + self.algorithm.clip_high if advantage > 0 else ratio < 0.8
            metrics["clip_fraction"] = float(cut and advantage != 0)
        if config.beta:
            gap = decision.reference - decision.now
            metrics["kl"] = math.expm1(gap) - gap
        if self.case.engine:
            weight = math.exp(decision.old - decision.sampler)
            metrics["importance"] = min(weight, config.importance_cap)
        return metrics


@pytest.mark.parametrize("microbatch", [5, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_every_metric_of_a_step_is_that_of_its_definition(name, microbatch):
    run = run_of(CASES[name], microbatch=microbatch)
    for step in run.steps:
        definitions = Definitions(run, step)
        expected = {**definitions.of_rollouts(), **definitions.of_updates()}
        metrics = {n: value for n, value in step.metrics.items() if not OF_MACHINE.fullmatch(n)}
        assert metrics.keys() == expected.keys()
        for metric, value in expected.items():
            assert metrics[metric] == pytest.approx(value, rel=1e-5, abs=1e-9, nan_ok=True), metric
    check_that_the_case_can_fail(name, run.steps)


def check_that_the_case_can_fail(name: str, steps: list[Step]) -> None:
    """The populations differ, so that a metric over another one would have another value."""
    first = steps[0].metrics
    if name == "all dead":
        assert first["zero_variance"] == 1
        return
    assert (first["failed"] > 0) == (name in ("failed", "environment"))
    if name not in ("kl", "bonus"):
        assert 0 < first["zero_variance"] < 1
        assert first["trained_decisions"] < first["length"] * 16 * len(steps[0].tables)
        assert abs(first["entropy"] - first["trained_entropy"]) > 1e-3
    if name in ("epochs", "capped"):
        assert 0 < first["clip_fraction"] < 1


def test_every_metric_of_these_steps_is_in_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "runs.md"
    table = page.read_text(encoding="utf-8").partition("## Every key of a step")[2]
    known = [
        re.escape(key).replace("NAME", "[^/]+").replace(r"\.\.\.", ".+")
        for line in table.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]
    names = {n for case in CASES.values() for n in run_of(case, steps=1).steps[0].metrics}
    assert len(names) > 30
    undocumented = [n for n in names if not any(re.fullmatch(key, n) for key in known)]
    assert not undocumented


# ---- processes

CHILD = """
import json, sys
import torch
from accelerate import PartialState
torch.set_num_threads(1)
from tests.core.test_metrics import metrics_of_all
metrics = metrics_of_all()
if PartialState().is_main_process:
    with open(sys.argv[2], "w") as file:
        json.dump(metrics, file)
"""


def metrics_of_all() -> dict[str, list[dict[str, Any]]]:
    return {
        name: [step.metrics for step in run_of(case, microbatch=9).steps]
        for name, case in CASES.items()
    }


@pytest.mark.slow
def test_two_processes_have_the_metrics_of_one(tmp_path):
    one, two = json.loads(json.dumps(metrics_of_all())), launch(CHILD, tmp_path, 2)
    for name in CASES:
        for left, right in zip(one[name], two[name], strict=True):
            assert left.keys() == right.keys() - {"slowest_process"}
            for metric, value in left.items():
                if metric == "second/longest":  # logged for each process's batch, then averaged
                    assert right[metric] <= value
                elif not OF_MACHINE.fullmatch(metric):
                    close = pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True)
                    assert right[metric] == close, (name, metric)
