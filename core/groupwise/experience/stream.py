"""Stream: groups in flight, of which each step takes the first complete ones."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object

from groupwise.config.train import TrainSection
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.experience.credit import credit
from groupwise.experience.flight import Flight
from groupwise.experience.ledger import Draw, Ledger
from groupwise.experience.part import Part
from groupwise.experience.step import Step
from groupwise.experience.stored import decode, encode
from groupwise.metrics.clock import Clock
from groupwise.prompts.draws import Prompts
from groupwise.record import Group
from groupwise.record.gather import judged, write_scores
from groupwise.rewards import RewardError, RunState, Scores
from groupwise.scoring.scorer import Scorer


class Stream:
    """Draws groups up to `train.ahead` steps before they are trained, and scores them.

    At most (ahead + 1) x groups_per_step draws are begun and not trained, so with 0 a step draws
    its own groups with the latest weights. An engine draws beside the updates; a policy that
    samples for itself, whose weights an update changes, draws in `take`.

    An engine that follows in flight gets the weights of each step, and what it draws goes on with
    them. Another one follows when nothing is being drawn; until then no draw is begun, and steps
    take what is complete.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        prompts: Prompts,
        scorer: Scorer,
        *,
        samples_with: Mapping[str, str | None],
        settings: TrainSection,
        accelerator: Accelerator,
        clock: Clock,
    ) -> None:
        self.sampler, self.prompts, self.scorer = sampler, prompts, scorer
        self.samples_with, self.settings = samples_with, settings
        self.accelerator, self.clock = accelerator, clock
        self.ahead, self.ledger = settings.ahead or 0, Ledger()
        # By the number of the draw: the prompt, on all processes, and what this one has of it.
        self._drawn: dict[int, Group] = {}
        self._parts: dict[int, Part] = {}
        # Draws of an earlier run, to be begun anew; for checkpoints: the complete parts, and what
        # was open at the end of the last step.
        self._anew: list[Group] = []
        self._stored: list[dict[str, Any]] = []
        self._open: list[Draw] = []
        self._flight: Flight | None = None
        self._is_beside = self.ahead > 0 and not sampler.policies_sample

    # ---- a step's groups

    def take(self, count: int, state: RunState) -> tuple[list[Draw], Step]:
        """The draws of a step, and those of their groups that this process has, scored."""
        self._begin(state)
        while not self.ledger.has(count):
            self._collect(wait=True)
            self._begin(state)
        draws = self.ledger.take(count)
        return draws, self._scored(draws, state)

    def settle(self) -> None:
        """Wait for all that is being drawn."""
        while not self.ledger.is_idle:
            self._collect(wait=True)

    def make_way(self, weights: Mapping[str, str | None]) -> None:
        """Before samplers follow the weights kept under these names for something else: wait for
        what is being drawn, unless it may be drawn on with them."""
        names = ((self.samples_with.get(n), weights.get(n)) for n in self.sampler.labels)
        if not (self.sampler.follows_in_flight and all(own == other for own, other in names)):
            self.settle()

    def end_step(self) -> None:
        """What the last step took is trained."""
        self.ledger.trained()
        self._open = self.ledger.untrained
        numbers = [draw.number for draw in self._open]
        self._drawn = {number: self._drawn[number] for number in numbers}
        self._parts = {number: self._parts[number] for number in numbers if number in self._parts}

    def close(self) -> None:
        """Drop all that is in flight."""
        if self._flight is not None:
            self._flight.close()
        self._flight, self.ledger = None, Ledger()
        self._drawn, self._parts, self._anew, self._open = {}, {}, [], []

    # ---- checkpoints

    def store(self) -> None:
        """Make what a checkpoint holds of complete groups: their completions and scores. A
        collective.

        A seeded sampler is waited for, so that a resumed run equals one that was not interrupted.
        """
        if self.sampler.is_seeded:
            self.settle()
        parts = dict.fromkeys(self._parts.values())
        stored = [self._encoded(part, self._scores(part)) for part in parts]
        self._stored = gather_object([part for part in stored if part is not None])

    def _left(self, part: Part) -> list[Group]:
        return [group for group in part.groups if self._parts.get(group.number) is part]

    def _scores(self, part: Part) -> Scores | None:
        """Of what is left of a part; None if it is to be scored anew: in the step that takes it, or
        since step rewards are summed with the weights of a step."""
        if part.is_scored:
            with suppress(RewardError):  # raised where it is taken
                scores = part.of([g.number for g in self._left(part)], self.scorer, 0)
                return scores if scores.steps is None else None
        return None

    def _encoded(self, part: Part, scores: Scores | None) -> dict[str, Any] | None:
        """What is left of a part; None if it cannot be stored."""
        groups = self._left(part)
        with suppress(ValueError):
            numbers = [group.number for group in groups]
            return {"numbers": numbers, **encode(groups, scores, self.sampler.labels)}
        return None

    def in_flight(self) -> dict[str, Any]:
        """The draws that were not trained at the end of the last step, and their complete groups:
        as `store` made them, else as they are here, without scores. Others are drawn anew when the
        run is resumed."""
        names = "index", "source", "number_in_source"
        draws = [
            {**vars(draw), **{name: getattr(self._drawn[draw.number], name) for name in names}}
            for draw in self._open
        ]
        known = {draw.number for draw in self._open}
        parts = [part for part in self._stored if known.issuperset(part["numbers"])]
        stored = {number for part in parts for number in part["numbers"]}
        left = [self._parts[n] for n in sorted(known - stored) if n in self._parts]
        others = (self._encoded(part, None) for part in dict.fromkeys(left))
        parts += [each for each in others if each and known.issuperset(each["numbers"])]
        return {"draws": draws, "parts": parts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the draws of an earlier run."""
        versions = {draw["number"]: draw["version"] for draw in state["draws"]}
        names = "number", "index", "source", "number_in_source"
        drawn = {d["number"]: self.prompts.again(*(d[n] for n in names)) for d in state["draws"]}
        parts = state["parts"] if self.ahead else []
        stored = sorted(number for part in parts for number in part["numbers"])
        self._anew = [group for number, group in drawn.items() if number not in stored]
        self._drawn = {number: drawn[number] for number in stored}
        complete = [Draw(number, versions[number], is_complete=True) for number in stored]
        anew = [group.number for group in self._anew]
        self.ledger.restore(complete, anew=anew, newest=self.prompts.drawn - 1)
        self._open = self.ledger.untrained
        for part in self.sampler.share(parts):
            groups, scores = decode(part, drawn, self.accelerator.device)
            own = Part(groups, scores=scores)
            self._parts |= dict.fromkeys([group.number for group in groups], own)

    # ---- drawing

    def _begin(self, state: RunState) -> None:
        """Begin as many draws as there is room for, with the present weights, if the sampler can
        follow them now; what is in flight goes on with them."""
        self._collect(wait=False)
        steps = min(self.ahead + 1, max(1, state.max_steps - state.global_step))
        room = max(0, steps * self.settings.groups_per_step - len(self.ledger))
        weights, step = self.samples_with, state.global_step
        if not self._is_due(room, weights, step):
            return
        drawn, self._anew = self._anew[:room], self._anew[room:]
        drawn += self.prompts.take(room - len(drawn))
        self._drawn |= {group.number: group for group in drawn}
        self.ledger.begin([group.number for group in drawn], step)
        with self.clock.time("sample"):
            self.sampler.begin(step)
            self.sampler.follow(weights, step)
        size = self.settings.groups_per_step
        for start in range(0, room, size):
            groups = drawn[start : start + size]
            if self._is_beside:
                self._beside.begin(self.sampler.share(groups), partial(self._part, state=state))
            else:
                self._draw(groups, state)

    def _is_due(self, room: int, weights: Mapping[str, str | None], step: int) -> bool:
        """Whether something can be drawn with these weights now: so many draws, or the rest of
        those in flight."""
        if self.ledger.is_idle or self.sampler.follows(weights, step):
            return room > 0
        return self.sampler.follows_in_flight

    def _draw(self, drawn: Sequence[Group], state: RunState) -> None:
        """Draw this process's share of these groups now.

        Plain rewards are called before the next part is sampled, so that the facts' tensors of one
        part at a time are on the device. A process without a share drops what it may draw.
        """
        parts = self.sampler.draw(drawn)
        is_share = bool(self.sampler.share(drawn))
        while True:
            with self.clock.time("sample"):
                groups = next(parts, None)
            if groups is None:
                break
            if not is_share:
                continue
            with self.clock.time("reward"):
                part = self._part(groups, state)
                if part.scoring is not None:
                    part.scoring.call()
            self._parts |= dict.fromkeys([group.number for group in groups], part)
        self.ledger.complete([group.number for group in drawn])

    @property
    def _beside(self) -> Flight:
        if self._flight is None:
            self._flight = Flight(
                partial(self.sampler.draw, shared=False),
                threads=self.sampler.groups_at_once,
                device=self.accelerator.device,
            )
        return self._flight

    def _collect(self, *, wait: bool) -> None:
        """Note which draws are complete, on any process."""
        if self._flight is None:
            return
        with self.clock.time("sample"):
            parts = self._flight.over(wait=wait)
            for part in parts:
                self._parts |= dict.fromkeys([group.number for group in part.groups], part)
            numbers = [group.number for part in parts for group in part.groups]
            self.ledger.complete(gather_object(numbers))

    # ---- scoring

    @property
    def _scores_early(self) -> bool:
        """Whether groups are scored as soon as they are complete, before the step that takes them.

        Not by rewards that learn or have a state: they score by what they are in that step. Beside
        the run only where a reward works beside it, too.
        """
        if self.ahead and self.scorer.changes:
            return False
        return not self._is_beside or self.scorer.works_beside

    def _part(self, groups: Sequence[Group], state: RunState) -> Part:
        """Complete groups, with scoring begun unless it waits for the step that takes them."""
        if self._scores_early:
            return self._begun(groups, state)
        for call in (call for group in groups for call in group.judged):
            call.rollout.move_facts()
        return Part(groups)

    def _begun(self, groups: Sequence[Group], state: RunState) -> Part:
        calls = [call for group in groups for call in group.judged]
        scoring = self.scorer.start(judged(calls, self.sampler.columns), state)
        self.sampler.move_facts(groups, scoring.rollouts)
        return Part(groups, scoring)

    def _scored(self, draws: Sequence[Draw], state: RunState) -> Step:
        """These groups, as far as this process has them, with scores; waits for the rewards."""
        taken = {draw.number for draw in draws}
        own = [self._parts[draw.number] for draw in draws if draw.number in self._parts]
        parts = self._all_begun([*dict.fromkeys(own)], taken, state)
        groups = [group for part in parts for group in part.groups if group.number in taken]
        with self.clock.time("reward"):
            for part in parts:
                if part.scoring is not None:
                    part.scoring.call()
            scores = [part.take(taken, self.scorer, state.global_step) for part in parts]
            step = Step(groups=groups, scores=self._joined(scores, state), sampler=self.sampler)
        write_scores(step.scores, [call.rollout for call in step.judged])
        credit(step.groups, step.scores, self.sampler.refused)
        return step

    def _all_begun(self, parts: Sequence[Part], taken: set[int], state: RunState) -> list[Part]:
        """The same parts; those whose scoring waited for this step are scored together, by
        `train.sample_batch` rollouts at a time."""
        waiting = [g for part in parts if not part.is_scored for g in part.groups]
        waiting = [group for group in waiting if group.number in taken]
        each = max(1, self.settings.sample_batch // self.settings.group_size)
        with self.clock.time("reward"):
            begun = [
                self._begun(waiting[start : start + each], state)
                for start in range(0, len(waiting), each)
            ]
        return [part for part in parts if part.is_scored] + begun

    def _joined(self, scores: Sequence[Scores], state: RunState) -> Scores:
        """One batch of all; a process without any knows what rewards judge from the others."""
        judging = [s.judges_steps for s in scores]
        if self.accelerator.num_processes > 1:
            judging = gather_object(judging)
        if scores:
            return Scores.concat(scores)
        nothing = self.scorer(judged([], self.sampler.columns), state)
        return replace(nothing, judges_steps=frozenset[str]().union(*judging))
