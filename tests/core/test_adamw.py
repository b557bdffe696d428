"""AdamW by its name: in 8 bits by bitsandbytes, for real, and TF32 by its own."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from groupwise.config.train import TrainSection
from groupwise.errors import UserError
from groupwise.run.tf32 import products_in_tf32
from groupwise.sampler import products_are_exact
from groupwise.storage.tensors import Stored
from groupwise.training import adamw
from groupwise.training.adamw import make_adamw
from groupwise.training.optimizer import Optimizer

needs = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes"
)
SETTINGS = TrainSection(optimizer="adamw_8bit", learning_rate=1e-2, weight_decay=0.1)


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


def go(weights, optimizer, steps):
    for step in steps:
        target = torch.randn(100, 64, generator=torch.Generator().manual_seed(step))
        loss = (weights.large - target).square().mean() + weights.small.square().sum()
        optimizer.backward(loss)
        assert optimizer.step(1e-2, number=step)["updated"]


def stored(tensors, folder):
    """As a checkpoint hands them back: read from a file."""
    path = folder / "optimizer.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return Stored([path])


@needs
def test_its_state_is_in_8_bits_and_resumes_to_the_last_bit(tmp_path):
    whole, part = Weights(), Weights()
    straight, first = optimizer(whole), optimizer(part)
    go(whole, straight, range(8))
    go(part, first, range(4))
    tensors = {name: value.clone() for name, value in first.tensors().items()}
    kinds = {name: value.dtype for name, value in tensors.items()}
    assert kinds["0/exp_avg"] == kinds["0/exp_avg_sq"] == torch.uint8
    assert kinds["1/exp_avg"] == torch.float32  # too small to gain by it
    assert not any(name.startswith("2/") for name in kinds)
    again = Weights()
    again.load_state_dict(part.state_dict())
    second = optimizer(again)
    second.restore(stored(tensors, tmp_path))
    go(again, second, range(4, 8))
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    resumed = second.tensors()
    assert all(torch.equal(resumed[name], value) for name, value in straight.tensors().items())


@needs
def test_it_learns_as_adamw_does():
    weights = {name: Weights() for name in ("adamw", "adamw_8bit")}
    before = Weights().large
    for name, own in weights.items():
        settings = SETTINGS.model_copy(update={"optimizer": name})
        go(own, optimizer(own, settings), range(8))
    moved = [own.large.detach() - before for own in weights.values()]
    assert torch.cosine_similarity(*(m.flatten() for m in moved), dim=0) > 0.99


@needs
def test_whoever_watches_a_weight_sees_that_it_has_changed():
    weights = Weights()
    versions = [p._version for p in weights.parameters()]
    go(weights, optimizer(weights), range(1))
    changed = [p._version != old for p, old in zip(weights.parameters(), versions, strict=True)]
    assert changed == [True, True, False]


@needs
def test_a_state_of_another_model_is_refused(tmp_path):
    weights = Weights()
    first = optimizer(weights)
    go(weights, first, range(1))
    tensors = first.tensors()
    tensors["0/exp_avg"] = tensors["0/exp_avg"][:50]
    with pytest.raises(UserError, match=r"'large' is \[100, 64\] here"):
        optimizer(Weights()).restore(stored(tensors, tmp_path))


@needs
def test_a_state_in_8_bits_is_not_taken_for_one_in_32(tmp_path):
    weights = Weights()
    first = optimizer(weights)
    go(weights, first, range(1))
    plain = optimizer(Weights(), TrainSection())
    with pytest.raises(UserError, match="moments are in 8 bits, which adamw cannot load"):
        plain.restore(stored(first.tensors(), tmp_path))


def test_without_the_package_the_command_is_said(monkeypatch):
    monkeypatch.setattr(adamw.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed: pip install 'groupwise\[quantized\]'"):
        optimizer(Weights())


@needs
def test_a_device_that_it_has_nothing_for_is_said(monkeypatch):
    from groupwise.training import adamw_8bit

    def step(self):
        raise NotImplementedError("no kernel for this backend")

    monkeypatch.setattr(adamw_8bit.AdamW8bit, "step", step)
    with pytest.raises(
        UserError, match="adamw_8bit does not run on cpu: no kernel for this backend"
    ):
        make_adamw([{"params": [torch.nn.Parameter(torch.zeros(3))]}], SETTINGS)


def test_plain_adamw_needs_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert type(
        make_adamw([{"params": [torch.nn.Parameter(torch.zeros(3))]}], TrainSection())
    ).__module__ == ("torch.optim.adamw")


# ---- TF32


def test_products_are_exact_but_while_tf32_is_wanted_on_a_gpu():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert products_are_exact()
    for wanted, device, exact in ((False, gpu, True), (True, cpu, True), (True, gpu, False)):
        with products_in_tf32(wanted, device):
            assert products_are_exact() == exact
            assert torch.backends.cuda.matmul.allow_tf32 != exact
        assert products_are_exact()
