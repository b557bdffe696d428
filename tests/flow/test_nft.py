"""NFT against its paper's equations in float64, and the weights that sample in a run of it."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.repeated import step_lines

from groupwise import LogProbs, train
from groupwise_flow.algorithms.awm import AWM
from groupwise_flow.algorithms.nft import NFT
from groupwise_flow.forward_process import ForwardProcess


def algorithm(**config):
    return NFT(NFT.Config(**config))


def batch_of(advantages):
    """Decisions of three images in float64, two noised copies of each: LogProbs, and a batch."""
    generator = torch.Generator().manual_seed(3)
    clean, noise, old, velocity, reference = torch.randn(
        5, 3, 2, 4, 2, 2, generator=generator, dtype=torch.float64
    )
    sigma = torch.tensor([[1.0, 0.4], [0.9, 0.1], [0.7, 0.3]], dtype=torch.float64)
    level = sigma.view(3, 2, 1, 1, 1)
    current = LogProbs(
        log_probs=None,
        extra={
            "velocity": velocity.requires_grad_(),
            "noised": (1 - level) * clean + level * noise,
            "clean": clean,
            "sigma": sigma,
        },
    )
    batch = {
        "old_velocity": old,
        "reference_velocity": reference,
        "mask": torch.ones(3, 2, dtype=torch.bool),
        "weights": torch.full((3, 2), 1 / 6, dtype=torch.float64),
        "advantages": torch.tensor(advantages, dtype=torch.float64),
    }
    return current, batch


def restated(current, batch, *, b, most, beta):
    """The loss of equation 5 and algorithm 1, image by image in numpy; the gradient too, by the
    derivative of each square, with w held constant."""
    arrays = {name: value.detach().numpy() for name, value in current.extra.items()}
    loss, gradient = 0.0, np.zeros_like(arrays["velocity"])
    for i, j in np.ndindex(3, 2):
        x, x0, s, v = (arrays[n][i, j] for n in ("noised", "clean", "sigma", "velocity"))
        old = batch["old_velocity"][i, j].numpy()
        reference = batch["reference_velocity"][i, j].numpy()
        r = np.clip(float(batch["advantages"][i]), -most, most) / most / 2 + 0.5
        for share, sign in ((r, 1.0), (1 - r, -1.0)):
            mixed = (1 - sign * b) * old + sign * b * v
            off = x - s * mixed - x0
            w = max(np.abs(off).mean(), 1e-5)
            loss += most / b * share * (off**2).mean() / w / 6
            gradient[i, j] += most / b * share * 2 * off / w * (-s * sign * b) / off.size / 6
        loss += beta * ((v - reference) ** 2).mean() / 6
        gradient[i, j] += beta * 2 * (v - reference) / v.size / 6
    return loss, gradient


@pytest.mark.parametrize(("b", "most", "beta"), [(1.0, 5.0, 0.0), (0.1, 2.0, 0.3)])
def test_loss_and_gradient_are_those_of_the_paper(b, most, beta):
    current, batch = batch_of([1.5, -0.7, 0.0])
    method = algorithm(b=b, advantage_clip=most, beta=beta)
    loss = method.loss(current, batch).sum()
    loss.backward()
    expected, gradient = restated(current, batch, b=b, most=most, beta=beta)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(
        current.extra["velocity"].grad, torch.from_numpy(gradient), rtol=1e-10, atol=1e-14
    )


def test_the_first_gradient_follows_the_advantage_and_an_advantage_of_0_has_none():
    """At v = v_old it is that of A |x - x0|^2 / w: towards good images, away from bad ones."""
    current, batch = batch_of([2.0, -1.0, 0.0])
    batch["old_velocity"] = current.extra["velocity"].detach()
    algorithm(b=0.3).loss(current, batch).sum().backward()
    first = current.extra["velocity"].grad
    errors = NFT._error(current.extra["velocity"], current)
    advantages = batch["advantages"].unsqueeze(1)
    (expected,) = torch.autograd.grad(
        (advantages * errors * batch["weights"]).sum(), current.extra["velocity"]
    )
    torch.testing.assert_close(first, expected, rtol=1e-10, atol=1e-14)
    assert float(first[2].abs().max()) < 1e-15


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"decay": 0.5, "decay_rise": 0.001}, {1: 0.001, 200: 0.2, 900: 0.5}),
        (
            {"decay": 0.999, "decay_delay": 75, "decay_rise": 0.0075},
            {75: 0.0, 76: 0.0075, 175: 0.75, 300: 0.999},
        ),
        ({"decay": 0.9}, {1: 0.9, 100: 0.9}),
    ],
)
def test_the_decay_of_the_weights_that_sample_is_that_of_the_authors(options, expected):
    config = NFT.Config(**options)
    assert {step: config.decay_after(step) for step in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    "options", [{"decay_rise": 0.1}, {"decay": 0.5, "decay_delay": 3}, {"b": 0.0}]
)
def test_options_without_effect_are_refused(options):
    with pytest.raises(ValidationError):
        NFT.Config(**options)


def test_values_that_are_the_defaults_are_no_mistake():
    assert NFT.Config(decay=0, decay_rise=None, decay_delay=0) == NFT.Config()


def test_a_pace_of_an_average_that_nothing_reads_is_refused():
    with pytest.raises(ValidationError, match="decay has no effect with recent_beta: 0"):
        AWM.Config(recent_beta=0, decay=0.9)


# ---- runs


def run(lab, folder, *, steps=3, resume=False, policy=None, **options):
    torch.manual_seed(1)
    settings = {"steps": 2, "evaluation_steps": 2, "lora": {"rank": 2}}
    return train(
        policy=ForwardProcess(lab.settings(kind=ForwardProcess, **settings)),
        algorithm=algorithm(**options),
        prompts=[{"prompt": f"{letter} cat"} for letter in "abcdefgh"],
        rewards=[lab.redness],
        train={"steps": steps, "groups_per_step": 1, "group_size": 3, "learning_rate": 3e-3},
        evaluation={"prompts": 1, "samples": 2},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.5},
    )


@pytest.mark.slow
def test_an_old_copy_samples_and_resumes_while_evaluations_have_the_current_weights(lab, tmp_path):
    options = {"decay": 0.9, "decay_delay": 1, "decay_rise": 0.3, "beta": 0.1}
    through = run(lab, tmp_path / "through", **options)
    run(lab, tmp_path / "halved", steps=2, **options)
    resumed = run(lab, tmp_path / "halved", resume=True, **options)
    lines = step_lines(tmp_path / "through")
    assert step_lines(tmp_path / "halved") == lines
    assert resumed.after == through.after
    assert [line["decay"] for line in lines] == pytest.approx([0.0, 0.3, 0.6])

    # With a decay of almost 1 the copy stays: it draws the images of the base model in all steps,
    # and evaluations, which do not use it, show that the model has changed.
    still = run(lab, tmp_path / "still", decay=1 - 1e-9)
    current = run(lab, tmp_path / "current")
    first, others = step_lines(tmp_path / "still")[0], step_lines(tmp_path / "current")
    assert first["reward"] == others[0]["reward"]
    assert still.after["rewards/redness"] != still.before["rewards/redness"]
    assert step_lines(tmp_path / "still")[-1]["reward"] != others[-1]["reward"]
    assert current.before == still.before
