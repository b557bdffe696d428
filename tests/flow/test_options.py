"""Every option of an image policy is in a form of the laws, and has the effect that it states."""

import pytest
import torch
from tests.flow.forms import FORMS

from groupwise.kit.errors import UserError
from groupwise_flow.effect import Effect, effect_of
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.settings import Settings

OPTIONS = [
    (kind, name)
    for kind in (FlowPolicy, ForwardProcess)
    for name in kind.Config.model_fields
    if name != "model" and (kind is FlowPolicy or name not in Settings.model_fields)
]
"""All but the model itself; those of every image policy once."""


def form_with(kind, name):
    """The first form of this policy in which the option is set, and the same without it."""
    for form in FORMS.values():
        if name in form and form.get("kind", FlowPolicy) is kind:
            return form, {key: value for key, value in form.items() if key != name}
    raise AssertionError(
        f"{kind.__name__}: no form has the option {name}, so that the laws of the ratio and of the "
        f"gradient never see it; add one to tests/flow/forms.py, with a value that is not the "
        f"default"
    )


@pytest.mark.parametrize(("kind", "name"), OPTIONS)
@pytest.mark.slow(after=12)
def test_an_option_has_the_effect_that_it_states(lab, monkeypatch, rounding, kind, name):
    """With other values a teacher is refused, or log-probs are equal at equal velocities; those of
    options without effect are equal anyway."""
    effect = effect_of(kind.Config, name)
    assert effect is not None, (
        f"{kind.__name__}.Config.{name} must state what another value changes, so that it is known "
        f"whether a teacher may have it: Annotated[..., Effect.DECISIONS], VELOCITIES or NOTHING"
    )
    student, teacher = (lab.settings(**options) for options in form_with(kind, name))
    assert getattr(student, name) != getattr(teacher, name), f"{name}: the form has the default"
    if effect is Effect.DECISIONS:
        with pytest.raises(UserError, match=f"and {name} is .* here and .* in the policy"):
            kind.check_teacher(student, kind, teacher)
        return
    kind.check_teacher(student, kind, teacher)
    policy, other = (lab.policy(**options) for options in form_with(kind, name))
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    if effect is Effect.VELOCITIES:
        for each in (policy, other):
            monkeypatch.setattr(each.guided, "velocities", velocities)
    with torch.no_grad():
        own, others = policy(rollouts).log_probs, other(rollouts).log_probs
        allowed = rounding.bounds(lambda: other(rollouts).log_probs)
    assert rounding.excess(own, others, allowed) <= 1, (
        f"{name} states {effect}, and changes log-probs by {(own - others).abs().max():.3g}: state "
        f"Effect.DECISIONS if a teacher must have the policy's value, VELOCITIES if it may differ"
    )


def velocities(prompts, latents, sigma, **rest):
    """[b, t, ...]: a model without prompts, weights and guidance."""
    return latents.sin() + sigma.view(*sigma.shape, *[1] * (latents.ndim - 2))
