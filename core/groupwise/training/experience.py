"""Experience: what a step learns from: rollouts, scored, with dead groups replaced."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator

from groupwise import processes
from groupwise.algorithm import Algorithm
from groupwise.config.sections import TrainSection
from groupwise.prompts.draws import Draw, Prompts
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.scoring import Scoring
from groupwise.training import step_metrics
from groupwise.training.clock import Clock
from groupwise.training.judge import Judge
from groupwise.training.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Rollouts of a step with their scores, on this process, and metrics of all processes.

    spare: a rollout that a process runs without effect while others have more of them, None where
    there is one process.
    """

    rollouts: Rollouts
    scores: Scores
    metrics: Mapping[str, Any]
    spare: Rollouts | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was sampled together, in batches of whole groups, and how far the scoring of it is."""

    draws: Sequence[Draw]
    batches: Sequence[Rollouts]
    scorings: Sequence[Scoring]


class Experience:
    """Yields the scored rollouts of one step after the other.

    Async rewards and isolated ones begin with a batch as soon as it is drawn, and are at it while
    the next is.

    Its state is the place in the prompts after the last step that was yielded. failures: by reward,
    why it failed last and was skipped, on any process.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Prompts,
        scorer: Scorer,
        judge: Judge,
        *,
        algorithm: Algorithm,
        settings: TrainSection,
        accelerator: Accelerator,
        clock: Clock,
    ) -> None:
        self.sampling, self.prompts, self.scorer, self.judge = sampling, prompts, scorer, judge
        self.algorithm, self.settings = algorithm, settings
        self.accelerator, self.clock = accelerator, clock
        self.place = prompts.state_dict()
        self.failures: dict[str, str] = {}

    def next(self, state: RunState, *, ahead: bool = False) -> Scored:
        """The experience of the step after `state.global_step` steps.

        ahead: whether more may be sampled before this step is learned from; only `Ahead` does.
        """
        experience = self._scored(self._first_round(state), state)
        self.place = self.prompts.state_dict()
        return experience

    def drop(self) -> None:
        """Let go of what is sampled ahead."""

    def state_dict(self) -> dict[str, int]:
        return self.place

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.drop()
        self.prompts.load_state_dict(state)
        self.place = self.prompts.state_dict()
        self.sampling.forget()

    # ---- sampling

    def _follow(self, step: int) -> None:
        self.sampling.policy.begin(step)
        self.sampling.follow(self.algorithm.samples_with, step)

    def _first_round(self, state: RunState) -> Round:
        return self._round(self.prompts.take(self.settings.groups_per_step), state)

    def _round(self, draws: Sequence[Draw], state: RunState) -> Round:
        """Sample this process's share of the draws; the scoring of it begins."""
        with self.clock.time("sample"):
            self._follow(state.global_step)
            return self._begun(draws, self._batches(draws), state)

    def _begun(self, draws: Sequence[Draw], batches: Iterable[Rollouts], state: RunState) -> Round:
        """Begin to score each batch as it comes."""
        begun = [(rollouts, self.scorer.start(rollouts, state)) for rollouts in batches]
        return Round(
            draws=draws,
            batches=[rollouts for rollouts, _ in begun],
            scorings=[scoring for _, scoring in begun],
        )

    def _batches(self, draws: Sequence[Draw]) -> Iterator[Rollouts]:
        """This process's share of the draws, as it is sampled.

        A process without draws samples those of the first, without use: what processes do together,
        all of them must do.
        """
        return self.sampling.draw(
            draws, self.settings.group_size, space="train", purpose="train", idle=True
        )

    # ---- scoring and refilling

    def _scored(self, first: Round, state: RunState) -> Scored:
        """The rollouts of a step with their scores; groups of equal reward are refilled."""
        rollouts, scores = self._finished(first)
        spare = None
        if self.accelerator.num_processes > 1:
            spare = rollouts.select([int(rollouts.extents.argmax())])
        parts = [self._own(first.draws, rollouts, scores)]
        metrics = self._describe(*parts[0])
        if not self.algorithm.refills:
            ours, scores = parts[0]
            return Scored(rollouts=ours, scores=scores, metrics=metrics, spare=spare)
        wanted, refilled = self.settings.groups_per_step, 0
        for _ in range(self.settings.max_refills):
            missing = wanted - sum(processes.total(self._alive_groups(r, s)) for r, s in parts)
            if missing <= 0:
                break
            more = self._round(self.prompts.take(missing), state)
            parts.append(self._own(more.draws, *self._finished(more)))
            refilled += missing
            metrics = step_metrics.with_round(metrics, self._describe(*parts[-1]))
        ours, scores = self._fill(parts)
        metrics = {**metrics, "refilled_groups": refilled}
        return Scored(rollouts=ours, scores=scores, metrics=metrics, spare=spare)

    def _finished(self, begun: Round) -> tuple[Rollouts, Scores]:
        """All that was sampled with its scores, which are waited for."""
        with self.clock.time("reward"):
            scores = self.scorer.finish(begun.scorings)
        return Rollouts.concat(begun.batches).with_facts_on_cpu(), scores

    def _own(
        self, draws: Sequence[Draw], rollouts: Rollouts, scores: Scores
    ) -> tuple[Rollouts, Scores]:
        """Nothing where this process has no draws among these."""
        if not self.sampling.share(draws):
            return rollouts.select([]), scores.select(torch.empty(0, dtype=torch.int64))
        return rollouts, scores

    def _fill(self, parts: Sequence[tuple[Rollouts, Scores]]) -> tuple[Rollouts, Scores]:
        """The live groups of all rounds, filled up with dead ones of the first to the full count.

        What stays dead after the last round still counts in the loss's denominators.
        """
        rollouts = Rollouts.concat([part for part, _ in parts])
        scores = Scores.concat([part for _, part in parts])
        groups = rollouts.groups.cpu()
        dead = self.algorithm.dead(scores, groups)
        alive, spare = processes.union(groups[~dead]), processes.union(groups[dead])
        room = max(0, self.settings.groups_per_step - len(alive))
        kept = torch.isin(groups, torch.cat([alive, spare[:room]]))
        return rollouts.select(kept), scores.select(kept)

    def _alive_groups(self, rollouts: Rollouts, scores: Scores) -> int:
        groups = rollouts.groups.cpu()
        return len(groups[~self.algorithm.dead(scores, groups)].unique())

    def _describe(self, rollouts: Rollouts, scores: Scores) -> dict[str, Any]:
        self.judge.look(scores)
        self.judge.agree()
        self.failures |= processes.first_of(scores.failures)
        right = None if self.judge.measures else self.judge.right(scores)
        logged = self.sampling.policy.logged
        dead = self.algorithm.dead(scores, rollouts.groups.cpu())
        return step_metrics.describe(rollouts, scores, dead=dead, right=right, logged=logged)


class Ahead(Experience):
    """Samples a step's rollouts before the step before it is learned from.

    So they are of weights one step older, and an engine draws them while the update runs; rewards
    of a step are waited for when the next is sampled, or its sampling has begun. Draws and seeds
    are those of `Experience`: where groups are refilled, nothing is sampled ahead until it is known
    how many. Nothing is sampled ahead where `ahead` is False, as before an evaluation or a
    checkpoint, so that a resumed run draws by the same weights.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._flight: tuple[list[Draw], Future[list[Rollouts]]] | None = None
        # An engine answers while this process computes. A policy that samples itself would compete
        # with its own update, and changes under it: it samples at once.
        own = self.sampling.sampler is self.sampling.policy
        self._thread = None
        if not own:
            self._thread = ThreadPoolExecutor(
                1, thread_name_prefix="ahead", initializer=lambda: _use(self.accelerator.device)
            )

    def next(self, state: RunState, *, ahead: bool = False) -> Scored:
        if self.algorithm.refills:
            experience = super().next(state)
            if ahead:
                self._send(state.global_step)
            return experience
        first, place = self._first_round(state), self.prompts.state_dict()
        if ahead:
            self._send(state.global_step)
        experience = self._scored(first, state)
        self.place = place
        return experience

    def _first_round(self, state: RunState) -> Round:
        if self._flight is None:
            return super()._first_round(state)
        draws, flight = self._flight
        with self.clock.time("sample"):
            batches = flight.result()
        self._flight = None
        return self._begun(draws, batches, state)

    def _send(self, step: int) -> None:
        """Have the next step's rollouts drawn, by the weights of this step."""
        draws = self.prompts.take(self.settings.groups_per_step)
        with self.clock.time("sample"):
            self.sampling.policy.begin(step + 1)
            self.sampling.follow(self.algorithm.samples_with, step)
            if self._thread is not None:
                self._flight = draws, self._thread.submit(lambda: [*self._batches(draws)])
                return
            done: Future[list[Rollouts]] = Future()
            done.set_result([*self._batches(draws)])
            self._flight = draws, done

    def drop(self) -> None:
        """Let go of what is sampled ahead, and of its place in the prompts."""
        if self._flight is not None:
            self._flight[1].exception()  # wait: nothing may be in flight when weights change
            self._flight = None
            self.prompts.load_state_dict(self.place)


def _use(device: torch.device) -> None:
    """A thread begins on the first GPU, whichever its process works on."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
