"""Learned: base class of reward models that are trained during the run, on labels of a verifier.

Iterative GRPO (DeepSeekMath, arXiv:2402.03300, algorithm 1) continues to train its reward model
while the policy moves, with 10% of older data. The verifier is listed under `watch`: it labels
fresh rollouts for the reward model, and the policy is never trained on it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from groupwise.kit import processes
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts

ONE_CLASS = "one_class"
"""The metric of a round in which all labels were equal, so that nothing was learned."""


class Learning(BaseModel):
    """The options of every reward that learns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: str = Field(
        min_length=1,
        description="Label of the watched reward whose values, from 0 to 1, it learns to predict.",
    )
    every: int = Field(
        default=1, ge=0, description="Steps between rounds of learning; 0: it does not learn."
    )
    learning_rate: float = Field(default=1e-4, gt=0, description="Of AdamW.")
    examples: int = Field(default=32, ge=1, description="Completions per update of the reward.")
    epochs: int = Field(default=1, ge=1, description="Passes over the examples of a round.")
    replay: float = Field(
        default=0.1, ge=0, lt=1, description="Share of a round's examples taken from older rounds."
    )
    memory: int = Field(default=4096, ge=0, description="Examples of older rounds to remember.")
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="Of the choice and the order of examples."
    )


@dataclass(frozen=True)
class Examples:
    """Training examples: inputs, a tensor [n_i] each, and labels [n] float32 from 0 to 1."""

    inputs: Sequence[Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def __add__(self, other: "Examples") -> "Examples":
        return Examples([*self.inputs, *other.inputs], torch.cat([self.labels, other.labels]))

    def take(self, rows: Tensor) -> "Examples":
        return Examples([self.inputs[row] for row in rows.tolist()], self.labels[rows])


class Learned(ABC):
    """A reward that predicts the probability that its verifier calls a completion right.

    A subclass defines the network's `inputs` and `logits`. Each round first measures the agreement
    with the verifier on the fresh completions, then trains on them and on some of older rounds, by
    binary cross-entropy. With several processes the completions of all are gathered, and all make
    the same updates.

    rounds: rounds so far.
    """

    config: Learning

    def __init__(self) -> None:
        self.rounds = 0
        self._seen = 0
        self._old = Examples([], torch.empty(0))
        self._adamw: torch.optim.AdamW | None = None

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """The trained network, loaded at its first use; the same on all processes."""

    @abstractmethod
    def inputs(self, rollouts: Rollouts) -> Sequence[Tensor | None]:
        """The network's input for each rollout, a tensor [n_i] on the CPU; None to leave it out."""

    @abstractmethod
    def logits(self, inputs: Sequence[Tensor]) -> Tensor:
        """[n] with gradients; the probability is its sigmoid."""

    # ---- called by a run

    @property
    def labels(self) -> str:
        return self.config.labels

    @property
    def every(self) -> int:
        return self.config.every

    def refresh(self, rollouts: Rollouts, scores: Scores) -> dict[str, float]:
        """One round of learning; scores: of the verifier. A collective: all processes call it.

        Raises ValueError for labels outside 0 to 1.
        """
        labels = scores.column(self.labels).float()
        inputs = self.inputs(rollouts)
        rows = [row for row, each in enumerate(inputs) if each is not None and labels[row] >= 0]
        _check_range(labels, self.labels)
        groups = rollouts.groups.cpu()
        ours = [(int(groups[row]), inputs[row], float(labels[row])) for row in rows]
        # In the order that one process would have, so that the number of processes is irrelevant.
        whole = sorted(gather_object(ours), key=lambda example: example[0])
        fresh = Examples([x for _, x, _ in whole], torch.tensor([y for _, _, y in whole]))
        unlabelled = processes.total(len(rollouts) - len(rows))
        metrics = self.learn(fresh) if len(fresh) else {}
        # Some kernels are not deterministic, and the weights would drift apart.
        processes.share(self.network.parameters())
        return {**metrics, "unlabelled": float(unlabelled)}

    def learn(self, fresh: Examples) -> dict[str, float]:
        """One round on fresh examples; returns metrics.

        `agreement`, `ranking` and `overrated` are measured before the update.
        """
        metrics = self._measured(fresh)
        draws = torch.Generator().manual_seed((self.config.seed << 20) + self.rounds)
        share = self.config.replay / (1 - self.config.replay)
        count = min(len(self._old), round(share * len(fresh)))
        examples = fresh + self._old.take(torch.randperm(len(self._old), generator=draws)[:count])
        self._remember(fresh, draws)
        self.rounds += 1
        if bool((examples.labels == examples.labels[0]).all()):
            return {**metrics, ONE_CLASS: 1.0}
        losses = [self._update(part) for part in self._batches(examples, draws)]
        return {**metrics, "loss": sum(losses) / len(losses)}

    # ---- a round

    def _measured(self, fresh: Examples) -> dict[str, float]:
        with torch.no_grad():
            parts = torch.arange(len(fresh)).split(self.config.examples)
            logits = [self.logits(fresh.take(rows).inputs).cpu() for rows in parts]
        predicted = torch.cat(logits).sigmoid()
        right = fresh.labels > 0.5
        measured = {
            "agreement": float(((predicted > 0.5) == right).float().mean()),
            "overrated": float((predicted - fresh.labels).mean()),
            "labels": float(fresh.labels.mean()),
        }
        if right.any() and not right.all():
            margins = predicted[right].unsqueeze(1) - predicted[~right]
            measured["ranking"] = float(
                (margins > 0).float().mean() + (margins == 0).float().mean() / 2
            )
        return measured

    def _batches(self, examples: Examples, draws: torch.Generator) -> Iterator[Examples]:
        for _ in range(self.config.epochs):
            order = torch.randperm(len(examples), generator=draws)
            for rows in order.split(self.config.examples):
                yield examples.take(rows)

    def _update(self, examples: Examples) -> float:
        logits = self.logits(examples.inputs)
        loss = binary_cross_entropy_with_logits(logits, examples.labels.to(logits.device))
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()
        return loss.item()

    @property
    def _optimizer(self) -> torch.optim.AdamW:
        if self._adamw is None:
            trained = [p for p in self.network.parameters() if p.requires_grad]
            rate = self.config.learning_rate
            self._adamw = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
        return self._adamw

    def _remember(self, fresh: Examples, draws: torch.Generator) -> None:
        """Keep a uniform sample of all examples so far (reservoir sampling, Vitter's R)."""
        inputs, labels = list(self._old.inputs), self._old.labels.tolist()
        for each, label in zip(fresh.inputs, fresh.labels.tolist(), strict=True):
            self._seen += 1
            place = int(torch.randint(self._seen, (), generator=draws))
            if len(inputs) < self.config.memory:
                inputs.append(each)
                labels.append(label)
            elif place < len(inputs):
                inputs[place], labels[place] = each, label
        self._old = Examples(inputs, torch.tensor(labels))

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        old = self._old
        return {
            "rounds": self.rounds,
            "seen": self._seen,
            "network": {name: p.detach() for name, p in self.network.named_parameters()},
            "optimizer": self._optimizer.state_dict(),
            "old": {
                "inputs": torch.cat([*old.inputs]) if len(old) else torch.empty(0),
                "lengths": [len(each) for each in old.inputs],
                "labels": old.labels,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rounds, self._seen, old = state["rounds"], state["seen"], state["old"]
        trained = dict(self.network.named_parameters())
        if trained.keys() != state["network"].keys():
            raise ValueError("the saved network has parameters of other names")
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(state["network"][name])
        self._optimizer.load_state_dict(deepcopy(state["optimizer"]))  # it would share tensors
        self._old = Examples(old["inputs"].split(old["lengths"]), old["labels"])


def _check_range(labels: Tensor, name: str) -> None:
    outside = labels[(labels < 0) | (labels > 1)]
    if len(outside):
        raise ValueError(
            f"expected labels from 0 to 1, as a verifier gives, received {float(outside[0]):g} "
            f"from {name!r}"
        )
