"""Experience: what a step learns from: rollouts, scored, with dead groups replaced."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from groupwise import processes
from groupwise.algorithm import Algorithm
from groupwise.config.train import TrainSection
from groupwise.errors import UserError
from groupwise.prompts.draws import Draw, Prompts
from groupwise.prompts.weighted import Weighted
from groupwise.rewards import RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.scoring import Scoring
from groupwise.training import step_metrics
from groupwise.training.clock import Clock
from groupwise.training.judge import Judge
from groupwise.training.team import Team
from groupwise.training.work import Lesson, Work


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Rollouts of a step with their scores, on this process, and metrics of all processes.

    rollouts: those that were judged; lessons: by label, what each learner learns from; spares: of
    each a rollout that a process runs without effect while others have more of them, None where
    there is one process.
    """

    rollouts: Rollouts
    scores: Scores
    lessons: Mapping[str, Lesson]
    metrics: Mapping[str, Any]
    spares: Mapping[str, Rollouts | None]


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was sampled together, in batches of whole groups, and how far the scoring of it is."""

    draws: Sequence[Draw]
    batches: Sequence[Work]
    scorings: Sequence[Scoring]


class Experience:
    """Yields the scored rollouts of one step after the other.

    Async rewards and isolated ones begin with a batch as soon as it is drawn, and are at it while
    the next is.

    Its state is the place in the prompts after the last step that was yielded. algorithms: by label
    of the learner; failures: by reward, why it failed last and was skipped, on any process.
    """

    def __init__(
        self,
        team: Team,
        prompts: Prompts,
        scorer: Scorer,
        judge: Judge,
        *,
        algorithms: Mapping[str, Algorithm],
        settings: TrainSection,
        accelerator: Accelerator,
        clock: Clock,
    ) -> None:
        self.team, self.prompts, self.scorer, self.judge = team, prompts, scorer, judge
        self.settings = settings
        self.algorithms = algorithms
        self.samples_with = {label: a.samples_with for label, a in algorithms.items()}
        self.refills = any(algorithm.refills for algorithm in algorithms.values())
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

    def state_dict(self) -> dict[str, Any]:
        return self.place

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.drop()
        self.prompts.load_state_dict(state)
        self.place = self.prompts.state_dict()
        self.team.forget()

    # ---- sampling

    def _follow(self, step: int) -> None:
        self.team.begin(step)
        self.team.follow(self.samples_with, step)

    def _first_round(self, state: RunState) -> Round:
        return self._round(self.prompts.take(self.settings.groups_per_step), state)

    def _round(self, draws: Sequence[Draw], state: RunState) -> Round:
        """Sample this process's share of the draws; the scoring of it begins."""
        with self.clock.time("sample"):
            self._follow(state.global_step)
            return self._begun(draws, self.team.draw(draws), state)

    def _begun(self, draws: Sequence[Draw], batches: Iterable[Work], state: RunState) -> Round:
        """Begin to score each batch as it comes."""
        begun = [(work, self.scorer.start(work.judged, state)) for work in batches]
        return Round(
            draws=draws,
            batches=[work for work, _ in begun],
            scorings=[scoring for _, scoring in begun],
        )

    # ---- scoring and refilling

    def _scored(self, first: Round, state: RunState) -> Scored:
        """The rollouts of a step with their scores; groups of equal reward are refilled."""
        work, scores = self._finished(first)
        spares = {n: self._spare(x.rollouts) for n, x in work.lessons(scores).items()}
        parts = [self._own(first.draws, work, scores)]
        metrics = self._describe(*parts[0])
        if not self.refills:
            return _scored(*parts[0], metrics, spares)
        wanted, refilled = self.settings.groups_per_step, 0
        for _ in range(self.settings.max_refills):
            missing = wanted - sum(processes.total(self._alive_groups(r, s)) for r, s in parts)
            if missing <= 0:
                break
            more = self._round(self.prompts.take(missing), state)
            parts.append(self._own(more.draws, *self._finished(more)))
            refilled += missing
            metrics = step_metrics.with_round(metrics, self._describe(*parts[-1]))
        return _scored(*self._fill(parts), {**metrics, "refilled_groups": refilled}, spares)

    def _spare(self, rollouts: Rollouts) -> Rollouts | None:
        """A rollout for passes without effect, of several processes."""
        if self.accelerator.num_processes == 1:
            return None
        if not len(rollouts):
            raise UserError(
                "chain: on a process, the next policy could take none of the completions as its "
                "prompt, so there is nothing to learn from; fewer processes, or a first policy "
                "that knows what the next one can take, would help"
            )
        return rollouts.select([int(rollouts.extents.argmax())])

    def _finished(self, begun: Round) -> tuple[Work, Scores]:
        """All that was sampled with its scores, which are waited for."""
        with self.clock.time("reward"):
            scores = self.scorer.finish(begun.scorings)
        return type(begun.batches[0]).concat(begun.batches), scores

    def _own(self, draws: Sequence[Draw], work: Work, scores: Scores) -> tuple[Work, Scores]:
        """Nothing where this process has no draws among these."""
        if not self.team.share(draws):
            nothing = torch.empty(0, dtype=torch.int64)
            return work.select(nothing), scores.select(nothing)
        return work, scores

    def _fill(self, parts: Sequence[tuple[Work, Scores]]) -> tuple[Work, Scores]:
        """The live groups of all rounds, filled up with dead ones of the first to the full count.

        What stays dead after the last round still counts in the loss's denominators.
        """
        work = type(parts[0][0]).concat([part for part, _ in parts])
        scores = Scores.concat([part for _, part in parts])
        groups = work.judged.groups.cpu()
        dead = self._dead(work, scores)
        alive, spare = processes.union(groups[~dead]), processes.union(groups[dead])
        room = max(0, self.settings.groups_per_step - len(alive))
        kept = torch.isin(groups, torch.cat([alive, spare[:room]]))
        return work.select(kept), scores.select(kept)

    def _dead(self, work: Work, scores: Scores) -> Tensor:
        """[B] bool: those of groups that no learner learns from."""
        judged = Lesson(rollouts=work.judged, scores=scores)
        return torch.stack([judged.dead(a) for a in self.algorithms.values()]).all(dim=0)

    def _alive_groups(self, work: Work, scores: Scores) -> int:
        groups = work.judged.groups.cpu()
        return len(groups[~self._dead(work, scores)].unique())

    def _describe(self, work: Work, scores: Scores) -> dict[str, Any]:
        self.judge.look(scores)
        self.judge.agree()
        self.failures |= processes.first_of(scores.failures)
        right = None if self.judge.measures else self.judge.right(scores)
        metrics = step_metrics.describe(
            work.judged,
            scores,
            dead=self._dead(work, scores),
            right=right,
            logged=self.team.logged,
        )
        if isinstance(self.prompts, Weighted):
            metrics |= self.prompts.observe(step_metrics.outcomes(work.judged, right))
        lessons = work.lessons(scores)
        if len(lessons) == 1:
            return metrics
        dead = {label: lessons[label].dead(a) for label, a in self.algorithms.items()}
        return metrics | step_metrics.of_learners(lessons, dead)


class Ahead(Experience):
    """Samples a step's rollouts before the step before it is learned from.

    So they are of weights one step older, and an engine draws them while the update runs; rewards
    of a step are waited for when the next is sampled, or its sampling has begun. Draws and seeds
    are those of `Experience`: where groups are refilled, nothing is sampled ahead until it is known
    how many. Only prompts that are weighted by success are drawn by what is known a step before.
    Nothing is sampled ahead where `ahead` is False, as before an evaluation or a checkpoint, so
    that a resumed run draws by the same weights.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._flight: tuple[list[Draw], Future[list[Work]]] | None = None
        # An engine answers while this process computes. A policy that samples itself would compete
        # with its own update, and changes under it: it samples at once.
        self._thread = None
        if not self.team.draws_itself:
            self._thread = ThreadPoolExecutor(
                1, thread_name_prefix="ahead", initializer=lambda: _use(self.accelerator.device)
            )

    def next(self, state: RunState, *, ahead: bool = False) -> Scored:
        if self.refills:
            experience = super().next(state)
            if ahead:
                self._send(state.global_step)
            return experience
        first, place = self._first_round(state), self.prompts.place
        if ahead:
            self._send(state.global_step)
        experience = self._scored(first, state)
        self.place = {**self.prompts.state_dict(), **place}
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
            self.team.begin(step + 1)
            self.team.follow(self.samples_with, step)
            if self._thread is not None:
                self._flight = draws, self._thread.submit(lambda: [*self.team.draw(draws)])
                return
            done: Future[list[Work]] = Future()
            done.set_result([*self.team.draw(draws)])
            self._flight = draws, done

    def drop(self) -> None:
        """Let go of what is sampled ahead, and of its place in the prompts."""
        if self._flight is not None:
            self._flight[1].exception()  # wait: nothing may be in flight when weights change
            self._flight = None
            self.prompts.load_state_dict(self.place)


def _scored(
    work: Work,
    scores: Scores,
    metrics: Mapping[str, Any],
    spares: Mapping[str, Rollouts | None],
) -> Scored:
    return Scored(
        rollouts=work.judged,
        scores=scores,
        lessons=work.lessons(scores),
        metrics=metrics,
        spares=spares,
    )


def _use(device: torch.device) -> None:
    """A thread begins on the first GPU, whichever its process works on."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
