"""Learned: the base of rewards that learn, in rounds, what a verifier says of fresh rollouts.

Iterative GRPO (DeepSeekMath, arXiv:2402.03300, algorithm 1) trains its reward model on as the
policy moves, with a tenth of older data. The verifier stands under `watch`: it labels what the
reward model learns from, and the policy never sees it.
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

from groupwise import processes
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts

ONE_CLASS = "one_class"
"""The metric of a round in which all labels were the same, and nothing was learned."""


class Learning(BaseModel):
    """The options of every reward that learns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: str = Field(
        min_length=1,
        description="Label of the watched reward that it learns from, whose values lie in 0 to 1.",
    )
    every: int = Field(
        default=1, ge=0, description="Steps from one round of learning to the next; 0: none."
    )
    learning_rate: float = Field(default=1e-4, gt=0, description="Of AdamW.")
    examples: int = Field(default=32, ge=1, description="Completions in one of its updates.")
    epochs: int = Field(default=1, ge=1, description="Passes over the examples of a round.")
    replay: float = Field(
        default=0.1, ge=0, lt=1, description="Share of a round's examples that older rounds give."
    )
    memory: int = Field(
        default=4096, ge=0, description="Examples of older rounds that are kept for that."
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="Of what is replayed, and the order.")


@dataclass(frozen=True)
class Examples:
    """What is learned from: inputs, a tensor [n_i] each, and labels [n] float32 in 0 to 1."""

    inputs: Sequence[Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def __add__(self, other: "Examples") -> "Examples":
        return Examples([*self.inputs, *other.inputs], torch.cat([self.labels, other.labels]))

    def take(self, rows: Tensor) -> "Examples":
        return Examples([self.inputs[row] for row in rows.tolist()], self.labels[rows])


class Learned(ABC):
    """A reward that gives the probability that its verifier would call a completion right.

    A subclass says what its network reads (`inputs`) and answers (`logits`). Each round measures
    the agreement with the verifier on completions that it has not learned from yet, then learns
    from them and from some of older rounds, by the cross-entropy of its labels. Several processes
    put their completions together and all learn the same.

    rounds: those so far.
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
        """What is trained, loaded at its first use; the same on all processes."""

    @abstractmethod
    def inputs(self, rollouts: Rollouts) -> Sequence[Tensor | None]:
        """What the network reads of each rollout, a tensor [n_i] on the CPU; None: it cannot."""

    @abstractmethod
    def logits(self, inputs: Sequence[Tensor]) -> Tensor:
        """[n] with gradients: what its sigmoid gives is the probability."""

    # ---- what a run calls

    @property
    def labels(self) -> str:
        return self.config.labels

    @property
    def every(self) -> int:
        return self.config.every

    def refresh(self, rollouts: Rollouts, scores: Scores) -> dict[str, float]:
        """One round; scores: those of the verifier. All processes must call this.

        Raises ValueError for labels that are no probabilities.
        """
        labels = scores.column(self.labels).float()
        inputs = self.inputs(rollouts)
        rows = [row for row, each in enumerate(inputs) if each is not None and labels[row] >= 0]
        _check_range(labels, self.labels)
        groups = rollouts.groups.cpu()
        ours = [(int(groups[row]), inputs[row], float(labels[row])) for row in rows]
        # In the order of one process, so that their number changes nothing.
        whole = sorted(gather_object(ours), key=lambda example: example[0])
        fresh = Examples([x for _, x, _ in whole], torch.tensor([y for _, _, y in whole]))
        unlabelled = processes.total(len(rollouts) - len(rows))
        metrics = self.learn(fresh) if len(fresh) else {}
        # Kernels of some devices round differently each time.
        processes.share(self.network.parameters())
        return {**metrics, "unlabelled": float(unlabelled)}

    def learn(self, fresh: Examples) -> dict[str, float]:
        """One round on examples that it has not learned from before, and what came of it.

        `agreement`, `ranking` and `overrated` are of before it learned from them.
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
            apart = predicted[right].unsqueeze(1) - predicted[~right]
            measured["ranking"] = float(
                (apart > 0).float().mean() + (apart == 0).float().mean() / 2
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
        """Keep a uniform sample of all examples so far (Vitter's algorithm R)."""
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
            raise ValueError("its network has other weights")
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(state["network"][name])
        self._optimizer.load_state_dict(deepcopy(state["optimizer"]))  # else it shares tensors
        self._old = Examples(old["inputs"].split(old["lengths"]), old["labels"])


def _check_range(labels: Tensor, name: str) -> None:
    outside = labels[(labels < 0) | (labels > 1)]
    if len(outside):
        raise ValueError(
            f"expected labels in 0 to 1, as a verifier's, and {name!r} gave {float(outside[0]):g}"
        )
