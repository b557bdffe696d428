"""EpisodeSampler: plays the episodes of a run's environment, with its policies as players."""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from groupwise.config.environment import TURN_DEADLINE
from groupwise.environment import ENDED, Environment
from groupwise.episodes.assembly import Assembly
from groupwise.episodes.loop_thread import BlockedError, CoroutineOverdue, LoopThread
from groupwise.episodes.places import Places
from groupwise.episodes.player_sampler import PlayerSampler
from groupwise.episodes.playing import Playing
from groupwise.episodes.sampling import Sampling
from groupwise.kit import processes, progress, terminal
from groupwise.record import Call, Episode, Group
from groupwise.record.seeds import seed_for
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose, TurnSampler

T = TypeVar("T")
CLOSING = 30.0
"""Seconds that `Environment.close` may take."""


class EpisodeSampler:
    """Samples episodes, in training and in evaluations.

    All processes must call its methods in the same order.

    samplings: by label, that of each player; sizes: by label, `train.group_size`: of the first
    player of a cast, the number of episodes of a prompt, of others the number of completions of
    `Player.group`; deadline: seconds that the environment may take between two completions of an
    episode; at_once: how many episodes are played at a time, all if unset.
    """

    def __init__(
        self,
        environment: Environment,
        samplings: Mapping[str, Sampling],
        sizes: Mapping[str, int],
        *,
        deadline: float = TURN_DEADLINE,
        at_once: int | None = None,
    ) -> None:
        self.environment, self.samplings, self.sizes = environment, samplings, sizes
        self.deadline, self.at_once = deadline, at_once
        self.labels = [*samplings]
        self.casts = environment.casts(self.labels)
        self.columns = [n for n in environment.columns(self.labels) if n != ENDED]
        self.logged_columns = environment.logged(self.labels)
        self.shown_columns = environment.shown(self.labels)
        self.judged = environment.judged(self.labels)
        self.receivers = environment.receivers(self.labels)
        # Not by what is sampled, since parts, rounds and processes must have the same form.
        self.plain = environment.one_call and len(self.labels) == 1
        self._warned: set[str] = set()
        self._thread = LoopThread(deadline=deadline, place=Places(environment).runs)

    def begin(self, step: int) -> None:
        for sampling in self.samplings.values():
            sampling.policy.begin(step)

    def follow(self, weights: Mapping[str, str | None], version: int) -> None:
        """Make each sampler follow the kept weights of that name, or the current ones if None."""
        for label, sampling in self.samplings.items():
            sampling.follow(weights.get(label), version)

    def follows(self, weights: Mapping[str, str | None], version: int) -> bool:
        """Whether each sampler follows these weights already."""
        return all(s.follows(weights.get(label), version) for label, s in self.samplings.items())

    @property
    def follows_in_flight(self) -> bool:
        """Whether every sampler may follow other weights while it draws."""
        return all(sampling.sampler.follows_in_flight for sampling in self.samplings.values())

    @property
    def is_seeded(self) -> bool:
        """Whether a sample depends on its seed and the weights alone."""
        return all(sampling.sampler.seeded for sampling in self.samplings.values())

    def forget(self) -> None:
        """Weights were loaded, so samplers must follow them again."""
        for sampling in self.samplings.values():
            sampling.forget()

    def share(self, groups: Sequence[T]) -> Sequence[T]:
        """This process's share of the groups."""
        return next(iter(self.samplings.values())).share(groups)

    def close(self) -> str | None:
        """Close the environment, and end the thread in which episodes are played; what went wrong,
        which is shown, too, since the run is over."""
        problem = None
        try:
            self._thread.run(self.environment.close(), within=CLOSING)
        except BlockedError:
            pass  # the run says so
        except CoroutineOverdue:
            problem = f"`close` did not end within {CLOSING:g} s"
        except Exception as error:
            problem = f"`close` raised {type(error).__name__}: {error}"
        self._thread.close()
        if problem is not None:
            terminal.say(f"warning: environment: {problem}; what it has opened may still be open")
        return problem

    @property
    def notes(self) -> Sequence[str]:
        """What the run should say of its players' turns."""
        if not self.environment.multi_turn:
            return ()
        samplers = [sampling.sampler for sampling in self.samplings.values()]
        notes_of_each = [s.turn_notes() for s in samplers if isinstance(s, TurnSampler)]
        return [*dict.fromkeys(note for notes in notes_of_each for note in notes)]

    @property
    def policies_sample(self) -> bool:
        """Whether every policy is its own sampler, so that none can sample during an update."""
        return all(s.sampler is s.policy for s in self.samplings.values())

    @property
    def logged(self) -> Collection[str]:
        """Facts of the judged rollouts whose means are metrics."""
        return frozenset().union(*(s.policy.logged for s in self.samplings.values()))

    def greedy(self, cast: str) -> bool:
        """Whether a player of this cast has a greedy mode."""
        return any(self.samplings[label].policy.greedy for label in self.casts[cast])

    @property
    def refused(self) -> Mapping[str, float]:
        """By label, the value of each reward for replies that another player refused."""
        return {label: self.environment.refused(label) for label in self.labels}

    def move_facts(self, groups: Sequence[Group], batch: Rollouts) -> None:
        """Take the facts of finished groups from the batch of judged rollouts, which has them in
        CPU memory; of rollouts that are not judged only those that are logged stay."""
        judged, facts = [call.rollout for group in groups for call in group.judged], batch.facts
        for row, rollout in enumerate(judged):
            own = rollout.facts
            rollout.facts = {n: facts[n][row] if n in facts else x for n, x in own.items()}
            rollout.move_facts()
        episodes = (episode for group in groups for episode in group.episodes)
        for rollout in {each for episode in episodes for each in episode.rollouts} - {*judged}:
            logged = sorted(self.samplings[rollout.label].policy.logged & rollout.facts.keys())
            rollout.facts = {name: float(rollout.facts[name]) for name in logged}

    # ---- training, evaluation

    def expect(self, episodes: int) -> None:
        """Show that so many more episodes will be played."""
        progress.expect(self._counted, episodes)

    @property
    def groups_at_once(self) -> int:
        """How many groups can be drawn at a time, each by a call of `draw`."""
        most = min(s.sampler.concurrency for s in self.samplings.values())
        if self.at_once is None:
            return most
        return max(1, min(most, self.at_once // sum(self._episodes.values())))

    @property
    def _episodes(self) -> Mapping[str, int]:
        """By cast, the episodes of a group."""
        return {cast: self.sizes[labels[0]] for cast, labels in self.casts.items()}

    @property
    def _counted(self) -> str:
        return "episodes" if self.environment.multi_turn else "completions"

    def draw(self, groups: Sequence[Group], *, shared: bool = True) -> Iterator[Sequence[Group]]:
        """Play episodes to train on; yields groups of which all are over.

        shared: only this process's share of the groups, while all others draw theirs. One without a
        share plays those of the first group, to be dropped, where sampling needs every process.
        """
        every = any(s.needs_every_process for s in self.samplings.values())
        ours = (self.share(groups) or groups[:every]) if shared else groups
        sizes = self._episodes
        self.expect(len(ours) * sum(sizes.values()))
        yield from self._play(
            ours,
            sizes,
            self.sizes,
            space="train",
            purpose="train",
            dummy=groups[0],
            together=shared,
        )

    def evaluate(
        self, cast: str, groups: Sequence[Group], size: int, purpose: Purpose, *, space: str
    ) -> Iterator[Sequence[Group]]:
        """Play `size` episodes of one cast for each group of this process's share; yields groups,
        with these episodes alone. space: of the seeds.

        Several players play a part of the groups at a time, so that memory does not grow with their
        number.
        """
        ours, labels = self.share(groups), self.casts[cast]
        most = processes.largest(len(ours))
        batch = min(self.samplings[label].batch for label in labels)
        each = most if len(labels) == 1 else max(1, batch // size)
        candidates = dict.fromkeys(labels, 1)
        for start in range(0, most, max(1, each)):
            part = ours[start : start + each]
            yield from self._play(
                part, {cast: size}, candidates, space=space, purpose=purpose, dummy=groups[0]
            )

    def _play(
        self,
        groups: Sequence[Group],
        sizes: Mapping[str, int],
        candidates: Mapping[str, int],
        *,
        space: str,
        purpose: Purpose,
        dummy: Group,
        together: bool = True,
    ) -> Iterator[Sequence[Group]]:
        """Play all episodes of these groups; yields the next ones that are over, in their order.

        sizes: by cast, the episodes of a group; candidates: by label, for `Player.group`; dummy: a
        group whose row is sampled and dropped where other processes of a sharded policy have more
        prompts; together: whether all processes play at the same time.
        """
        labels = [label for label in self.labels if any(label in self.casts[c] for c in sizes)]
        groups = self._with_episodes(groups, sizes, space)
        episodes = [episode for group in groups for episode in group.episodes]
        samplings = {label: self.samplings[label] for label in labels}
        trained = purpose == "train"
        assembly = Assembly(self.environment, samplings, trained=trained, compared=len(sizes) > 1)
        samplers = {
            label: PlayerSampler(
                sampling,
                group_size=candidates[label],
                space=f"{space}/{label}" if len(labels) > 1 else space,
                purpose=purpose,
                dummy=dummy.row,
                multi_turn=self.environment.multi_turn,
                together=together,
            )
            for label, sampling in samplings.items()
        }
        playing = Playing(
            self.environment,
            episodes,
            samplers,
            deadline=self.deadline,
            at_once=self.at_once,
            warned=self._warned,
        )
        is_collective = any(own.is_collective for own in samplers.values())
        left = [*groups]
        with ExitStack() as stack:
            for own in samplers.values():
                stack.enter_context(own.session())
            stack.callback(self._stop, playing)
            self._thread.run(playing.begin())
            waiting = yield from self._finished(playing, assembly, left)
            while processes.any_process(bool(waiting)) if is_collective else waiting:
                for label in labels:
                    due = [request for request in waiting if request[0].label == label]
                    waiting = [request for request in waiting if request[0].label != label]
                    for answered in samplers[label].sample(due):
                        self._thread.run(playing.resume(answered))
                        waiting += yield from self._finished(playing, assembly, left)
                        for call in (call for request in answered for call in request):
                            call.rollout.move_facts()  # it may wait for further calls

    def _stop(self, playing: Playing) -> None:
        """End what still goes on of these episodes, unless `close` has.

        After an error the frame of `_play` may live as long as the program. No thread can be begun
        when it ends then, so a loop that is closed is not opened again.
        """
        if self._thread.is_open:
            self._thread.run(playing.stop())

    def _finished(
        self, playing: Playing, assembly: Assembly, left: list[Group]
    ) -> Generator[Sequence[Group], None, list[Sequence[Call]]]:
        """Yields the next groups whose episodes are over, until all others wait; returns their
        requests. left: groups that are not over, from which those that are yielded are taken."""
        requests = None
        while requests is None:
            requests = self._thread.run(playing.waiting())
            if over := [*takewhile(lambda group: group.over, left)]:
                del left[: len(over)]
                assembly.finish(over)
                progress.count(self._counted, sum(len(group.episodes) for group in over))
                yield over
        return [*requests]

    def _with_episodes(
        self, groups: Sequence[Group], sizes: Mapping[str, int], space: str
    ) -> list[Group]:
        """These groups with new episodes."""
        run_seed = next(iter(self.samplings.values())).seed
        members = [(cast, index) for cast, size in sizes.items() for index in range(size)]
        begun = [replace(group, episodes=[]) for group in groups]
        for place, group in enumerate(begun):
            own = f"{space}{group.seed_space} environment"
            group.episodes += [
                Episode(
                    group=group,
                    place=place * len(members) + number,
                    index=index,
                    size=sizes[cast],
                    cast=self.casts[cast],
                    # 31 bits, which every generator and protocol takes.
                    seed=seed_for(run_seed, own, group.seed_number, 0) >> 32,
                    receivers=self.receivers,
                    compared=len(sizes) > 1,
                    plain=self.plain,
                )
                for number, (cast, index) in enumerate(members)
            ]
        return begun
