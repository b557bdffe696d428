"""Laws of weights: kept, put in place, saved."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from groupwise.policy import Policy
from groupwise.testing import compare
from groupwise.testing.law import law
from groupwise.testing.policy.case import Case

KEPT = "kept_by_groupwise_testing"


class _LeftEarly(Exception):  # noqa: N818
    """Leaves `using` as an error would."""


@law(
    "kept weights come back",
    look="`keep`, `using`, `blend` and `restore`, where the policy has its own: copies, not "
    "references; the present weights come back after an exception, too; no kept weight is trained",
)
def kept(case: Case) -> str | None:
    policy, count = case.policy, len(list(case.policy.parameters()))
    policy.keep(KEPT)
    try:
        with compare.nudged(policy, kept=True):
            wrong = _exchanged(case)
        if wrong is None and len(list(policy.parameters())) != count:
            wrong = "kept weights are among parameters()"
        return wrong
    finally:
        policy._kept.pop(KEPT, None)
        policy.changes.pop(KEPT, None)


def _exchanged(case: Case) -> str | None:
    policy = case.policy
    trained = case.answers(case.rollouts)
    if all(torch.equal(trained[name], case.whole[name]) for name in trained):
        return "other weights give the same answers; are those that answer among parameters()?"
    try:
        with policy.using(KEPT):
            wrong = case.apart(case.answers(case.rollouts))
            raise _LeftEarly
    except _LeftEarly:
        pass
    if wrong is not None:
        return f"with the kept weights, {wrong}"
    back = case.answers(case.rollouts)
    if any(compare.gap(back[name], trained[name]) > case.limit for name in back):
        return "after `using`, left by an exception, the weights are not those from before"
    policy.blend(KEPT, 0.0)
    with policy.using(KEPT):
        blended = case.answers(case.rollouts)
    if any(compare.gap(blended[name], trained[name]) > case.limit for name in blended):
        return "blended with decay 0, the kept weights are not the present ones"
    return None


@law(
    "saving and loading keeps the weights",
    look="`save_pretrained`: all trained weights, as they are now, in a format that can be loaded",
)
def saving(case: Case) -> str | None:
    policy = case.policy
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        policy.save_pretrained(path)
        if not path.is_dir() or not any(path.iterdir()):
            return "`save_pretrained` wrote nothing"
        if case.load is not None:
            with torch.no_grad():
                found = compare.answers(case.load(path)(case.rollouts))
        elif type(policy).save_pretrained is Policy.save_pretrained:
            from safetensors.torch import load_model

            with compare.nudged(policy):
                load_model(policy, str(path / "model.safetensors"))
                found = case.answers(case.rollouts)
        else:
            return None
    wrong = case.apart(found)
    return None if wrong is None else f"of the loaded weights, {wrong}"


LAWS = (kept, saving)
