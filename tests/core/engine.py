"""A sampler that is not the policy, as small as it can be."""

import copy
from dataclasses import replace

import torch

from groupwise import Sampler


class Engine(Sampler):
    """Copies weights, and draws with the copy."""

    def __init__(self, policy):
        self.copy, self.version = copy.deepcopy(policy), -1

    def follow(self, policy, name, version):
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, *rest, **more):
        rollouts = self.copy.sample(*rest, **more)
        return replace(rollouts, versions=torch.full((len(rollouts),), self.version))
