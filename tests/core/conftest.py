"""A policy so small that all its completions can be listed, and helpers that build a run for it.

Pytest imports tests by path, so they receive these helpers as the fixture `lab`, a namespace.
"""

import atexit
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tests.calls import credited, fill, score, trained
from torch import Tensor, nn

from groupwise import LogProbs, Policy, Rollouts
from groupwise.algorithm import Algorithm
from groupwise.algorithms.grpo import GRPO
from groupwise.building.build import build_parts, open_trainer
from groupwise.config.load import load_config
from groupwise.learning.trainer import Trainer
from groupwise.plugins.resolved import resolve
from groupwise.prompts.draws import Prompts
from groupwise.record import Group
from groupwise.record.gather import gather
from groupwise.recording import snapshot
from groupwise.rewards import Reward, Scores
from groupwise.run.loop import loop
from groupwise.sampler import Sampler
from groupwise.storage.checkpoint import Checkpoints
from groupwise.testing import updater_of

END = 0


class Tabular(Policy):
    """A categorical policy in float64 whose logits are a table.

    The logits of a decision depend on prompt, position and the previous symbol; symbol 0 ends the
    completion. `forward_sizes` records the number of rows of each forward pass.
    """

    provides = frozenset({"log_probs", "entropy"})
    unit = "symbols"
    facts = frozenset({"completion_ids"})
    exact = True

    def __init__(
        self,
        *,
        prompts: int = 8,
        symbols: int = 3,
        length: int = 5,
        seed: int = 0,
        bias: float = 0.0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(
            prompts, length, symbols + 1, symbols, generator=generator, dtype=torch.float64
        )
        self.table = nn.Parameter(table)
        self.symbols, self.max_decisions, self.bias = symbols, length, bias
        self.forward_sizes: list[int] = []

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: str = "train",
    ) -> Rollouts:
        rows = [row for row in prompts for _ in range(group_size)]
        chosen = [
            self._draw(row["id"], seed, purpose) for row, seed in zip(rows, seeds, strict=True)
        ]
        rollouts = build(rows, chosen)
        groups = torch.arange(len(prompts)).repeat_interleave(group_size)
        forward_sizes, self.forward_sizes = self.forward_sizes, []
        with torch.no_grad():
            log_probs = self(rollouts).log_probs
        self.forward_sizes = forward_sizes
        return Rollouts(
            prompts=rollouts.prompts,
            completions=rollouts.completions,
            groups=groups,
            mask=rollouts.mask,
            truncated=torch.tensor([symbols[-1] != END for symbols in chosen]),
            # With a `bias`, the sampler reports wrong log-probs.
            sampler_log_probs=log_probs + self.bias,
            facts={"completion_ids": chosen},
            trajectory=rollouts.trajectory,
        )

    def _draw(self, prompt: int, seed: int, purpose: str) -> list[int]:
        generator = torch.Generator().manual_seed(seed % 2**63)
        uniforms = torch.rand(self.max_decisions, generator=generator, dtype=torch.float64)
        symbols: list[int] = []
        previous = self.symbols
        for position in range(self.max_decisions):
            probabilities = self.table.detach()[prompt, position, previous].softmax(0)
            if purpose == "greedy":
                previous = int(probabilities.argmax())
            else:
                previous = min(
                    int(
                        torch.searchsorted(probabilities.cumsum(0), uniforms[position], right=True)
                    ),
                    self.symbols - 1,
                )
            symbols.append(previous)
            if previous == END:
                break
        return symbols

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        self.forward_sizes.append(len(rollouts))
        symbols, prompt = rollouts.trajectory["symbols"], rollouts.trajectory["prompt"]
        assert isinstance(symbols, Tensor)
        assert isinstance(prompt, Tensor)
        start = torch.full((len(rollouts), 1), self.symbols)
        previous = torch.cat([start, symbols], dim=1)[:, :-1][:, decisions]
        position = torch.arange(symbols.shape[1])[decisions].expand_as(previous)
        scores = self.table[prompt.unsqueeze(1), position, previous].log_softmax(-1)
        log_probs = scores.gather(-1, symbols[:, decisions].unsqueeze(-1)).squeeze(-1)
        return LogProbs(log_probs=log_probs, entropy=-(scores.exp() * scores).sum(-1))

    def completions(self) -> Iterator[list[int]]:
        """All possible completions."""

        def grow(symbols: list[int]) -> Iterator[list[int]]:
            if symbols and (symbols[-1] == END or len(symbols) == self.max_decisions):
                yield symbols
                return
            for symbol in range(self.symbols):
                yield from grow([*symbols, symbol])

        yield from grow([])


def build(
    rows: Sequence[Mapping[str, Any]],
    chosen: Sequence[Sequence[int]],
    *,
    group_size: int = 1,
    pad: int = 0,
) -> Rollouts:
    """Rollouts of these symbols, padded by `pad` more positions than needed."""
    width = max(len(symbols) for symbols in chosen) + pad
    table = torch.zeros(len(chosen), width, dtype=torch.int64)
    mask = torch.zeros(len(chosen), width, dtype=torch.bool)
    for number, symbols in enumerate(chosen):
        table[number, : len(symbols)] = torch.tensor(symbols, dtype=torch.int64)
        mask[number, : len(symbols)] = True
    return Rollouts(
        prompts=list(rows),
        completions=["".join(map(str, symbols)) for symbols in chosen],
        groups=torch.arange(len(rows)) // group_size,
        mask=mask,
        truncated=torch.zeros(len(rows), dtype=torch.bool),
        trajectory={
            "symbols": table,
            "prompt": torch.tensor([row["id"] for row in rows]),
            "ragged": [torch.tensor(symbols) for symbols in chosen],
        },
    )


def rows(count: int = 8) -> list[dict[str, Any]]:
    return [{"prompt": f"question {number}", "id": number} for number in range(count)]


def ones(completions: Sequence[str], **_: Any) -> list[float]:
    """A reward: the number of 1s minus 0.25 for each symbol, so that no symmetry hides an error."""
    return [text.count("1") - 0.25 * len(text) for text in completions]


def scores_of(values: Tensor, failed: Tensor | None = None) -> Scores:
    """Scores of a single reward."""
    return Scores(
        names=("reward",),
        weights=(1.0,),
        values=values.double().unsqueeze(1),
        failed=torch.zeros(len(values), dtype=torch.bool) if failed is None else failed,
    )


def config(**sections: Any) -> Any:
    """A configuration with its defaults, of which nothing is built."""
    needed = {"policy": "tabular", "prompts": "rows", "rewards": ["ones"]}
    return load_config({**needed, **sections}).config


class Lone(Trainer):
    """A trainer of one learner."""

    @property
    def learner(self) -> Any:
        (learner,) = self.learners.values()
        return learner

    @property
    def policy(self) -> Policy:
        return self.learner.policy

    @property
    def algorithm(self) -> Algorithm:
        return self.learner.algorithm


def trainer(
    policy: Policy | None = None,
    algorithm: Algorithm | None = None,
    reward: Callable[..., Any] | Sequence[Reward] = ones,
    *,
    source: Any = None,
    seed: int = 3,
    evaluate_every: int = 0,
    held_out: float = 0.4,
    evaluation: Mapping[str, Any] | None = None,
    sampler: Sampler | None = None,
    sections: Mapping[str, Any] | None = None,
    objects: Mapping[tuple[str | int, ...], Any] | None = None,
    **settings: Any,
) -> Lone:
    """A trainer of a tabular policy, as a run builds it, until the end of the test.

    settings: of the section `train`; sections, objects: further ones, of the configuration and of
    those passed in place of names.
    """
    defaults = {"steps": 3, "groups_per_step": 4, "group_size": 4, "learning_rate": 0.05}
    measures = [Reward(name="ones", function=reward)] if callable(reward) else reward
    parts: dict[tuple[str | int, ...], Any] = {
        ("policy",): policy or Tabular(),
        ("algorithm",): algorithm or GRPO(),
        ("prompts",): rows() if source is None else source,
        **{("rewards", number): each.function for number, each in enumerate(measures)},
        **({("sampler",): sampler} if sampler else {}),
        **(objects or {}),
    }
    sections = {
        "policy": "tabular",
        "prompts": {"name": "rows", "held_out": held_out},
        "rewards": [{"name": "ones", "label": each.name} for each in measures],
        "evaluation": {
            "prompts": int(held_out > 0),
            "every": evaluate_every,
            **(evaluation or {}),
        },
        "train": {**defaults, **settings},
        "seed": seed,
        **({"sampler": "engine"} if sampler else {}),
        **(sections or {}),
    }
    built = build_parts(resolve(replace(load_config(sections), objects=parts)))
    built = replace(built, rewards=type(built.rewards)(measures))
    trainer = opened.enter_context(open_trainer(built, Accelerator(cpu=True)))
    trainer.__class__ = Lone
    return trainer


opened = ExitStack()
"""The trainers of a test."""
atexit.register(opened.close)


class Events:
    """Replaces a run's recorder and saver: calls functions at steps, checkpoints, evaluations,
    signals."""

    def __init__(
        self,
        on_step: Callable[..., Any] = lambda *_: None,
        on_checkpoint: Callable[[], Any] = lambda: None,
        on_evaluation: Callable[..., Any] = lambda *_: None,
        on_signal: Callable[[str], Any] = lambda _: None,
    ) -> None:
        self.step, self.on_checkpoint, self.on_evaluation = on_step, on_checkpoint, on_evaluation
        self.interrupted = on_signal
        self.trainer: Any = None

    def samples(self, step: int, samples: Sequence[Any]) -> None:
        pass

    def check_collapse(self) -> bool:
        return True

    def finish(self, *, wait: bool = True) -> None:
        pass

    def checkpoint(self) -> None:
        self.trainer.saved = time.monotonic()
        self.on_checkpoint()

    def evaluation(self, step: int, evaluation: Any) -> dict[str, float]:
        self.on_evaluation(step, evaluation)
        return evaluation.logged


def fit(trainer: Trainer, *functions: Callable[..., Any]) -> bool:
    """The loop of a run, with functions called at steps, checkpoints, evaluations and signals."""
    events = Events(*functions)
    events.trainer = trainer
    return loop(trainer, events, events)


def step(trainer: Trainer) -> dict[str, Any]:
    """One step, as in the loop of a run; returns its metrics."""
    trainer.due()
    scored = trainer.experience.next(trainer.state)
    return trainer.end_step({**scored.metrics, **trainer.learn(scored), **trainer.teach(scored)})


def replay_of(reward: Callable[..., Any], **settings: Any) -> Any:
    """The replay of a run with these settings; `reward` tells right completions from wrong ones."""
    measures = [Reward(name="reward", function=reward)]
    return trainer(reward=measures, evaluation={"threshold": 1.0}, replay=settings).learner.replay


def save(trainer: Trainer, folder: Path, *, keep: int = 1) -> Path:
    """Write a checkpoint of a trainer; returns its folder."""
    return Checkpoints(folder, keep=keep).save(trainer.step, snapshot.take(trainer))


def restore(trainer: Trainer, folder: Path) -> None:
    """Load the last checkpoint in a folder into a trainer."""
    snapshot.restore(trainer, Checkpoints(folder).load())


def gradient(policy: nn.Module) -> Tensor:
    """All gradients as one vector; zeros for parameters without a gradient."""
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in policy.parameters()]
    )


def gap(left: Tensor, right: Tensor) -> float:
    """Relative difference: |left - right| / |right|."""
    return float((left - right).norm() / right.norm())


lab_of_tests = SimpleNamespace(
    Group=Group,
    Prompts=Prompts,
    config=config,
    credited=credited,
    score=score,
    fill=fill,
    trained=trained,
    gather=gather,
    END=END,
    Tabular=Tabular,
    build=build,
    rows=rows,
    ones=ones,
    scores_of=scores_of,
    updater=updater_of,
    trainer=trainer,
    replay_of=replay_of,
    fit=fit,
    step=step,
    save=save,
    restore=restore,
    gradient=gradient,
    gap=gap,
)


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    return lab_of_tests


@pytest.fixture(autouse=True)
def _close_trainers() -> Iterator[None]:
    yield
    opened.close()


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
