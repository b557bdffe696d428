"""Laws of a policy's weights: kept, exchanged, saved."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from groupwise.kit.errors import UserError
from groupwise.policy import Policy
from groupwise.weights import REFERENCE, KeptWeights
from groupwise_testing import compare
from groupwise_testing.laws import law
from groupwise_testing.policy.case import Case

NAMES = (REFERENCE, "average")
"""A policy may serve the first reference without a copy; all others are copies."""


class _LeftEarly(Exception):  # noqa: N818
    """Leaves `using` by an exception."""


@law(
    "kept weights are copies, and current ones return after `using`",
    hint="`uncopied` and `exchanging`: the current weights return also after an exception; what "
    "`forward` stores of an earlier pass must not outlive the weights",
)
def kept(case: Case) -> str | None:
    weights = KeptWeights(case.policy)
    for name in NAMES:
        weights.keep(name)
        with compare.nudged(case.policy, kept=True):
            if wrong := _exchanged(case, weights, name):
                return wrong
    return None


def _exchanged(case: Case, weights: KeptWeights, kept: str) -> str | None:
    trained = case.outputs()
    if all(torch.equal(trained[name], case.whole[name]) for name in trained):
        return "changed parameters() give the same outputs; does `forward` use other weights?"
    with suppress(_LeftEarly), weights.using(kept):
        wrong = case.difference(case.outputs())
        raise _LeftEarly
    if wrong is not None:
        return f"with the kept weights, {wrong}"
    if compare.outputs_gap(case.outputs(), trained) > case.limit:
        return "after `using`, left by an exception, the weights are not those from before"
    weights.blend(kept, 0.0)
    with weights.using(kept):
        blended = case.outputs()
    if compare.outputs_gap(blended, trained) > case.limit:
        return "blended with decay 0, the kept weights are not the current ones"
    return None


@law(
    "saving and loading keeps the weights",
    hint="`save_pretrained`: write all trained weights, as they are now, in a loadable format",
)
def saving(case: Case) -> str | None:
    policy = case.policy
    try:
        policy.try_saving()
    except UserError as error:
        return f"`try_saving` refuses it: {error}"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        policy.save_pretrained(path)
        if not path.is_dir() or not any(path.iterdir()):
            return "`save_pretrained` wrote nothing"
        if case.load is not None:
            with torch.no_grad():
                loaded = case.load(path)(case.rollouts).outputs
        elif type(policy).save_pretrained is Policy.save_pretrained:
            from safetensors.torch import load_model

            with compare.nudged(policy):
                load_model(policy, str(path / "model.safetensors"))
                loaded = case.outputs()
        else:
            return None
    wrong = case.difference(loaded)
    return None if wrong is None else f"with the loaded weights, {wrong}"


LAWS = (kept, saving)
