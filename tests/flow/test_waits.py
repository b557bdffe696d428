"""No operation between denoising steps makes the host wait for the GPU, as `.item()` would."""

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = ("_local_scalar_dense", "nonzero", "unique", "equal", "masked_select")


class Operations(TorchDispatchMode):
    """Records the names of operations in order, and "mark" for each call of `mark`."""

    def __init__(self):
        super().__init__()
        self.names = []

    def mark(self, *_):
        self.names.append("mark")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))

    def waits(self, names):
        return [name for name in names if any(f"::{wait}" in name for wait in WAITS)]

    def between_marks(self):
        first = self.names.index("mark")
        last = len(self.names) - self.names[::-1].index("mark")
        return self.names[first:last]


FORMS = {
    "all": {},
    "random": {"shared_noise": True, "window": {"kind": "random", "size": 2}},
    "sliding": {"window": {"kind": "sliding", "size": 2}, "batch": 3},
    "noisy end": {"last_step": "noise", "sde": "dance"},
}


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
@pytest.mark.parametrize("form", FORMS)
def test_sampling_does_not_wait_between_denoising_steps(lab, architecture, form):
    policy = lab.policy(architecture, guidance=3.0, **FORMS[form])
    policy.begin(1)
    operations = Operations()
    policy.adapter.model.register_forward_pre_hook(operations.mark)
    with operations:
        policy.sample(lab.rows, group_size=2, seeds=range(4))
    between = operations.between_marks()
    assert between.count("mark") >= 5
    assert operations.waits(between) == []


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
def test_log_probs_and_their_gradient_do_not_wait(lab, architecture):
    policy = lab.policy(architecture)
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    operations = Operations()
    with operations:
        policy(rollouts, slice(1, 3)).log_probs.sum().backward()
    assert len(operations.names) > 100
    assert operations.waits(operations.names) == []
