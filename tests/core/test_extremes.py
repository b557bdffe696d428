"""`train.keep`: only the best and the worst of a group are trained on, by the advantages of all."""

import copy
import math
from itertools import product

import pytest
import torch

from groupwise.algorithms.grpo import GRPO
from groupwise.environment import Environment
from groupwise.experience.extremes import is_extreme
from groupwise.kit.errors import UserError
from groupwise.learning.batch import Update
from groupwise.rewards import Reward
from groupwise_algorithms.dapo import DAPO
from groupwise_algorithms.gdpo import GDPO
from groupwise_algorithms.rae import RAE
from groupwise_algorithms.reinforce_pp import ReinforcePP

NAN = math.nan


@pytest.mark.parametrize(
    ("rewards", "most", "left"),
    [
        ([3.0, 1.0, 2.0, 5.0, 4.0, 0.0], 2, {0, 1, 2, 4}),
        ([3.0, 1.0, 2.0, 5.0, 4.0, 0.0], 4, {0, 2}),
        ([3.0, 1.0, 2.0, 5.0, 4.0, 0.0], 6, set()),
        ([3.0, 1.0, 2.0], 8, set()),
        ([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 2, {1, 2, 3, 4}),  # ties by number
        ([0.5] * 4, 2, {1, 2}),
        ([1.0, NAN, 0.0, NAN, 2.0], 2, {0, 1, 3}),  # without a reward: in between
        ([NAN, 1.0, NAN, 0.0], 4, set()),
        ([math.inf, 0.0, -math.inf, 1.0], 2, {1, 3}),
    ],
)
def test_half_of_them_are_those_with_the_highest_rewards_and_half_those_with_the_lowest(
    rewards, most, left
):
    groups = torch.tensor([7] * len(rewards) + [2])
    stays = is_extreme(torch.tensor([*rewards, 9.0]), groups, most)
    assert {row for row, stay in enumerate(stays.tolist()) if not stay} == left


def steps_of(lab, algorithm, count=2, **settings):
    """A trainer after some steps, and their metrics."""
    trainer = lab.trainer(
        algorithm=algorithm, group_size=6, held_out=0.0, updates_per_rollout=2, **settings
    )
    return trainer, [lab.step(trainer) for _ in range(count)]


ALGORITHMS = [
    pytest.param(lambda: GRPO(GRPO.Config(beta=0.1)), id="grpo"),
    pytest.param(
        lambda: DAPO(DAPO.Config(refill=True)), id="dapo", marks=pytest.mark.slow(after=0)
    ),
    pytest.param(RAE, id="rae", marks=pytest.mark.slow(after=0)),
]


@pytest.mark.parametrize("make", ALGORITHMS)
def test_groups_that_are_no_larger_are_trained_on_bit_for_bit_as_without_it(lab, make):
    plain, of_plain = steps_of(lab, make())
    kept, of_kept = steps_of(lab, make(), keep={"extremes": 6})
    assert torch.equal(plain.policy.table, kept.policy.table)
    for first, second in zip(of_plain, of_kept, strict=True):
        same = [n for n in first if not any(word in n for word in ("second", "memory", "time"))]
        assert [first[name] for name in same] == [second[name] for name in same]


def reference_loss(policy, old, initial, groups, most, normalize, beta, total):
    """GRPO's loss of an update, written down again.

    groups: of each the prompt's number, its completions and their rewards.
    """
    kept = []
    for prompt, completions, rewards in groups:
        mean = math.fsum(rewards) / len(rewards)
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        order = sorted(range(len(rewards)), key=lambda row: (-rewards[row], row))
        rows = order[: most // 2] + order[-(most // 2) :]
        kept += [(prompt, completions[r], (rewards[r] - mean) / (std + 1e-4)) for r in rows]
    loss = torch.zeros((), dtype=torch.float64)
    decisions = sum(len(symbols) for _, symbols, _ in kept)
    for prompt, symbols, advantage in kept:
        previous = [policy.symbols, *symbols]
        for position, symbol in enumerate(symbols):
            place = (prompt, position, previous[position])
            each = [p.table[place].log_softmax(-1)[symbol] for p in (policy, old, initial)]
            ratio = (each[0] - each[1].detach()).exp()
            clipped = ratio.clamp(0.8, 1.2)
            apart = each[0] - each[2].detach()
            of_decision = beta * ((-apart).exp() - 1 + apart) - torch.minimum(
                ratio * advantage, clipped * advantage
            )
            share = {"sequence": len(kept) * len(symbols), "token": decisions, "constant": total}
            loss = loss + of_decision / (
                len(kept) * share["constant"] if normalize == "constant" else share[normalize]
            )
    return loss


@pytest.mark.parametrize(
    ("normalize", "beta"),
    [
        ("sequence", 0.1),
        pytest.param("token", 0.0, marks=pytest.mark.slow(after=0)),
        pytest.param("constant", 0.0, marks=pytest.mark.slow(after=0)),
    ],
)
def test_the_gradient_of_each_update_follows_its_formula(lab, monkeypatch, normalize, beta):
    """Advantages are those of the whole group; divisors and KL those of the rollouts kept."""
    trainer = lab.trainer(
        algorithm=GRPO(GRPO.Config(normalize=normalize, beta=beta)),
        group_size=6,
        held_out=0.0,
        updates_per_rollout=2,
        learning_rate=0.3,
        keep={"extremes": 4},
    )
    policy, initial = trainer.policy, copy.deepcopy(trainer.policy)
    gradients, tables, optimizer = [], [], trainer.learner.optimizer
    plain_step = optimizer.step

    def recorded(*args, **options):
        gradients.append(policy.table.grad.clone())
        tables.append(copy.deepcopy(policy))
        return plain_step(*args, **options)

    monkeypatch.setattr(optimizer, "step", recorded)
    for _ in range(2):
        old, before = copy.deepcopy(policy), len(gradients)
        trainer.due()
        scored = trainer.experience.next(trainer.state)
        trainer.end_step({**scored.metrics, **trainer.learn(scored)})
        groups = [
            (group.row["id"], [own.facts["completion_ids"] for own in judged], scored_as)
            for group in scored.groups
            for judged in [[call.rollout for call in group.judged]]
            for scored_as in [[own.rewards[0] for own in judged]]
        ]
        for number in range(2):
            part = groups[2 * number : 2 * number + 2]
            current = tables[before + number]
            loss = reference_loss(current, old, initial, part, 4, normalize, beta, total=5)
            (expected,) = torch.autograd.grad(loss, current.table)
            assert lab.gap(gradients[before + number], expected) < 1e-6  # float32 targets
        advantages = [call.rollout.advantage for group in scored.groups for call in group.judged]
        assert sum(advantage is None for advantage in advantages) == 8


def test_what_is_left_out_gets_no_pass_and_counts_in_all_metrics_of_samples(lab):
    """No reference, old or current log-probs of them are computed."""

    class Approximate(lab.Tabular):
        exact = False

    def of_a_step(**settings):
        trainer = lab.trainer(
            Approximate(),
            GRPO(GRPO.Config(beta=0.1)),
            group_size=6,
            held_out=0.0,
            updates_per_rollout=2,
            **settings,
        )
        trainer.due()
        scored = trainer.experience.next(trainer.state)
        trainer.policy.forward_sizes.clear()
        metrics = {**scored.metrics, **trainer.learn(scored)}
        return trainer.policy.forward_sizes, metrics, trainer.samples(scored)

    plain, of_plain, _ = of_a_step()
    kept, of_kept, samples = of_a_step(keep={"extremes": 2})
    assert sum(plain) == 24 + 12 + 24  # the reference's, old ones of the second update, updates
    assert sum(kept) == 8 + 4 + 8
    for name in ("reward", "reward_std", "length", "zero_variance", "sampled", "sampled_decisions"):
        assert of_kept[name] == of_plain[name]
    assert of_kept["trained_decisions"] < of_plain["trained_decisions"]
    assert len(samples) == 4


def test_with_rewards_of_0_and_1_the_gradient_keeps_its_direction_and_the_rarer_weighs_more(lab):
    """Over all groups of a tiny policy; the factor is the one that docs/data.md states."""
    size, most = 4, 2
    policy = lab.Tabular(prompts=1, symbols=2, length=2, seed=1)
    chosen = list(policy.completions())
    right = torch.tensor([float(symbols == [1, 0]) for symbols in chosen], dtype=torch.float64)
    rollouts = lab.build(lab.rows(1) * len(chosen), chosen)
    log_probs = policy(rollouts).log_probs.masked_fill(~rollouts.mask, 0.0).sum(dim=1)
    probabilities = log_probs.detach().exp()
    (true,) = torch.autograd.grad((log_probs.exp() * right).sum(), policy.table, retain_graph=True)
    total = torch.zeros((), dtype=torch.float64)
    for members in product(range(len(chosen)), repeat=size):
        index = torch.tensor(members)
        rewards = right[index]
        stays = is_extreme(rewards, torch.zeros(size).long(), most)
        kept = (log_probs[index] * (rewards - rewards.mean()))[stays]
        total = total + probabilities[index].prod() * kept.sum() / most
    (gradient,) = torch.autograd.grad(total, policy.table)
    p = float((probabilities * right).sum())
    factor = 0.0
    for k in range(size + 1):
        best = min(k, most // 2) + max(0, most // 2 - size + k)
        share = math.comb(size, k) * p**k * (1 - p) ** (size - k) / most
        factor += share * (best * (1 - k / size) / p + (most - best) * k / size / (1 - p))
    assert lab.gap(gradient, factor * true) < 1e-9
    assert factor > (size - 1) / size


def test_averages_of_rae_are_of_all_rollouts(lab):
    policy, algorithm = lab.Tabular(), RAE(RAE.Config(decay=0.5, length=8))
    rollouts = policy.sample(lab.rows(1), group_size=3, seeds=range(3))
    rewards = torch.tensor([4.0, 1.0, 2.0])
    rows = torch.tensor([0, 1]), torch.tensor([2])
    own, left = ((lab.scores_of(rewards[each]), rollouts.select(each)) for each in rows)
    update = Update(scores=own[0], rollouts=own[1], outputs={}, left=left[::-1])
    lab.updater(policy, algorithm, 100).targets(update)
    algorithm.end_step(None, 1)
    assert algorithm.averages == {"": 0.5 * (0.5 * (0.5 * 4.0) + 0.5 * 1.0) + 0.5 * 2.0}


def test_each_comparison_of_an_episode_keeps_its_own(lab):
    """Of an episode with two calls, the first ones are compared with each other, and the second."""

    class Twice(Environment):
        async def play(self, row, players):
            (player,) = players.values()
            first = await player(row)
            again = await player({**row, "prompt": row["prompt"] + "!"}, after=first)
            return [(again, {})]

    trainer = lab.trainer(
        objects={("environment",): Twice()},
        sections={"environment": "twice"},
        group_size=6,
        groups_per_step=2,
        held_out=0.0,
        keep={"extremes": 2},
    )
    trainer.due()
    scored = trainer.experience.next(trainer.state)
    trainer.learn(scored)
    rollouts = scored.rollouts_of("policy")
    assert len(rollouts) == 24
    by_comparison = {}
    for own in rollouts:
        by_comparison.setdefault(own.comparison, []).append(own)
    assert len(by_comparison) == 4
    for compared in by_comparison.values():
        rewards = [own.rewards[0] for own in compared]
        stayed = [own.rewards[0] for own in compared if own.advantage is not None]
        assert stayed == sorted(stayed, key=rewards.index)
        assert sorted(stayed) == [min(rewards), max(rewards)]


def test_replayed_completions_count_among_the_best(lab):
    def rare(completions, **_):
        return [float(text[0] == "2") for text in completions]

    rare.judges = True
    trainer = lab.trainer(
        lab.Tabular(symbols=4),
        reward=rare,
        group_size=6,
        groups_per_step=6,
        replay={},
        keep={"extremes": 2},
        source=lab.rows(3),
        held_out=0.0,
        steps=9,
    )
    shares = [lab.step(trainer)["replay/share"] for _ in range(6)]
    assert max(shares) > 0


def two(weight=1.0):
    return [
        Reward(name="ones", function=lambda completions, **_: [1.0] * len(completions)),
        Reward(
            name="other",
            function=lambda completions, **_: [float(len(text)) for text in completions],
            weight=weight,
        ),
    ]


def test_several_rewards_that_are_not_summed_first_are_refused(lab):
    with pytest.raises(UserError, match=r"does not compare the sum of the 2 rewards.*train\.keep"):
        check(lab, GDPO(), two())
    check(lab, GDPO(), two(weight=0.0))
    check(lab, GRPO(), two())


def check(lab, algorithm, rewards):
    trainer = lab.trainer(algorithm=algorithm, reward=rewards, keep={"extremes": 2})
    assert trainer


@pytest.mark.parametrize(
    "algorithm",
    [ReinforcePP(ReinforcePP.Config(beta=0.1)), GRPO(GRPO.Config(top_entropy_quantile=0.5))],
    ids=["reinforce_pp", "entropy"],
)
def test_targets_that_need_passes_over_all_rollouts_are_refused(lab, algorithm):
    with pytest.raises(UserError, match=r"needs old_\w+.* of all rollouts.*leave train.keep out"):
        check(lab, algorithm, lab.ones)


def test_an_odd_number_is_refused(lab):
    with pytest.raises(UserError, match="multiple of 2"):
        lab.config(train={"keep": {"extremes": 3}})
