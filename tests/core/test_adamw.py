"""The optimizer by its name: AdamW of torch, AdamW in 8 bits of bitsandbytes; and TF32."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.learning.optimizer import Optimizer
from groupwise.sampler import products_are_exact, products_in_tf32
from groupwise.storage.checkpoint import Checkpoints
from groupwise.storage.staging import Checkpoint

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes"
)
SECTIONS = {"policy": "p", "prompts": "rows", "rewards": ["r"]}
PLAIN = load_config(SECTIONS).config.train
SETTINGS = load_config(
    {
        **SECTIONS,
        "train": {"optimizer": "adamw_8bit", "learning_rate": 1e-2, "weight_decay": 0.1},
    }
).config.train


class Weights(torch.nn.Module):
    scale_loss, rates = False, {}

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.large = torch.nn.Parameter(torch.randn(100, 64))
        self.small = torch.nn.Parameter(torch.randn(8))
        self.idle = torch.nn.Parameter(torch.randn(8))


def optimizer(weights, settings=SETTINGS):
    accelerator = SimpleNamespace(device=torch.device("cpu"), backward=lambda loss: loss.backward())
    return Optimizer(weights, settings, accelerator)


def train(weights, optimizer, steps):
    for step in steps:
        target = torch.randn(100, 64, generator=torch.Generator().manual_seed(step))
        loss = (weights.large - target).square().mean() + weights.small.square().sum()
        optimizer.backward(loss)
        assert optimizer.step(1e-2, number=step).updated


def stored(tensors, folder):
    """The tensors as read from a checkpoint."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, Checkpoint(tensors={"optimizer": tensors}, state={}))
    return checkpoints.load().tensors["optimizer"]


@pytest.mark.parametrize("size", [1e-3, 1e-8, 1e-12])
@pytest.mark.parametrize("epsilon", [1e-8, 1e-15])
def test_epsilon_shortens_steps_where_the_gradient_is_near_it_and_its_norm_is_below_the_limit(
    size, epsilon
):
    """The first step of AdamW is rate x g / (|g| + epsilon)."""
    settings = load_config({**SECTIONS, "train": {"epsilon": epsilon}}).config.train
    weights = Weights()
    own, before = optimizer(weights, settings), weights.large.detach().clone()
    for parameter in weights.parameters():
        parameter.grad = torch.full_like(parameter, size)
    outcome = own.step(1e-2, number=1)
    length = (before - weights.large.detach()).mean().item() / 1e-2
    assert length == pytest.approx(size / (size + epsilon), abs=1e-4)
    assert (outcome.norm < own.least_norm) == (length < 0.9)


def test_a_clip_below_the_least_norm_is_always_below_it():
    settings = load_config({**SECTIONS, "train": {"max_grad_norm": 1e-9}}).config.train
    assert optimizer(Weights(), settings).least_norm == float("inf")


@needs_bitsandbytes
def test_moments_are_in_8_bits_and_resuming_is_exact(tmp_path):
    uninterrupted, halved = Weights(), Weights()
    expected, first = optimizer(uninterrupted), optimizer(halved)
    train(uninterrupted, expected, range(8))
    train(halved, first, range(4))
    tensors = {name: value.clone() for name, value in first.tensors().items()}
    dtypes = {name: value.dtype for name, value in tensors.items()}
    assert dtypes["0/exp_avg"] == dtypes["0/exp_avg_sq"] == torch.uint8
    assert dtypes["1/exp_avg"] == torch.float32  # too small for 8 bits to save memory
    assert not any(name.startswith("2/") for name in dtypes)
    resumed = Weights()
    resumed.load_state_dict(halved.state_dict())
    second = optimizer(resumed)
    second.restore(stored(tensors, tmp_path))
    train(resumed, second, range(4, 8))
    for name, value in uninterrupted.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    tensors = second.tensors()
    assert all(torch.equal(tensors[name], value) for name, value in expected.tensors().items())


@needs_bitsandbytes
def test_updates_in_8_bits_have_the_direction_of_plain_adamw():
    models = {name: Weights() for name in ("adamw", "adamw_8bit")}
    before = Weights().large
    for name, model in models.items():
        settings = SETTINGS.model_copy(update={"optimizer": name})
        train(model, optimizer(model, settings), range(8))
    changes = [model.large.detach() - before for model in models.values()]
    assert torch.cosine_similarity(*(change.flatten() for change in changes), dim=0) > 0.99


@needs_bitsandbytes
def test_an_update_increases_the_version_of_changed_weights():
    weights = Weights()
    versions = [p._version for p in weights.parameters()]
    train(weights, optimizer(weights), range(1))
    changed = [p._version != old for p, old in zip(weights.parameters(), versions, strict=True)]
    assert changed == [True, True, False]


@needs_bitsandbytes
def test_a_state_of_another_model_is_refused(tmp_path):
    weights = Weights()
    first = optimizer(weights)
    train(weights, first, range(1))
    tensors = first.tensors()
    tensors["0/exp_avg"] = tensors["0/exp_avg"][:50]
    with pytest.raises(UserError, match=r"'large' is \[100, 64\] here"):
        optimizer(Weights()).restore(stored(tensors, tmp_path))


@needs_bitsandbytes
def test_adamw_refuses_moments_in_8_bits(tmp_path):
    weights = Weights()
    first = optimizer(weights)
    train(weights, first, range(1))
    plain = optimizer(Weights(), PLAIN)
    with pytest.raises(UserError, match="moments are in 8 bits, which adamw cannot load"):
        plain.restore(stored(first.tensors(), tmp_path))


def test_without_bitsandbytes_the_error_has_the_install_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed: pip install 'groupwise\[quantized\]'"):
        optimizer(Weights())


@needs_bitsandbytes
def test_a_device_without_kernels_is_named_in_the_error(monkeypatch):
    import bitsandbytes

    def step(self, closure):
        raise NotImplementedError("no kernel for this backend")

    monkeypatch.setattr(bitsandbytes.optim.AdamW8bit, "step", step)
    with pytest.raises(
        UserError, match="adamw_8bit does not run on cpu: no kernel for this backend"
    ):
        optimizer(Weights())


def test_plain_adamw_does_not_import_bitsandbytes(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert type(optimizer(Weights(), PLAIN).adamw) is torch.optim.AdamW


# ---- TF32


def test_products_are_inexact_only_with_tf32_on_a_gpu():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert products_are_exact()
    for tf32, device, exact in ((False, gpu, True), (True, cpu, True), (True, gpu, False)):
        with products_in_tf32(tf32, device):
            assert products_are_exact() == exact
            assert torch.backends.cuda.matmul.allow_tf32 != exact
        assert products_are_exact()
