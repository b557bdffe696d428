"""Losses and their gradients against TRL's code, on the same tensors."""

import warnings
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from groupwise import LogProbs, Rollouts
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Scores
from groupwise_algorithms.bnpo import BNPO
from groupwise_algorithms.cispo import CISPO
from groupwise_algorithms.dapo import DAPO
from groupwise_algorithms.dr_grpo import DrGRPO
from groupwise_algorithms.gmpo import GMPO
from groupwise_algorithms.gspo import GSPO
from groupwise_algorithms.luspo import LUSPO
from groupwise_algorithms.rloo import RLOO
from groupwise_algorithms.sapo import SAPO
from groupwise_algorithms.vespo import VESPO

with warnings.catch_warnings(action="ignore"):  # that it is experimental
    from trl.experimental.gmpo import GMPOTrainer

REWARDS = [1.0, 0.0, 0.5, 0.0, 2.0, 1.0]
GROUPS = [0, 0, 0, 1, 1, 1]
LENGTHS = [5, 3, 4, 1, 5, 2]
HIGH = 0.28
TRL = {
    "epsilon_low": 0.2,
    "epsilon_high": HIGH,
    "importance_sampling_level": "token",
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "aux_loss_enabled": False,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "beta": 0.0,
    "current_gradient_accumulation_steps": 1,
    "max_completion_length": 5,
    "_entropy_bonus_enabled": False,
}
ARGUMENTS = {
    "delta": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "use_bias_correction_kl": False,
    "steps_per_generation": 1,
}
SEQUENCE = {"importance_sampling_level": "sequence"}
CLIP = {"clip_low": 0.2, "clip_high": HIGH}
FORMS = {
    "grpo": (GRPO, CLIP, {}),
    "bnpo": (BNPO, CLIP, {}),
    "dr_grpo": (DrGRPO, {**CLIP, "length": 5}, {}),
    "dapo": (DAPO, CLIP, {}),
    "gspo": (GSPO, CLIP, {"loss_type": "grpo", **SEQUENCE}),
    "luspo": (LUSPO, CLIP, SEQUENCE),
    "cispo": (CISPO, {"clip_high": 0.5}, {"epsilon_high": 1.5}),
    "sapo": (SAPO, {}, {}),
    "vespo": (VESPO, {}, {}),
    "two-sided": (GRPO, {**CLIP, "ratio_cap": 1.5}, {"loss_type": "grpo", "delta": 1.5}),
    "kl": (BNPO, {**CLIP, "beta": 0.3}, {"loss_type": "bnpo", "beta": 0.3}),
    "gmpo": (
        GMPO,
        {"clip_low": 0.3, "clip_high": 0.2, "beta": 0.3},
        {"epsilon_low": 0.3, "epsilon_high": 0.2, "beta": 0.3},
    ),
    "high entropy": (
        DAPO,
        {**CLIP, "top_entropy_quantile": 0.3, "beta": 0.3},
        {"loss_type": "dapo", "top_entropy_quantile": 0.3, "beta": 0.3},
    ),
}
TRAINERS = {"gmpo": GMPOTrainer}
"""By form, others than `GRPOTrainer`."""


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    shape = (len(REWARDS), max(LENGTHS))
    mask = torch.arange(shape[1]) < torch.tensor(LENGTHS).unsqueeze(1)
    old, change, reference = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    old = old - 3
    return old, old + 0.4 * change, old + 0.3 * reference, mask


def scores():
    values = torch.tensor(REWARDS, dtype=torch.float64).unsqueeze(1)
    failed = torch.zeros(len(values), dtype=torch.bool)
    return Scores(names=("reward",), weights=(1.0,), values=values, failed=failed)


def rollouts(mask):
    return Rollouts(
        prompts=[{"prompt": ""}] * len(mask),
        completions=[None] * len(mask),
        groups=torch.tensor(GROUPS),
        mask=mask,
        truncated=torch.zeros(len(mask), dtype=torch.bool),
    )


def ours(algorithm, old, new, reference, mask):
    """The loss, its gradient, and the advantages."""
    new = new.clone().requires_grad_()
    inputs = {"old_entropy": entropy(new)} if algorithm.target_inputs else {}
    targets = algorithm.targets(scores(), rollouts(mask), inputs)
    batch = {"old_log_probs": old, "reference_log_probs": reference, "mask": mask, **targets}
    loss = algorithm.loss(LogProbs(log_probs=new), batch).sum()
    loss.backward()
    return loss.detach(), new.grad, targets["advantages"].double()


def entropy(new):
    """Any numbers will do."""
    return 0.1 + new.detach().sin().square()


def trainer(new, **settings):
    """A trainer with the attributes that TRL's losses read."""
    arguments = {**ARGUMENTS, **{k: v for k, v in settings.items() if k in ARGUMENTS}}
    state = {**TRL, **{k: v for k, v in settings.items() if k not in ARGUMENTS}}
    alone = SimpleNamespace(
        num_processes=1,
        reduce=lambda value, **_: value,
        gather=lambda value: value,
        pad_across_processes=lambda value, **_: value,
    )
    made = SimpleNamespace(
        **state,
        args=SimpleNamespace(**arguments),
        accelerator=alone,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, entropy(new), None),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    made.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, made)
    return made


def inputs(old, reference, mask, advantages):
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    return {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_is_that_of_trl(form, tensors):
    kind, config, settings = FORMS[form]
    old, new, reference, mask = tensors
    algorithm = kind(kind.Config(**config))
    value, gradient, advantages = ours(algorithm, old, new, reference, mask)
    theirs = new.clone().requires_grad_()
    expected = TRAINERS.get(form, GRPOTrainer)._compute_loss(
        trainer(theirs, **{"loss_type": form, **settings}),
        None,
        inputs(old, reference, mask, advantages),
    )
    expected.backward()
    assert float(value) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, theirs.grad, rtol=1e-5, atol=1e-9)
    assert float(gradient.norm()) > 1e-2
    assert (gradient[~mask] == 0).all()


def test_advantages_of_rloo_are_those_of_trl(tensors):
    """TRL's formula, written here, as its code is within a method that also generates."""
    old, new, reference, mask = tensors
    grouped = torch.tensor(REWARDS, dtype=torch.float64).view(2, 3)
    others = (grouped.sum(dim=1, keepdim=True) - grouped) / 2
    *_, advantages = ours(RLOO(RLOO.Config(length=1)), old, new, reference, mask)
    torch.testing.assert_close(advantages, (grouped - others).flatten())


def test_the_first_gradient_of_rloo_is_that_of_trl(tensors):
    """Later gradients differ: TRL has one ratio for a whole completion."""
    old, _, reference, mask = tensors
    _, gradient, advantages = ours(RLOO(RLOO.Config(length=1)), old, old, reference, mask)
    theirs = old.clone().requires_grad_()
    batch = {**inputs(old, reference, mask, advantages), "old_logps": (old * mask).sum(dim=1)}
    RLOOTrainer._compute_loss(trainer(theirs), None, batch).backward()
    torch.testing.assert_close(gradient, theirs.grad, rtol=1e-5, atol=1e-9)
    assert float(gradient.norm()) > 0.1
