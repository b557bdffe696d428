"""The moving average of the weights: its formula, its use in evaluations, its checkpoints."""

import json
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from groupwise import Policy, train
from groupwise.kit.errors import UserError
from groupwise.policy import Uncopied
from groupwise.prompts.seeds import seed_for
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.saved import read_weights
from groupwise.storage.staging import Checkpoint
from groupwise.weights import KeptWeights


class Pair(Policy):
    """A policy with a trained weight and a frozen one."""

    def __init__(self, value=0.0):
        super().__init__()
        self.trained = nn.Parameter(torch.tensor([value], dtype=torch.float64))
        self.frozen = nn.Parameter(torch.tensor([7.0]), requires_grad=False)

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        raise NotImplementedError

    def forward(self, rollouts, decisions=slice(None)):
        raise NotImplementedError

    def move(self, value):
        with torch.no_grad():
            self.trained.fill_(value)


def kept_weight(kept, name="average"):
    return float(kept.copies(name)["trained"])


def test_the_average_matches_its_formula():
    policy = Pair(1.0)
    kept = KeptWeights(policy)
    kept.keep("average")
    expected = 1.0
    for value in (3.0, -5.0, 2.0):
        policy.move(value)
        kept.blend("average", 0.75)
        expected = 0.75 * expected + 0.25 * value
        assert kept_weight(kept) == pytest.approx(expected, rel=1e-15)
        assert policy.trained.item() == value
    assert kept.changes == {"average": 4}


def test_only_trained_weights_are_kept():
    policy = Pair()
    kept = KeptWeights(policy)
    kept.keep("average")
    assert kept.copies("average").keys() == {"trained"}
    assert kept.copies("other") == {}


def test_weights_are_kept_under_several_names():
    policy = Pair(1.0)
    kept = KeptWeights(policy)
    kept.keep("first")
    policy.move(2.0)
    kept.keep("second")
    policy.move(3.0)
    with kept.using("first"):
        assert policy.trained.item() == 1.0
    with kept.using("second"):
        assert policy.trained.item() == 2.0
    kept.keep("first")
    assert (kept_weight(kept, "first"), kept_weight(kept, "second")) == (3.0, 2.0)


def test_using_exchanges_the_weights_and_restores_them():
    policy = Pair(1.0)
    kept = KeptWeights(policy)
    kept.keep("average")
    policy.move(3.0)
    kept.blend("average", 0.5)
    for _ in range(2):
        with kept.using("average"):
            assert policy.trained.item() == 2.0
            assert float(policy.frozen) == 7.0
        assert policy.trained.item() == 3.0
        assert kept_weight(kept) == 2.0


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_weights_are_restored_after_an_error(error):
    policy = Pair(1.0)
    kept = KeptWeights(policy)
    kept.keep("average")
    policy.move(3.0)
    with pytest.raises(error), kept.using("average"):
        raise error
    assert policy.trained.item() == 3.0
    assert kept_weight(kept) == 1.0


def test_the_optimizer_keeps_its_parameters():
    """Weights are exchanged in place, so an optimizer's parameters stay those of the policy."""
    policy = Pair(1.0)
    kept = KeptWeights(policy)
    optimizer = torch.optim.SGD([policy.trained], lr=1.0)
    kept.keep("average")
    with kept.using("average"):
        pass
    policy.trained.grad = torch.ones(1, dtype=torch.float64)
    optimizer.step()
    assert policy.trained.item() == 0.0


def test_restore_sets_kept_weights():
    kept, other = (KeptWeights(Pair(value)) for value in (5.0, 9.0))
    for each in (kept, other):
        each.keep("average")
    other.restore("average", kept.copies("average"))
    assert kept_weight(other) == 5.0
    other.blend("average", 0.5)
    assert (kept_weight(other), kept_weight(kept)) == (7.0, 5.0)


def test_names_without_kept_weights_are_refused():
    policy = Pair()
    kept = KeptWeights(policy)
    kept.keep("average")
    with pytest.raises(UserError, match=r"no weights named 'avarage' \(kept are: average\)"):
        kept.using("avarage")
    with pytest.raises(UserError, match="no weights named 'old'"):
        kept.blend("old", 0.5)
    with pytest.raises(ValueError, match=r"a file of that name, received '\.\./x'"):
        kept.keep("../x")


class Switched(Pair):
    """Returns to its first weights, 0, by a switch."""

    def __init__(self, value=0.0):
        super().__init__(value)
        self.off = 0

    def uncopied(self):
        @contextmanager
        def using():
            self.off += 1
            yield

        return Uncopied(using, lambda: {"trained": torch.zeros(1, dtype=torch.float64)})


def test_a_policy_may_serve_the_first_reference_without_a_copy():
    policy = Switched()
    kept = KeptWeights(policy)
    kept.keep("reference")
    kept.keep("average")
    assert kept.copies("reference") == {}
    assert kept.copies("average").keys() == {"trained"}
    policy.move(4.0)
    with kept.using("reference"):
        assert policy.off == 1
    assert kept.distance("reference") == 4.0  # of a copy, made now
    kept.blend("reference", 0.5)
    assert kept_weight(kept, "reference") == 2.0
    with kept.using("reference"):
        assert (policy.off, policy.trained.item()) == (1, 2.0)
    kept.keep("reference")
    assert kept_weight(kept, "reference") == 4.0


# ---- in training


def expected_average(lab, trainer, steps, decay, every):
    """The average of the table, from its values after each optimizer update."""
    table = trainer.policy.table
    average, updates = table.detach().clone(), []
    step = trainer.learner.optimizer.adamw.step
    trainer.learner.optimizer.adamw.step = lambda: (step(), updates.append(table.detach().clone()))
    for _ in range(steps):
        lab.step(trainer)
    for count, value in enumerate(updates, start=1):
        if count % every == 0:
            average = decay * average + (1 - decay) * value
    return average, updates


@pytest.mark.parametrize("every", [1, 4])
def test_training_averages_after_every_optimizer_update(lab, every):
    trainer = lab.trainer(ema=0.8, ema_every=every, epochs=2, updates_per_rollout=2, steps=3)
    expected, updates = expected_average(lab, trainer, 3, 0.8, every)
    assert len(updates) == 12
    torch.testing.assert_close(trainer.learner.weights.copies("average")["table"], expected)
    assert (expected - trainer.policy.table).abs().max() > 1e-3


def test_an_average_does_not_change_training(lab):
    averaged, plain = lab.trainer(ema=0.9, evaluate_every=1), lab.trainer(evaluate_every=1)
    for trainer in (averaged, plain):
        lab.fit(trainer, lambda *_: None, lambda: None)
    assert plain.learner.weights.changes == {}
    assert torch.equal(averaged.policy.table, plain.policy.table)


def test_an_update_without_gradient_does_not_count(lab):
    trainer = lab.trainer(ema=0.9, reward=lambda completions, **_: [1.0] * len(completions))
    lab.step(trainer)
    assert trainer.learner.updates == 0


def test_evaluations_during_training_use_the_average(lab):
    trainer = lab.trainer(ema=0.9, evaluate_every=1, learning_rate=0.5)
    policy, sample = trainer.policy, trainer.policy.sample
    tables = []

    def recording_sample(prompts, *, purpose, **options):
        if purpose == "evaluate":
            tables.append(
                (
                    policy.table.detach().clone(),
                    trainer.learner.weights.copies("average")["table"].clone(),
                )
            )
        return sample(prompts, purpose=purpose, **options)

    policy.sample = recording_sample
    averages = []
    lab.fit(
        trainer,
        lambda *_: averages.append(trainer.learner.weights.copies("average")["table"].clone()),
        lambda: None,
    )
    # The last step is evaluated only after the loop.
    for (used, other), average in zip(tables, averages[:-1], strict=True):
        assert torch.equal(used, average)
        assert not torch.equal(used, other)
        assert not torch.equal(trainer.policy.table, used)


# ---- in a run


def run(lab, folder, *, resume=False, steps=4, **settings):
    return train(
        policy=lab.Tabular(),
        prompts=lab.rows(),
        rewards=[lab.ones],
        train={
            "steps": steps,
            "groups_per_step": 2,
            "group_size": 4,
            "learning_rate": 0.3,
            **settings,
        },
        # Evaluated on the training prompts, since the policy shares no weights between prompts.
        evaluation={
            "prompts": 2,
            "samples": 8,
            "source": {"name": "rows", "rows": lab.rows()},
        },
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.0},
    )


def weights(folder, name):
    return load_file(Checkpoints(folder / "checkpoints").last() / f"{name}.safetensors")["table"]


def test_a_run_evaluates_and_saves_the_average(lab, tmp_path):
    result = run(lab, tmp_path / "run", ema=0.9)
    average, own = weights(tmp_path / "run", "kept_average"), weights(tmp_path / "run", "weights")
    assert not torch.allclose(average, own)
    saved = load_file(tmp_path / "run" / "model" / "model.safetensors")["table"]
    assert torch.equal(saved, average)
    assert torch.equal(result.policy.table, average)
    plain = run(lab, tmp_path / "plain")
    assert not list((tmp_path / "plain").rglob("kept_average.safetensors"))
    assert torch.equal(plain.policy.table, own)
    assert plain.before == result.before
    assert plain.after != result.after
    restored = lab.Tabular()
    with torch.no_grad():
        restored.table.copy_(average)
    lines = (tmp_path / "run" / "samples" / "after.jsonl").read_text().splitlines()
    samples = [sample for line in lines if not (sample := json.loads(line))["greedy"]]
    assert len(samples) == 16
    prompts = {row["prompt"]: row for row in lab.rows()}
    rollouts = restored.sample(
        [prompts[sample["prompt"]] for sample in samples],
        group_size=1,
        seeds=[seed_for(0, "evaluation", sample["draw"], sample["index"]) for sample in samples],
        purpose="evaluate",
    )
    assert rollouts.completions == [sample["completion"] for sample in samples]


def test_adopted_weights_stay():
    policy = Pair(1.0)
    kept = KeptWeights(policy)
    kept.keep("average")
    policy.move(5.0)
    kept.adopt("average")
    assert policy.trained.item() == kept_weight(kept) == 1.0
    policy.move(3.0)
    assert kept_weight(kept) == 1.0


def test_a_resumed_run_has_the_same_average(lab, tmp_path):
    run(lab, tmp_path / "through", ema=0.8, ema_every=3, epochs=2)
    run(lab, tmp_path / "halved", ema=0.8, ema_every=3, epochs=2, steps=2)
    run(lab, tmp_path / "halved", ema=0.8, ema_every=3, epochs=2, resume=True)
    for name in ("weights", "kept_average"):
        one, other = weights(tmp_path / "through", name), weights(tmp_path / "halved", name)
        assert torch.equal(one, other)


def test_a_checkpoint_without_an_average_is_refused(lab, tmp_path):
    run(lab, tmp_path / "run", steps=1)
    with pytest.raises(UserError, match=r"train\.ema: the checkpoint has no averaged weights"):
        run(lab, tmp_path / "run", steps=2, ema=0.9, resume=True)
    checkpoint = Checkpoint(tensors={"weights": {}}, state={})
    with pytest.raises(UserError, match="has no weights named 'average'"):
        read_weights(Pair(), checkpoint, kept="average")
