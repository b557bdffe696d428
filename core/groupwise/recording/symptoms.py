"""Symptoms: warnings about the metrics of steps, each shown once."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.algorithm import Algorithm
from groupwise.learned import ONE_CLASS
from groupwise.recording.collapse import Collapse
from groupwise.scoring.reward_result import STEPS

STEPS_WITHOUT_VARIANCE = 10
"""Warn after so many steps in a row from which nothing was learned."""
STEPS_UNJUDGED = 3
"""Warn after so many steps in a row in which a process reward had nothing to judge."""
ROUNDING = 1e-9
"""The computed std of equal rewards may be above 0, but not above this."""


class Symptoms:
    """Checks every step's metrics; each warning is shown once.

    algorithm: has the limit of the gap between sampler and policy, and may warn itself.
    least_norm: of the gradient, below which the optimizer's epsilon shortens steps; diversity: the
    policy's.
    """

    def __init__(self, algorithm: Algorithm, least_norm: float = 0.0, diversity: str = "") -> None:
        self.algorithm, self.least_norm, self.diversity = algorithm, least_norm, diversity
        self.steps = self.without_variance = 0
        self._is_first = True
        self._unjudged: dict[str, int] = {}
        self._warned: set[str] = set()
        self._last: Mapping[str, Any] = {}
        self.collapse = Collapse()

    def warnings(
        self, metrics: Mapping[str, Any], nonfinite: str = "", *, step: int = 0
    ) -> Iterator[str]:
        """Warnings about this step, the metrics of which these are; nonfinite: the first tensor
        that was not finite, if any."""
        warnings = {
            "mismatch": self._mismatch(metrics),
            "unscored": self._unscored(metrics),
            "variance": self._variance(metrics),
            "skipped": self._skipped(metrics, nonfinite),
            "epsilon": self._small(metrics),
            "algorithm": self.algorithm.warning(metrics),
            "calls": self._without_calls(metrics),
            "turns": self._other_turns(metrics),
            **self._without_steps(metrics),
            **self._untaught(metrics),
            **{f"past/{name}": text for name, text in self.collapse.warnings(step, metrics)},
        }
        for name, warning in warnings.items():
            if warning and name not in self._warned:
                self._warned.add(name)
                yield f"warning: {warning}"

    def failed(self, reasons: Mapping[str, str]) -> Iterator[str]:
        """Warnings about failed completions; reasons: by cause, a sentence on the first of them."""
        for name, reason in reasons.items():
            if f"failed/{name}" not in self._warned:
                self._warned.add(f"failed/{name}")
                yield (
                    f"warning: {reason}; completions that fail are left out and never count as 0 "
                    f"(`failed` in metrics.jsonl counts them)"
                )

    def _mismatch(self, metrics: Mapping[str, Any]) -> str | None:
        mean, limit = metrics.get("mismatch/mean", 0.0), self.algorithm.mismatch_limit
        if not mean > limit:
            return None
        return (
            f"the sampler's log-probs differ from the policy's by {mean:.2g} nats on average "
            f"(limit {limit:.2g}), so the policy would sample these rollouts with other "
            f"probabilities. Usual causes are bf16 rounding, dropout and another engine. See "
            f"mismatch/* in metrics.jsonl"
        )

    def _unscored(self, metrics: Mapping[str, Any]) -> str | None:
        if not math.isnan(metrics["reward"]):
            return None
        return (
            "no completion of this step has a reward: all rewards are None, or all completions "
            "failed. Do the rewards apply to these prompts?"
        )

    def _without_calls(self, metrics: Mapping[str, Any]) -> str | None:
        """Of the first step: an environment with tools that no completion called."""
        first, self._is_first = self._is_first, False
        counts = [metrics[n] for n in ("environment/calls", "turns/calls") if n in metrics]
        if not (first and counts) or any(count != 0 for count in counts):  # not if it is NaN
            return None
        advice = (
            "some look like calls, in a form that is not parsed: turns/parsed is their share"
            if "turns/parsed" in metrics
            else "show a call in the prompt, or first fine-tune the model on some"
        )
        return (
            f"no completion of this step called a tool, and what is never tried is not learned; "
            f"{advice}. See what the model writes (samples/before.jsonl, or the page), and what it "
            f"reads: `groupwise check` prints an episode as its chat template writes it. Are the "
            f"tools in it?"
        )

    def _other_turns(self, metrics: Mapping[str, Any]) -> str | None:
        share = metrics.get("turns/as_sampled", 1.0)
        if not share < 1:
            return None
        return (
            f"of the turns in this step's rollouts only {share:.1%} are as they were sampled; the "
            f"others are trained on tokens that the policy never chose. This is a mistake of the "
            f"sampler: see turns/as_sampled in metrics.jsonl"
        )

    def _without_steps(self, metrics: Mapping[str, Any]) -> Mapping[str, str]:
        """By process reward, a warning that it finds no steps in completions."""
        counts = {n: v for n, v in metrics.items() if n.endswith(f"/{STEPS}")}
        for name, count in counts.items():
            self._unjudged[name] = 0 if count else self._unjudged.get(name, 0) + 1
        return {
            name: (
                f"reward {name.removesuffix(f'/{STEPS}')!r} judges steps of completions, but in "
                f"the last {rows} training steps it found no steps in any, so nothing is learned "
                f"from it. Look at samples/before.jsonl: are steps marked as the reward expects, "
                f"by lines, a pattern or tags? {name} in metrics.jsonl is the number of steps per "
                f"completion"
            )
            for name, rows in self._unjudged.items()
            if rows >= STEPS_UNJUDGED
        }

    def _untaught(self, metrics: Mapping[str, Any]) -> Mapping[str, str]:
        """By reward that learns, a warning that all labels were equal."""
        names = [n for n in metrics if n.endswith(f"/{ONE_CLASS}")]
        return {
            name: (
                f"reward {name.rpartition('/')[0]!r} learned nothing in this step: its verifier "
                f"gave all completions the same label. {name} in metrics.jsonl marks such steps"
            )
            for name in names
        }

    def _variance(self, metrics: Mapping[str, Any]) -> str | None:
        others = bool(self.algorithm.teacher) or metrics.get("replay/share", 0.0) > 0
        learned = others or metrics["zero_variance"] < 1
        self.steps += 1
        self.without_variance = 0 if learned else self.without_variance + 1
        self._last = metrics
        if self.without_variance < STEPS_WITHOUT_VARIANCE or math.isnan(metrics["reward"]):
            return None  # without any reward `_unscored` says so
        spread, floor = metrics.get("reward_std", 0.0), self._floor
        if floor and spread > ROUNDING:
            return (
                f"in the last {self.without_variance} steps the rewards of every prompt's "
                f"completions had a std below algorithm.least_std, {floor:g} (now {spread:.2g} on "
                f"average), so nothing was learned. If such differences are no noise, set "
                f"algorithm.least_std: 0, or weight the rewards higher"
            )
        return (
            f"in the last {self.without_variance} steps all completions of every prompt had the "
            f"same reward (now {metrics['reward']:.3g} on average), so nothing was learned. Look "
            f"at samples/before.jsonl: does the reward read what the model writes? If it does, "
            f"easier or harder prompts, a reward with partial credit, "
            f"{self.diversity and f'{self.diversity} '}or a larger group_size may help"
        )

    def at_end(self) -> Iterator[str]:
        """A warning about all steps, if there were too few for one about steps in a row."""
        is_short = 0 < self.without_variance == self.steps < STEPS_WITHOUT_VARIANCE
        if not is_short or math.isnan(self._last["reward"]):
            return
        cut = self._last.get("truncated", 0.0)
        yield (
            f"warning: nothing was learned, since in every step all completions of each prompt had "
            f"the same reward ({self._last['reward']:.3g} on average)"
            f"{f'; {cut:.0%} of them were cut off by a limit' if cut else ''}. Does the reward "
            f"read what the model writes (samples/before.jsonl)?"
        )

    @property
    def _floor(self) -> float:
        """`least_std` of the algorithm; 0 if it has none."""
        floor: float = getattr(getattr(self.algorithm, "config", None), "least_std", 0.0)
        return floor

    def _small(self, metrics: Mapping[str, Any]) -> str | None:
        norm = metrics.get("grad_norm", 0.0)
        if not 0 < norm < self.least_norm:
            return None
        return (
            f"the gradient (grad_norm {norm:.2g}) is so small that AdamW's epsilon shortens its "
            f"steps: per weight it is about as small as train.epsilon. Lower that, to 1e-15 for "
            f"example, or weight the loss higher; a higher learning rate would not undo it for all "
            f"weights alike"
        )

    def _skipped(self, metrics: Mapping[str, Any], nonfinite: str) -> str | None:
        if not metrics.get("skipped_updates"):
            return None
        return (
            f"an update was skipped, since its gradient is not finite; the first tensor that is "
            f"not finite is {nonfinite}. skipped_updates in metrics.jsonl counts them"
        )


def warnings_of_step(
    symptoms: Mapping[str, Symptoms],
    metrics: Mapping[str, Any],
    nonfinite: Mapping[str, str],
    *,
    step: int,
) -> Iterator[str]:
    """Warnings about a step of all learners; one about all of them is given once, without labels.

    symptoms, nonfinite: by label, as of `Symptoms.warnings`.
    """
    labels_by_warning: dict[str, list[str]] = {}
    for label, own in symptoms.items():
        of_learner = {n.removeprefix(f"{label}/"): value for n, value in metrics.items()}
        if "zero_variance" not in of_learner:  # an evaluation's own line
            continue
        for warning in own.warnings(of_learner, nonfinite.get(label, ""), step=step):
            labels_by_warning.setdefault(warning, []).append(label)
    for warning, labels in labels_by_warning.items():
        prefix = "" if len(labels) == len(symptoms) else f"{', '.join(labels)}: "
        yield f"step {step}: {prefix}{warning}"
