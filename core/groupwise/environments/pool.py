"""Pool: several policies that each sample a part of every group."""

from collections.abc import Mapping, Sequence

from groupwise.environments.single import Single
from groupwise.kit.errors import UserError


class Pool(Single):
    """Several policies that each sample a part of every group; each is evaluated alone.

    Take it to train different models on the same prompts, with advantages over the completions of
    all of them.
    """

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        if len(labels) < 2:
            raise UserError(
                "the policies of a pool share the groups of a prompt, and there is one policy; "
                "list two or more under `players`, or leave `environment` out"
            )
        return {label: [label] for label in labels}

    def receivers(self, labels: Sequence[str]) -> Sequence[str]:
        return labels
