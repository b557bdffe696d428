"""A minimal sampler that is not the policy: it draws with a copy of the weights."""

import copy
from dataclasses import replace

import torch

from groupwise import Sampler


class Engine(Sampler):
    """Copies the weights when it follows the policy, and samples with the copy."""

    def __init__(self, policy):
        self.copy, self.version = copy.deepcopy(policy), -1

    def follow(self, policy, name, version):
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, *args, **options):
        rollouts = self.copy.sample(*args, **options)
        return replace(rollouts, versions=torch.full((len(rollouts),), self.version))
