"""Credit over turns: each formula against enumeration of a small game, or its definition."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from groupwise import Rollouts
from groupwise.algorithms.grpo import GRPO
from groupwise.learning.batch import Update
from groupwise.rollouts import Turn
from groupwise_algorithms.dr_grpo import DrGRPO
from groupwise_algorithms.gdpo import GDPO
from groupwise_algorithms.rae import RAE
from groupwise_algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from groupwise_algorithms.rloo import RLOO

NAN = math.nan


def advantages(algorithm, rollouts, outcomes, lab):
    """[B, T], in float64 before they are rounded for the loss."""
    scores = lab.scores_of(torch.tensor(outcomes, dtype=torch.float64))
    return algorithm.estimate(scores, rollouts, {})


def with_turns(lab, turns, groups):
    """Rollouts with these turns, each of its own number of decisions, and holes between them."""
    chosen = [[1] * (sum(turn.decisions for turn in own) + len(own)) for own in turns]
    rollouts = lab.build(lab.rows(1) * len(turns), chosen, pad=2)
    mask = torch.zeros_like(rollouts.mask)
    for row, own in enumerate(turns):
        start = 0
        for turn in own:
            mask[row, start : start + turn.decisions] = True
            start += turn.decisions + 1
    return replace(rollouts, mask=mask, turns=turns, groups=torch.tensor(groups))


def by_turn(rollouts, values):
    """The value of each turn that has decisions, which all of its decisions must have."""
    parts = []
    for row, own in enumerate(rollouts.turns):
        decisions = values[row][rollouts.mask[row]].split([turn.decisions for turn in own])
        assert all(len(part.unique()) <= 1 for part in decisions)
        parts.append([float(part[0]) for part in decisions if len(part)])
    assert not values[~rollouts.mask].any()
    return parts


TURNS = [
    [Turn(2, 0.5, 7), Turn(1, None, 8), Turn(3, 1.0, 7)],
    [Turn(1, 0.0, 7), Turn(4, 2.0, 9)],
    [Turn(3, 1.5, 8)],
    [Turn(1, None, 7), Turn(2, -1.0, 8), Turn(1, 0.25)],
    [Turn(2, 3.0, 17), Turn(2, 1.0, 18)],
    [Turn(2, 1.0, 18), Turn(2, 4.0, 17)],
]
GROUPS = [0, 0, 0, 0, 5, 5]
REWARDS = [1.0, 0.0, 1.0, -1.0, 2.0, 0.5]


def compared(values):
    """(v - mean) / (std + epsilon) of values by key, as GRPO compares a group."""
    known = [value for value in values.values() if not math.isnan(value)]
    mean = math.fsum(known) / max(1, len(known))
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / max(1, len(known) - 1))
    return {key: 0.0 if math.isnan(v) else (v - mean) / (std + 1e-4) for key, v in values.items()}


def in_groups(values, group_of):
    """The same within each group; values: by key; group_of: a function of the key."""
    groups = {group_of(key) for key in values}
    parts = ({k: v for k, v in values.items() if group_of(k) == group} for group in groups)
    return {key: value for part in parts for key, value in compared(part).items()}


def returns(row, discount):
    own, after = TURNS[row], REWARDS[row]
    values = []
    for place, turn in reversed([*enumerate(own)]):
        factor = 1.0 if place == len(own) - 1 else discount
        after = (turn.reward or 0.0) + factor * after
        values.append(after)
    return values[::-1]


@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_a_return_is_compared_with_those_of_the_same_turn(lab, discount):
    rollouts = with_turns(lab, TURNS, GROUPS)
    algorithm = GRPO(GRPO.Config(credit={"name": "return", "discount": discount}))
    values = {}
    for row, turn in product(range(6), range(3)):
        own = returns(row, discount)
        values[row, turn] = own[turn] if turn < len(own) else REWARDS[row]  # it is over
    relative = in_groups(values, lambda key: (GROUPS[key[0]], key[1]))
    expected = [[relative[row, turn] for turn in range(len(own))] for row, own in enumerate(TURNS)]
    for row, own in enumerate(by_turn(rollouts, advantages(algorithm, rollouts, REWARDS, lab))):
        assert own == pytest.approx(expected[row], abs=1e-12)


@pytest.mark.parametrize("weight", [None, 0.0, 2.0])
def test_a_turn_has_its_own_reward_and_a_part_of_the_outcome(lab, weight):
    rollouts = with_turns(lab, TURNS, GROUPS)
    credit = {"name": "turns"} if weight is None else {"name": "turns", "weight": weight}
    algorithm = GRPO(GRPO.Config(credit=credit))
    values = {
        (row, k): turn.reward
        for row, own in enumerate(TURNS)
        for k, turn in enumerate(own)
        if turn.reward is not None
    }
    relative = in_groups(values, lambda key: (GROUPS[key[0]], key[1]))
    outcome = in_groups(dict(enumerate(REWARDS)), lambda row: GROUPS[row])
    weight = 0.5 if weight is None else weight
    for row, own in enumerate(by_turn(rollouts, advantages(algorithm, rollouts, REWARDS, lab))):
        expected = [
            relative[row, k] + weight * outcome[row] if (row, k) in relative else outcome[row]
            for k in range(len(TURNS[row]))
        ]
        assert own == pytest.approx(expected, abs=1e-12)


def test_gigpo_compares_turns_that_began_in_the_same_state(lab):
    rollouts = with_turns(lab, TURNS, GROUPS)
    algorithm = GRPO(GRPO.Config(credit={"name": "gigpo", "weight": 0.7}))
    values = {
        (row, k): returns(row, 0.95)[k]
        for row, own in enumerate(TURNS)
        for k, turn in enumerate(own)
        if turn.state is not None
    }
    relative = in_groups(values, lambda key: TURNS[key[0]][key[1]].state)
    outcome = in_groups(dict(enumerate(REWARDS)), lambda row: GROUPS[row])
    for row, own in enumerate(by_turn(rollouts, advantages(algorithm, rollouts, REWARDS, lab))):
        expected = [outcome[row] + 0.7 * relative.get((row, k), 0.0) for k in range(len(own))]
        assert own == pytest.approx(expected, abs=1e-12)
    alone = by_turn(rollouts, advantages(algorithm, rollouts, REWARDS, lab))[1][1]
    assert alone == pytest.approx(outcome[1])  # no other turn began in state 9


def test_turns_in_later_rollouts_count_in_returns(lab):
    """An episode in one rollout, and the same in three: the first has what the others return."""
    whole = with_turns(lab, [TURNS[0], TURNS[3]], [0, 0])
    elsewhere = [[own[0], *(turn._replace(decisions=0) for turn in own[1:])] for own in whole.turns]
    parts = with_turns(lab, elsewhere, [0, 0])
    algorithm = GRPO(GRPO.Config(credit={"name": "return", "discount": 0.9}))
    first = [own[0] for own in by_turn(whole, advantages(algorithm, whole, [1.0, -1.0], lab))]
    assert by_turn(parts, advantages(algorithm, parts, [1.0, -1.0], lab)) == [[x] for x in first]


def test_a_turn_in_a_later_rollout_is_compared_there_alone(lab):
    """One episode begins in a state, another reaches it in its third turn; each is a rollout."""
    here, there = Turn(1, None, 7), Turn(0, None, 7)
    turns = [
        [here],
        [Turn(1, None, 8), Turn(0, None, 9), there],
        [Turn(1, None, 9), there],
        [here],
    ]
    rollouts = with_turns(lab, turns, [0, 0, 1, 2])
    algorithm = DrGRPO(DrGRPO.Config(credit="gigpo"))
    own = by_turn(rollouts, advantages(algorithm, rollouts, [1.0, 0.0, 0.0, 0.0], lab))
    # With that of the episode, 0.5 and -0.5 for first turns, of which each has another.
    assert own == [[0.5 + 0.5], [-0.5], [0.0], [-0.5]]


# ---- enumeration


class Game:
    """All episodes of a tabular policy whose every symbol is a turn, ended or not.

    A turn has a reward that depends on all symbols so far; an episode has an outcome, too.
    """

    def __init__(self, lab, **shape):
        self.lab, self.policy = lab, lab.Tabular(prompts=1, seed=1, **shape)
        chosen = list(self.policy.completions())
        generator = torch.Generator().manual_seed(2)
        rewards = {}
        for symbols in chosen:
            for end in range(1, len(symbols) + 1):
                drawn = float(torch.randn((), generator=generator))
                rewards.setdefault(tuple(symbols[:end]), drawn)
        self.turns = [
            [Turn(1, rewards[tuple(own[:end])]) for end in range(1, len(own) + 1)] for own in chosen
        ]
        assert len({len(own) for own in chosen}) == shape["length"]
        self.outcomes = [float((3 * n + 1) % 7) / 2 - 1 for n in range(len(chosen))]
        self.rollouts = replace(lab.build(lab.rows(1) * len(chosen), chosen), turns=self.turns)
        self.log_probs = self.policy(self.rollouts).log_probs.masked_fill(~self.rollouts.mask, 0.0)
        self.probabilities = self.log_probs.detach().sum(dim=1).exp()

    def returns(self, discount):
        """[B, T]: the sum of what follows each turn."""
        values = torch.zeros(self.rollouts.mask.shape, dtype=torch.float64)
        for row, own in enumerate(self.turns):
            for k in range(len(own)):
                later = [turn.reward * discount**n for n, turn in enumerate(own[k:])]
                last = self.outcomes[row] * discount ** (len(own) - 1 - k)
                values[row, k] = math.fsum([*later, last])
        return values

    def gradient(self, values):
        """Of the expected sum of log-prob x value over the turns."""
        total = (self.probabilities * (self.log_probs * values).sum(dim=1)).sum()
        return torch.autograd.grad(total, self.policy.table, retain_graph=True)[0]

    def expected_gradient(self, algorithm, size):
        """Minus that of the loss, over all groups of this size."""
        total = torch.zeros((), dtype=torch.float64)
        for members in product(range(len(self.rollouts)), repeat=size):
            index = torch.tensor(members)
            group = replace(self.rollouts.select(index), groups=torch.zeros(size).long())
            width = group.mask.shape[1]
            scores = self.lab.scores_of(torch.tensor(self.outcomes, dtype=torch.float64)[index])
            estimated = algorithm.estimate(scores, group, {})
            own = self.log_probs[index, :width]
            total = total + self.probabilities[index].prod() * (own * estimated).sum() / size
        return torch.autograd.grad(total, self.policy.table, retain_graph=True)[0]


def test_the_sum_of_what_follows_has_the_gradient_of_the_expected_return(lab):
    game = Game(lab, **SHAPES["wide"])
    totals = torch.tensor([sum(turn.reward for turn in own) for own in game.turns])
    totals = totals.double() + torch.tensor(game.outcomes, dtype=torch.float64)
    expected = (game.log_probs.sum(dim=1).exp() * totals).sum()
    true = torch.autograd.grad(expected, game.policy.table, retain_graph=True)[0]
    assert lab.gap(game.gradient(game.returns(1.0)), true) < 1e-6


SHAPES = {"wide": {"symbols": 3, "length": 3}, "long": {"symbols": 2, "length": 4}}


@pytest.mark.parametrize(
    ("shape", "size", "discount"), [("wide", 2, 1.0), ("long", 3, 1.0), ("wide", 2, 0.6)]
)
def test_over_all_groups_the_gradient_of_returns_is_scaled_by_one_minus_one_over_g(
    lab, shape, size, discount
):
    game = Game(lab, **SHAPES[shape])
    algorithm = DrGRPO(DrGRPO.Config(credit={"name": "return", "discount": discount}))
    expected = (size - 1) / size * game.gradient(game.returns(discount))
    assert lab.gap(game.expected_gradient(algorithm, size), expected) < 1e-10


def test_the_expected_gradient_of_rae_is_that_of_the_expected_reward(lab):
    """Whatever the averages are, and with each episode alone."""
    game = Game(lab, **SHAPES["wide"])
    algorithm = RAE()
    algorithm.load_state_dict({"averages": {"": 0.4}})
    probabilities = game.log_probs.sum(dim=1).exp()
    expected = (probabilities * torch.tensor(game.outcomes, dtype=torch.float64)).sum()
    true = torch.autograd.grad(expected, game.policy.table, retain_graph=True)[0]
    outcomes = torch.tensor(game.outcomes, dtype=torch.float64).unsqueeze(1)
    estimated = advantages(algorithm, game.rollouts, game.outcomes, lab).unsqueeze(1)
    torch.testing.assert_close(estimated, outcomes - 0.4)
    assert lab.gap(game.gradient(estimated), true) < 1e-10


# ---- without turns, and what is left out


@pytest.mark.parametrize("settings", [{}, {"scale": "none", "least_std": 0.6}])
def test_without_rewards_of_turns_returns_are_the_outcome_bit_for_bit(lab, settings):
    bare = [[turn._replace(reward=None) for turn in own] for own in TURNS]
    rollouts = with_turns(lab, bare, GROUPS)
    by_return = GRPO(GRPO.Config(credit="return", **settings))
    expected = advantages(GRPO(GRPO.Config(**settings)), rollouts, REWARDS, lab)
    found = advantages(by_return, rollouts, REWARDS, lab)
    assert torch.equal(found, expected.unsqueeze(1) * rollouts.mask)
    assert torch.equal(advantages(by_return, replace(rollouts, turns=None), REWARDS, lab), found)


def test_rewards_of_turns_change_nothing_unless_they_are_credited(lab):
    rollouts = with_turns(lab, TURNS, GROUPS)
    expected = advantages(GRPO(), replace(rollouts, turns=None), REWARDS, lab)
    assert torch.equal(advantages(GRPO(), rollouts, REWARDS, lab), expected)


@pytest.mark.parametrize("credit", ["turns", "return", "gigpo"])
def test_an_episode_without_a_reward_teaches_nothing_and_changes_no_other(lab, credit):
    algorithm = GRPO(GRPO.Config(credit=credit))
    rollouts = with_turns(lab, TURNS, GROUPS)
    found = advantages(algorithm, rollouts, [*REWARDS[:3], NAN, *REWARDS[4:]], lab)
    assert not found[3].any()
    others = [0, 1, 2, 4, 5]
    rest = advantages(algorithm, rollouts.select(others), [REWARDS[n] for n in others], lab)
    torch.testing.assert_close(rest, found[others][:, : rest.shape[1]])


@pytest.mark.parametrize("credit", ["turns", "return", "gigpo"])
def test_a_group_has_a_signal_if_only_its_turns_differ(lab, credit):
    algorithm = GRPO(GRPO.Config(credit=credit))
    turns = [[Turn(1, 0.5, 1), Turn(1, 0.5, 2)], [Turn(1, 0.1, 1), Turn(1, 0.5, 2)]]
    same = [[Turn(1, 0.5, turn.state + 2) for turn in own] for own in turns]
    rollouts = with_turns(lab, [*turns, *same], [0, 0, 1, 1])
    no_signal = algorithm.no_signal(lab.scores_of(torch.ones(4)), rollouts)
    assert no_signal.tolist() == [False, False, True, True]


def test_turns_go_with_their_rollouts(lab):
    rollouts = with_turns(lab, TURNS, GROUPS)
    roles = replace(rollouts.select([1]), turns=None, roles=["x"])
    both = Rollouts.concat([rollouts.select([4, 0]), roles])
    assert both.turns == [TURNS[4], TURNS[0], (Turn(5),)]
    assert both.roles == [None, None, "x"]
    with pytest.raises(ValueError, match="turns has length 1, prompts has 6"):
        replace(rollouts, turns=TURNS[:1])


# ---- an update, a run


class Turny:
    """Makes a tabular policy's completions of two turns, with rewards and states."""

    @staticmethod
    def of(lab):
        class Policy(lab.Tabular):
            def sample(self, *args, **options):
                rollouts = super().sample(*args, **options)
                turns = []
                for symbols in rollouts.facts["completion_ids"]:
                    first = min(2, len(symbols))
                    state = symbols[1] if len(symbols) > 1 else 0
                    own = [Turn(first, symbols[0] / 2, 5), Turn(len(symbols) - first, None, state)]
                    turns.append(own[: 1 + (len(symbols) > 2)])
                roles = ["even" if len(turns) % 2 else "odd" for turns in turns]
                return replace(rollouts, turns=turns, roles=roles)

        return Policy


@pytest.mark.parametrize("credit", ["turns", "return", "gigpo"])
@pytest.mark.parametrize("kind", [GRPO, ReinforcePPBaseline])
def test_the_gradient_does_not_depend_on_micro_batches(lab, credit, kind):
    gradients = []
    for budget in (10**6, 7, 1):
        policy = Turny.of(lab)(length=6)
        rollouts = policy.sample(lab.rows(2), group_size=4, seeds=range(8))
        scores = lab.scores_of(torch.tensor(lab.ones(rollouts.completions)))
        algorithm = kind(kind.Config(credit=credit))
        lab.updater(policy, algorithm, budget).backward(
            scores=scores, rollouts=rollouts, outputs={}
        )
        gradients.append(lab.gradient(policy))
    assert float(gradients[0].norm()) > 0
    assert all(lab.gap(each, gradients[0]) < 1e-6 for each in gradients[1:])


@pytest.mark.parametrize(
    "algorithm", [GRPO(GRPO.Config(credit="gigpo")), RAE], ids=["gigpo", "rae"]
)
def test_a_resumed_run_equals_an_uninterrupted_one(lab, tmp_path, algorithm):
    def made():
        own = algorithm() if isinstance(algorithm, type) else algorithm
        return lab.trainer(Turny.of(lab)(), own, steps=4, epochs=2)

    uninterrupted, first, second = made(), made(), made()
    for _ in range(4):
        metrics = lab.step(uninterrupted)
    for _ in range(2):
        lab.step(first)
    lab.save(first, tmp_path)
    lab.restore(second, tmp_path)
    for _ in range(2):
        again = lab.step(second)
    assert torch.equal(second.policy.table, uninterrupted.policy.table)
    names = [name for name in metrics if name.startswith("baseline/")]
    assert len(names) == (2 if isinstance(algorithm, type) else 0)
    assert {name: again[name] for name in names} == {name: metrics[name] for name in names}


def test_averages_of_rae_move_after_the_step_by_each_episode_once(lab):
    trainer = lab.trainer(Turny.of(lab)(), RAE(RAE.Config(decay=0.8)), epochs=2, held_out=0.0)
    expected = {}
    for _ in range(2):
        trainer.due()
        scored = trainer.experience.next(trainer.state)
        before = dict(trainer.algorithm.averages)
        trainer.learn(scored)
        assert trainer.algorithm.averages == before
        trainer.end_step({**scored.metrics, **dict.fromkeys(["grad_norm"], 0.0)})
        rows = zip(lab.trained(scored).roles, scored.scores.total.tolist(), strict=True)
        for role, reward in rows:
            expected[role] = 0.8 * expected.get(role, 0.0) + (1 - 0.8) * reward
        assert trainer.algorithm.averages == pytest.approx(expected)
    assert len(expected) == 2


def test_averages_of_rae_move_by_the_learners_own_episodes(lab):
    """Though its groups are shared with another learner."""
    policy, algorithm = lab.Tabular(), RAE(RAE.Config(decay=0.5, length=8))
    rollouts = policy.sample(lab.rows(2), group_size=2, seeds=range(4))
    own, others = map(
        lab.scores_of, torch.tensor([[math.nan, math.nan, 1.0, 2.0], [8.0, 8.0, 8.0, 8.0]])
    )
    updater = lab.updater(policy, algorithm, 100)
    update = {"scores": own, "rollouts": rollouts, "outputs": {}, "rest": (rollouts, others)}
    for repeated in (False, True):
        updater.targets(Update(**update, repeated=repeated))
    algorithm.end_step(None, 1)
    assert algorithm.averages == {"": 0.5 * (0.5 * 1.0) + 0.5 * 2.0}


def test_completions_that_are_kept_for_replay_keep_their_turns(lab, reloaded):
    def right(completions, **_):
        return [1.0] * len(completions)

    right.judges = True
    replay, restored = lab.replay_of(right), lab.replay_of(right)
    rollouts = Turny.of(lab)().sample(lab.rows(1), group_size=8, seeds=range(8))
    rollouts = replace(rollouts, versions=torch.zeros(8, dtype=torch.int64))
    long = int(rollouts.lengths.argmax())
    assert len(rollouts.turns[long]) == 2
    lab.fill(replay, rollouts, lab.scores_of((torch.arange(8) == long).double()), 0)
    restored.load_state_dict(reloaded(replay.state_dict()))
    wrong = rollouts.select([row for row in range(8) if row != long])
    for own in (replay, restored):
        filled = lab.fill(own, wrong, lab.scores_of(torch.zeros(7)), 0)
        (row,) = filled.replayed.nonzero().flatten().tolist()
        assert filled.rollouts.turns[row] == rollouts.turns[long]
        assert filled.rollouts.roles[row] == rollouts.roles[long]


# ---- mistakes


@pytest.mark.parametrize("kind", [GDPO, RLOO])
def test_algorithms_that_compare_in_a_way_of_their_own_refuse_returns(kind):
    with pytest.raises(ValueError, match=r"credit: return compares what .*; set credit: turns"):
        kind(kind.Config(credit="return"))
    assert kind(kind.Config(credit="turns")).config.credit.weight is None


@pytest.mark.parametrize(
    ("credit", "message"),
    [
        ({"name": "turns", "discount": 0.9}, "credit: turns has no discount; leave it out"),
        ({"name": "return", "weight": 1.0}, "credit: return has no weight; leave it out"),
        ("step", "Input should be 'outcome', 'turns', 'return' or 'gigpo'"),
        ({"name": "return", "discount": 1.5}, "less than or equal to 1"),
    ],
)
def test_options_that_a_credit_does_not_have_are_refused(credit, message):
    with pytest.raises(ValueError, match=message):
        GRPO.Config(credit=credit)


@pytest.mark.parametrize("credit", ["turns", "return", "gigpo"])
def test_a_std_of_the_batch_is_refused_where_turns_are_compared(credit):
    with pytest.raises(ValueError, match=rf"scale: batch is .* credit: {credit} compares turns"):
        GRPO(GRPO.Config(credit=credit, scale="batch"))


@pytest.mark.parametrize(("credit", "column"), [("turns", "turn_rewards"), ("gigpo", "states")])
def test_a_step_in_which_no_turn_has_what_is_compared_says_so(lab, credit, column):
    algorithm = GRPO(GRPO.Config(credit=credit))
    bare = with_turns(lab, [[Turn(1), Turn(1)]] * 2, [0, 0])
    full = with_turns(lab, [[Turn(1, 1.0, 7), Turn(1)]] * 2, [0, 0])
    plain = advantages(GRPO(), bare, [0.0, 1.0], lab)
    assert algorithm.warning({}) is None
    scores = lab.scores_of(torch.tensor([0.0, 1.0]))
    found = advantages(algorithm, bare, [0.0, 1.0], lab)
    assert torch.equal(found, plain.unsqueeze(1) * bare.mask)
    algorithm.observe(scores, bare)
    assert f"{credit} compares `{column}`, and in this step" in algorithm.warning({})
    for rollouts in (full, bare):  # two updates of a step
        algorithm.observe(scores, rollouts)
    assert algorithm.warning({}) is None
