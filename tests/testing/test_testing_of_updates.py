"""Checks of algorithms and rewards: each law holds for a toy and fails for one that breaks it."""

import copy
import random
import re
from dataclasses import replace

import pytest
import torch

from groupwise import objective, testing
from groupwise.algorithms.grpo import GRPO
from groupwise_algorithms.gspo import GSPO
from groupwise_testing import algorithm as algorithm_checks
from groupwise_testing import reward as reward_checks


def names(laws):
    return [law.name for law in laws]


def assert_breaks(name):
    return pytest.raises(AssertionError, match=f'breaks the law "{re.escape(name)}": ')


# ---- algorithms


class TakesEntropy(GRPO):
    def loss(self, current, batch):
        return super().loss(current, batch) - 0.1 * current.entropy * batch["weights"]


class Targets(GRPO):
    def targets(self, scores, rollouts, inputs):
        return self.change(super().targets(scores, rollouts, inputs), scores, rollouts)


class InDoubles(Targets):
    def change(self, targets, scores, rollouts):
        return {**targets, "weights": targets["weights"].double()}


class Sums(Targets):
    def change(self, targets, scores, rollouts):
        return {**targets, "weights": targets["weights"] * len(rollouts)}


class NoBaseline(Targets):
    def change(self, targets, scores, rollouts):
        return {**targets, "advantages": scores.total.float()}


class MissingIsWorst(GRPO):
    def relative(self, scores, rollouts):
        return super().relative(replace(scores, values=scores.values.nan_to_num()), rollouts)


class MissingIsAverage(GRPO):
    """The completion has advantage 0, but counts as a reward of 0 in the mean of the others."""

    def relative(self, scores, rollouts):
        filled = replace(scores, values=scores.values.nan_to_num())
        return super().relative(filled, rollouts).masked_fill(scores.total.isnan(), 0.0)


class OfOneSize(GRPO):
    """Takes the size of the first group for that of all."""

    def __init__(self):
        super().__init__(GRPO.Config(scale="none"))

    def relative(self, scores, rollouts):
        order = rollouts.groups.argsort(stable=True)
        size = int((rollouts.groups == rollouts.groups.min()).sum())
        if len(order) % size or bool(scores.total.isnan().any()):
            return super().relative(scores, rollouts)
        rows = scores.total[order].view(-1, size)
        relative = torch.zeros_like(scores.total)
        relative[order] = (rows - rows.mean(dim=1, keepdim=True)).flatten()
        return relative


class InRows(GRPO):
    def __init__(self):
        super().__init__(GRPO.Config(scale="none"))

    def relative(self, scores, rollouts):
        if len(scores.total) % 4:
            return super().relative(scores, rollouts)
        rows = scores.total.view(-1, 4)
        return (rows - rows.nanmean(dim=1, keepdim=True)).nan_to_num().flatten()


class OneForAllSteps(GSPO):
    """GSPO without the stop-gradient of GSPO-token: all steps have the mean of their gradients."""

    def log_ratio(self, current, batch):
        return objective.sequence_log_ratio(
            current.log_probs, batch["old_log_probs"], batch["mask"]
        )


class WeighsTheKL(GRPO):
    def __init__(self):
        super().__init__(GRPO.Config(beta=0.1))

    def kl(self, current, batch):
        kl, importance = super().kl(current, batch), self.importance(batch)
        return kl if importance is None else kl * importance


class NoImportanceWeights(GRPO):
    def importance(self, batch):
        return None


class Flat(GRPO):
    def loss(self, current, batch):
        log_ratio = current.log_probs - batch["old_log_probs"]
        return log_ratio.square() * batch["advantages"].unsqueeze(1) * batch["weights"]


class ByRows(GRPO):
    def loss(self, current, batch):
        return super().loss(current, batch) / len(batch["mask"])


class CutsSequences(GSPO):
    couples_decisions = False


class OverflowsBehind(GRPO):
    def __init__(self):
        super().__init__(GRPO.Config(entropy=0.1))

    def loss(self, current, batch):
        return super().loss(current, batch) + 1e-3 * current.entropy.exp() * batch["weights"]


class MasksTooLate(GRPO):
    def loss(self, current, batch):
        ratio = (current.log_probs - batch["old_log_probs"]).exp()
        return -ratio * batch["advantages"].unsqueeze(1) * batch["weights"]


class ByLengths(Targets):
    def change(self, targets, scores, rollouts):
        positions = torch.arange(rollouts.mask.shape[1])
        return {
            **targets,
            "weights": targets["weights"] * (positions < rollouts.lengths.unsqueeze(1)),
        }


class OnlyTheGood(GRPO):
    def active(self, targets):
        return targets["advantages"] > 0


class Climbs(GRPO):
    def loss(self, current, batch):
        return -super().loss(current, batch)


class MeasuresNothing(GRPO):
    def measure(self, current, batch):
        return {"share": current.log_probs * float("nan")}


class LosesCount(GRPO):
    count = 0

    def targets(self, scores, rollouts, inputs):
        self.count += 1
        return super().targets(scores, rollouts, inputs)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        pass


ALGORITHMS = {
    "`needs`, `old`, `reference` and `target_inputs` name all outputs that it reads": TakesEntropy,
    "targets have the shapes of the whole update": InDoubles,
    "`weights` divide by counts over the whole update": Sums,
    "equal rewards teach nothing": NoBaseline,
    "a completion without a reward teaches nothing": MissingIsWorst,
    "rollouts may come in any order": InRows,
    "completions that failed may be missing from their group": OfOneSize,
    "different rewards give a gradient": Flat,
    "the gradient does not depend on micro-batches": ByRows,
    "cutting rollouts apart changes no gradient, unless couples_decisions": CutsSequences,
    "padding changes no gradient": OverflowsBehind,
    "infinite padding leaves the gradient finite": MasksTooLate,
    "every decision has a gradient, also behind holes of the mask": ByLengths,
    "`active` leaves out only rollouts without gradient": OnlyTheGood,
    "an update makes rewarded completions likelier": Climbs,
    "an advantage moves its own decision": OneForAllSteps,
    "importance weights multiply the surrogate only": WeighsTheKL,
    "`measure` returns one number per decision": MeasuresNothing,
    "its state survives a checkpoint": LosesCount,
}


def test_every_law_of_algorithms_has_an_example_that_breaks_it():
    assert list(ALGORITHMS) == names(algorithm_checks.LAWS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_that_breaks_a_law_fails_its_check(name):
    with assert_breaks(name):
        testing.check_algorithm(ALGORITHMS[name]())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a completion without a reward teaches nothing", MissingIsAverage),
        ("importance weights multiply the surrogate only", NoImportanceWeights),
    ],
)
def test_a_second_way_to_break_a_law_fails_its_check(name, kind):
    with assert_breaks(name):
        testing.check_algorithm(kind())


def test_extra_outputs_that_an_algorithm_needs_are_passed_to_the_check():
    class Hits(GRPO):
        needs = frozenset({"log_probs", "hit"})

        def __init__(self):
            super().__init__()
            self.needs = type(self).needs

        def loss(self, current, batch):
            return super().loss(current, batch) * current.extra["hit"].exp()

    with pytest.raises(ValueError, match="Hits needs 'hit', which the toy policy does not provide"):
        testing.check_algorithm(Hits())
    testing.check_algorithm(Hits(), extras={"hit": lambda log_probs: log_probs.detach().exp()})


def test_an_algorithm_may_have_a_value_as_its_baseline():
    class Valued(GRPO):
        target_inputs = frozenset({"old_value"})

        def __init__(self):
            super().__init__()
            self.needs = frozenset({"log_probs", "value"})

        def targets(self, scores, rollouts, inputs):
            targets = super().targets(scores, rollouts, inputs)
            advantages = objective.per_decision(targets["advantages"]) - inputs["old_value"].float()
            return {**targets, "advantages": advantages}

    testing.check_algorithm(Valued())


# ---- rewards

ROWS = [{"prompt": f"word {n}", "number": n, "keys": [2, 1]} for n in range(3)]
WORDS = ["a", "bbb", "cc"]


def length(completions):
    return [float(len(text)) for text in completions]


def one_too_few(completions):
    return length(completions)[1:]


def random_reward(completions):
    return [random.random() for _ in completions]


def relative(completions):
    lengths = length(completions)
    return [value - sum(lengths) / len(lengths) for value in lengths]


def in_order(completions, number):
    return [float(number == sorted(number))] * len(completions)


def only_letters(completions):
    return [float(ord(text[0])) for text in completions]


class Remembers:
    def __init__(self):
        self.calls = 0

    def __call__(self, completions):
        self.calls += 1
        return length(completions)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = 0


REWARDS = {
    "the reward returns one value per completion": one_too_few,
    "the same completion has the same reward": random_reward,
    "a completion's reward does not depend on the batch": relative,
    "a completion's reward does not depend on the order": in_order,
    "any text gets a reward, without an exception": only_letters,
    "its state survives a checkpoint": Remembers(),
}


def test_correct_rewards_satisfy_all_laws():
    async def asynchronous(completions, number, **columns):
        return [text * 0 + n for text, n in zip(length(completions), number, strict=True)]

    def steps(completions):
        return [[1.0, None, len(text)][: len(text)] for text in completions]

    testing.check_reward(length, ROWS, WORDS)
    testing.check_reward(asynchronous, ROWS, WORDS)
    testing.check_reward(steps, ROWS, WORDS, decisions=[1, 3, 2])
    testing.check_reward(relative, ROWS, WORDS * 3, group_size=3)
    assert list(REWARDS) == names(reward_checks.LAWS)


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_that_breaks_a_law_fails_its_check(name):
    with assert_breaks(name):
        testing.check_reward(REWARDS[name], copy.deepcopy(ROWS), WORDS)
