"""Checks of policies and samplers: each law holds for a toy and fails for one that breaks it."""

import copy
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.core import conftest

import groupwise_testing
from groupwise import Algorithm, LogProbs, Policy, Rollouts, Sampler, objective, testing
from groupwise.advantages import group_relative
from groupwise.algorithms.grpo import GRPO
from groupwise.policy import Uncopied
from groupwise.rollouts import Turn
from groupwise_testing import policy as policy_checks
from groupwise_testing import sampler as sampler_checks
from groupwise_testing.policy import gradients
from groupwise_testing.policy.case import Case

lab = conftest.lab  # in a conftest of `test*`, torch would be imported before workers start

# ---- the door: `groupwise.testing` loads the package of the laws by name


def test_the_door_has_what_the_package_exports():
    assert dir(testing) == sorted(groupwise_testing.__all__)
    for name in testing.__all__:
        assert getattr(testing, name) is getattr(groupwise_testing, name)
    with pytest.raises(AttributeError, match=r"'groupwise\.testing' has no attribute 'check_all'"):
        _ = testing.check_all


@pytest.mark.slow
def test_the_door_loads_the_package_at_first_use():
    script = (
        "import sys, groupwise.testing as door; assert 'groupwise_testing' not in sys.modules;"
        "door.check_policy; assert 'groupwise_testing' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_missing_package_of_laws_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "groupwise_testing", None)
    with pytest.raises(ModuleNotFoundError, match="check_policy is in the package groupwise_testi"):
        _ = testing.check_policy


# ---- policies: a table whose longer rollouts have holes


def policy_of(lab, *broken, **settings):
    """A table with holes; broken: classes that break one law and none listed before it."""
    return type("Toy", (*broken, Holes, lab.Tabular), {})(**settings)


class Holes:
    """Longer rollouts have a hole of two positions."""

    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        mask = rollouts.mask.clone()
        mask[rollouts.extents > 3, 1:3] = False
        return replace(rollouts, mask=mask)


class Ungrouped:
    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        return replace(rollouts, groups=rollouts.groups * 0)


class Failing:
    """Marks every other rollout, by its seed."""

    noise = 1.0

    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        failures = ["its noise is too loud" if s % 2 else None for s in options["seeds"]]
        noise = [torch.tensor([self.noise if failure else 0.0]) for failure in failures]
        trajectory = {**rollouts.trajectory, "noise": noise}
        return replace(rollouts, failures=failures, trajectory=trajectory)


class NotFinite(Failing):
    noise = torch.inf


class MissingFact:
    """Declares an optional fact that is never returned."""

    optional_facts = frozenset({"square"})


class ByBatch:
    def sample(self, prompts, *, seeds, **options):
        return super().sample(prompts, seeds=[s + len(prompts) for s in seeds], **options)


class IgnoresSeeds:
    def sample(self, prompts, *, seeds, **options):
        return super().sample(prompts, seeds=[7] * len(seeds), **options)


class UsesGlobalGenerator:
    def sample(self, prompts, **options):
        torch.rand(1)
        return super().sample(prompts, **options)


class NeverGreedy:
    def sample(self, prompts, *, purpose="train", **options):
        return super().sample(prompts, purpose="train", **options)


class MissingOutput:
    provides = frozenset({"log_probs", "entropy", "value"})


class Sharper:
    def _draw(self, *args):
        self.table.data *= 4
        symbols = super()._draw(*args)
        self.table.data /= 4
        return symbols


class SeesPadding:
    def forward(self, rollouts, decisions=slice(None)):
        total = rollouts.trajectory["symbols"].sum(dim=1, keepdim=True)
        return shifted(super().forward(rollouts, decisions), 1e-3 * total)


class ByRowNumber:
    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        column = {"row": list(torch.arange(len(rollouts)))}
        return replace(rollouts, trajectory={**rollouts.trajectory, **column})

    def forward(self, rollouts, decisions=slice(None)):
        output = super().forward(rollouts, decisions)
        if "row" not in rollouts.trajectory:
            return output
        moved = torch.arange(len(rollouts)) - torch.stack(rollouts.trajectory["row"])
        return shifted(output, 1e-3 * moved.unsqueeze(1))


class ReadsCompletions:
    def forward(self, rollouts, decisions=slice(None)):
        missing = torch.tensor([text is None for text in rollouts.completions])
        return shifted(super().forward(rollouts, decisions), missing.unsqueeze(1))


class ByLengths:
    def microbatches(self, rollouts, budget, *, cut_decisions):
        return [(torch.arange(len(rollouts)), slice(0, int(rollouts.lengths.max())))]


class NoContext:
    def forward(self, rollouts, decisions=slice(None)):
        symbols = rollouts.trajectory["symbols"][:, decisions]
        cut = {**rollouts.trajectory, "symbols": symbols}
        mask = rollouts.mask[:, decisions]
        return super().forward(replace(rollouts, mask=mask, trajectory=cut, sampler_log_probs=None))


class DetachesOne:
    def forward(self, rollouts, decisions=slice(None)):
        output = super().forward(rollouts, decisions)
        if len(rollouts) > 1:
            return output
        return LogProbs(log_probs=output.log_probs.detach(), entropy=output.entropy)


class TwiceTheGradient:
    def forward(self, rollouts, decisions=slice(None)):
        output = super().forward(rollouts, decisions)
        log_probs = output.log_probs
        return LogProbs(log_probs=2 * log_probs - log_probs.detach(), entropy=output.entropy)


class NeverRestores:
    def uncopied(self):
        first = {"table": self.table.detach().clone()}

        @contextmanager
        def using():
            present = self.table.detach().clone()
            self.table.data.copy_(first["table"])
            yield
            self.table.data.copy_(present)  # not after an exception

        return Uncopied(using, lambda: first)


class Forgets:
    def state_dict(self, *args, **options):
        state = super().state_dict(*args, **options)
        return {name: torch.zeros_like(value) for name, value in state.items()}


class Biased:
    def __init__(self):
        super().__init__(bias=2e-4)


POLICIES = {
    "`sample` returns `group_size` rollouts per row, in order": Ungrouped,
    "failed rollouts have finite trajectories": NotFinite,
    "optional facts are returned on request": MissingFact,
    "a sample depends on its seed alone": ByBatch,
    "other seeds give other samples": IgnoresSeeds,
    "sampling does not use torch's global generator": UsesGlobalGenerator,
    "greedy samples do not depend on seeds": NeverGreedy,
    "`forward` returns what `provides` names": MissingOutput,
    "the ratio is one": Biased,
    "`forward` scores the distribution that `sample` draws from": Sharper,
    "padding changes no output": SeesPadding,
    "selected and joined rollouts have the same outputs": ByRowNumber,
    "rollouts that were sent to another process have the same outputs": ReadsCompletions,
    "every decision is in one micro-batch, also behind holes of the mask": ByLengths,
    "`forward` of some decisions returns the same as for all": NoContext,
    "the gradient does not depend on micro-batches": DetachesOne,
    "the gradient is that of the outputs": TwiceTheGradient,
    "kept weights are copies, and current ones return after `using`": NeverRestores,
    "saving and loading keeps the weights": Forgets,
}


def shifted(output, shift):
    return LogProbs(log_probs=output.log_probs + shift, entropy=output.entropy, extra=output.extra)


def names(laws):
    return [law.name for law in laws]


def assert_breaks(name):
    return pytest.raises(AssertionError, match=f'breaks the law "{re.escape(name)}": ')


def test_a_correct_policy_satisfies_all_laws(lab):
    policy = policy_of(lab)
    before = policy.table.detach().clone()
    testing.check_policy(policy, lab.rows(3))
    assert torch.equal(policy.table, before)
    assert list(POLICIES) == names(policy_checks.LAWS)


def test_a_policy_may_mark_rollouts_as_failed(lab):
    testing.check_policy(policy_of(lab, Failing), lab.rows(3))


@pytest.mark.parametrize("name", names(policy_checks.LAWS))
def test_a_policy_that_breaks_a_law_fails_its_check(lab, name):
    with assert_breaks(name):
        testing.check_policy(policy_of(lab, POLICIES[name]), lab.rows(3))


def test_a_loaded_policy_is_compared_with_the_saved_one(lab):
    testing.check_policy(policy_of(lab), lab.rows(3), load=lambda path: policy_of(lab))
    with assert_breaks("saving and loading keeps the weights"):
        testing.check_policy(policy_of(lab), lab.rows(3), load=lambda path: policy_of(lab, seed=1))


# ---- the law of gradients: a network of two branches


class TwoBranches(Policy):
    """Draws from a Normal around the sum of two branches, one of which may have no gradient."""

    provides = frozenset({"log_probs", "mean"})
    exact = True
    greedy = False

    def __init__(self, detached=False, declared=False, narrow=False):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = (torch.nn.Linear(3, 4) for _ in range(2))
        self.detached, self.declared, self.narrow = detached, declared, narrow

    def branches(self, seeds):
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        noise = torch.stack([torch.randn(2, 7, generator=g) for g in generators])
        if self.narrow and noise.dtype != torch.float32:
            raise TypeError("a kernel for float32 alone")
        inputs, drawn = noise[..., :3], noise[..., 3:]
        other = self.other(inputs).tanh()
        return self.one(inputs), other.detach() if self.detached else other, drawn

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        with torch.no_grad():
            one, other, drawn = self.branches(seeds)
        seeds = torch.tensor(list(seeds))
        values = one + other + drawn
        rollouts = Rollouts(
            prompts=[row for row in prompts for _ in range(group_size)],
            completions=values.tolist(),
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            mask=torch.ones(len(seeds), 2, dtype=torch.bool),
            truncated=torch.zeros(len(seeds), dtype=torch.bool),
            trajectory={"values": values, "seeds": list(seeds)},
        )
        log_probs = self(rollouts).log_probs.detach()
        return replace(rollouts, sampler_log_probs=log_probs)

    def with_constants(self, rollouts):
        if not self.declared:
            return rollouts
        other = self.branches(rollouts.trajectory["seeds"])[1].detach()
        return replace(rollouts, trajectory={**rollouts.trajectory, "other": list(other)})

    def forward(self, rollouts, decisions=slice(None)):
        one, other, _ = self.branches(rollouts.trajectory["seeds"])
        if "other" in rollouts.trajectory:
            other = torch.stack(list(rollouts.trajectory["other"]))
        mean = (one + other)[:, decisions]
        gaps = rollouts.tensor("values")[:, decisions] - mean
        return LogProbs(log_probs=-gaps.square().mean(-1), extra={"mean": mean})


WORDS = [{"prompt": "a"}, {"prompt": "b"}]


@pytest.mark.parametrize("exact", [True, False])
def test_a_branch_without_a_gradient_breaks_the_law_and_is_named(exact):
    for detached in (False, True):
        policy = TwoBranches(detached=detached)
        policy.exact = exact
        if not detached:
            testing.check_policy(policy, WORDS)
    with pytest.raises(AssertionError) as caught:
        testing.check_policy(policy, WORDS)
    message = str(caught.value)
    assert re.search(r"parameters other\.\w+ deviates most: 0 and -?\d", message), message
    assert "of the 4 parameters, the gradient of " in message


def test_a_declared_approximation_is_compared_with_what_it_declares():
    testing.check_policy(TwoBranches(detached=True, declared=True), WORDS)
    # Declared, and not left out: then it is the declared gradient that is wrong.
    with assert_breaks("the gradient is that of the outputs"):
        testing.check_policy(TwoBranches(declared=True), WORDS)

    class Moved(TwoBranches):
        def with_constants(self, rollouts):
            other = self.branches(rollouts.trajectory["seeds"])[1].detach() + 1
            return replace(rollouts, trajectory={**rollouts.trajectory, "other": list(other)})

    with pytest.raises(AssertionError, match="are others for rollouts by `with_constants`"):
        testing.check_policy(Moved(), WORDS)


def test_the_gradient_is_compared_in_float32_where_a_policy_cannot_compute_in_float64():
    for narrow, method in ((False, "float64"), (True, "float32")):
        case = Case(TwoBranches(narrow=narrow), WORDS, 4, None)
        assert gradients.Gradients(case, case.sample()).method == method
    testing.check_policy(TwoBranches(narrow=True), WORDS)
    with assert_breaks("the gradient is that of the outputs"):
        testing.check_policy(TwoBranches(narrow=True, detached=True), WORDS)


# ---- samplers: an engine with a copy of the weights


class Engine(Sampler):
    def __init__(self, policy, bias=0.02):
        self.policy, self.copy, self.bias, self.version = policy, copy.deepcopy(policy), bias, -1

    def follow(self, policy, name, version):
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        rollouts = self.copy.sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)
        return replace(
            rollouts,
            sampler_log_probs=rollouts.sampler_log_probs + self.bias,
            versions=torch.full((len(rollouts),), self.version),
        )


class MissingRequirement(Engine):
    requires = frozenset({"tokens"})


class Ungrouped(Engine):
    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        return replace(rollouts, groups=rollouts.groups * 0)


class OldVersions(Engine):
    def follow(self, policy, name, version):
        super().follow(policy, name, version)
        self.version = 1


class ByBatch(Engine):
    def sample(self, prompts, *, seeds, **options):
        return super().sample(prompts, seeds=[s + len(prompts) for s in seeds], **options)


class SharesWeights(Engine):
    def follow(self, policy, name, version):
        self.copy, self.version = policy, version


class NeverCopies(Engine):
    def follow(self, policy, name, version):
        self.version = version


class InFlight(Engine):
    """In another thread it draws the first decisions of each completion, and the others when it has
    newer weights; in the test's own, which follows, all at once."""

    follows_in_flight, seeded, keeps = True, False, False

    def __init__(self, policy):
        super().__init__(policy, bias=0.0)
        self.changed = threading.Condition()

    def follow(self, policy, name, version):
        with self.changed:
            super().follow(policy, name, version)
            self.changed.notify_all()

    def sample(self, prompts, **options):
        older, first = copy.deepcopy(self.copy), self.version
        if threading.current_thread() is not threading.main_thread():
            with self.changed:
                assert self.changed.wait_for(lambda: self.version > first, 60)
        joint = copy.deepcopy(self.copy)
        joint.table.data[:, :2] = older.table.data[:, :2]
        rollouts = joint.sample(prompts, **options)
        if self.keeps:
            wrong = older(rollouts).log_probs.detach()
            rollouts = replace(rollouts, sampler_log_probs=wrong)
        lengths = rollouts.lengths.tolist()
        spans = [[(first, min(2, n)), (self.version, max(0, n - 2))] for n in lengths]
        return replace(
            rollouts,
            versions=torch.full((len(rollouts),), first),
            turns=[[Turn(sum(n for _, n in own), spans=own)] for own in spans],
        )


class KeepsKeys(InFlight):
    keeps = True


ENGINES = [
    ("the sampler fits the policy", MissingRequirement),
    ("`sample` returns `group_size` rollouts per row, in order", Ungrouped),
    ("`versions` are those that `follow` received", OldVersions),
    ("the sampler's log-probs are the policy's", lambda policy: Engine(policy, bias=0.06)),
    ("a sample depends on its seed alone", ByBatch),
    ("the sampler draws with the weights of the last `follow`", SharesWeights),
    ("the sampler draws with the weights of the last `follow`", NeverCopies),
    ("what is drawn during a `follow` has the log-probs of the weights that drew it", KeepsKeys),
]


def test_correct_samplers_satisfy_all_laws(lab):
    policy = lab.Tabular()
    before = policy.table.detach().clone()
    for sampler in (Engine(policy), policy, InFlight(policy)):
        testing.check_sampler(sampler, policy, lab.rows(3))
    assert torch.equal(policy.table, before)
    assert list(dict.fromkeys(name for name, _ in ENGINES)) == names(sampler_checks.LAWS)


@pytest.mark.parametrize(("name", "engine"), ENGINES)
def test_a_sampler_that_breaks_a_law_fails_its_check(lab, name, engine):
    policy = lab.Tabular()
    with assert_breaks(name):
        testing.check_sampler(engine(policy), policy, lab.rows(3))


def test_exact_log_probs_have_a_smaller_tolerance(lab):
    policy = lab.Tabular()
    engine = Engine(policy, bias=2e-4)
    engine.exact = True
    with assert_breaks("the sampler's log-probs are the policy's"):
        testing.check_sampler(engine, policy, lab.rows(3))


def test_fewer_than_two_rows_are_refused(lab):
    with pytest.raises(ValueError, match="needs two rows or more, received 1"):
        testing.check_policy(lab.Tabular(), lab.rows(1))


# ---- parts without log-probs


class Thrower(Policy):
    """Throws at a number: a completion is `aim` plus noise. It has no log-probs."""

    provides = frozenset({"aim", "hit"})

    def __init__(self, noise=0.5):
        super().__init__()
        self.aim, self.noise = torch.nn.Parameter(torch.zeros(1)), noise

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        rows = [row for row in prompts for _ in range(group_size)]
        noise = [torch.randn((), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        scale = 0.0 if purpose == "greedy" else self.noise
        hits = self.aim.detach() + scale * torch.stack(noise)
        return Rollouts(
            prompts=rows,
            completions=hits.tolist(),
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            mask=torch.ones(len(rows), 1, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
            trajectory={"hits": hits.unsqueeze(1)},
        )

    def forward(self, rollouts, decisions=slice(None)):
        hits = rollouts.tensor("hits")[:, decisions]
        return LogProbs(log_probs=None, extra={"aim": self.aim.expand(hits.shape), "hit": hits})


class Pull(Algorithm):
    """Moves the aim towards the hits, in proportion to their advantage."""

    needs = frozenset({"aim", "hit"})
    old = frozenset({"aim"})

    def targets(self, scores, rollouts, inputs):
        return {
            "advantages": group_relative(scores.total, rollouts.groups).float(),
            "weights": objective.weights(rollouts.mask, normalize="token"),
        }

    def loss(self, current, batch):
        aim, advantages = current.extra["aim"], batch["advantages"].unsqueeze(1)
        pull = (
            advantages * (aim - current.extra["hit"]).square() + (aim - batch["old_aim"]).square()
        )
        return torch.where(batch["mask"], pull * batch["weights"], 0.0)


def test_policies_and_algorithms_without_log_probs_can_be_checked():
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    testing.check_policy(Thrower(), rows)
    with assert_breaks("other seeds give other samples"):
        testing.check_policy(Thrower(noise=0.0), rows)
    extras = {
        "aim": lambda log_probs: log_probs / 2,
        "hit": lambda log_probs: log_probs.detach() + 1,
    }
    testing.check_algorithm(Pull(), extras=extras)


# ---- adapters: their plugin defines the laws


def test_an_adapter_is_checked_by_the_laws_of_its_base_class(monkeypatch):
    calls = []

    def check(adapter_class, pipeline, **options):
        calls.append((adapter_class, pipeline, options))

    monkeypatch.setitem(sys.modules, "some_plugin", SimpleNamespace(check=check))

    class Adapter:
        laws = "some_plugin:check"

    class Own(Adapter):
        pass

    testing.check_adapter(Own, "pipeline", height=8)
    assert calls == [(Own, "pipeline", {"height": 8})]
    with pytest.raises(TypeError, match="object has no `laws`; an adapter is a subclass of"):
        testing.check_adapter(object, "pipeline")


def test_an_error_names_the_law_the_numbers_and_likely_causes(lab):
    with pytest.raises(AssertionError) as caught:
        testing.check_policy(lab.Tabular(bias=0.5), lab.rows(2))
    law, advice = str(caught.value).splitlines()
    assert law == (
        'Tabular breaks the law "the ratio is one": the largest gap between log-probs of '
        "`forward` and of `sample` is 0.5 nats, at most 0.0001 is allowed"
    )
    assert advice.startswith("  look at: the same code and precision in `sample` and `forward`: ")


def test_an_exception_is_reported_with_the_line_in_the_checked_code():
    class Slips(GRPO):
        def loss(self, current, batch):
            return super().loss(current, batch).view(7, -1)

    with pytest.raises(
        AssertionError, match=r"`loss`, line \d+ of test_testing.py, raised Runtime"
    ):
        testing.check_algorithm(Slips(GRPO.Config()))
