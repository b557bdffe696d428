"""EpisodeSampler: plays the episodes of a run's environment, with its policies as players."""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack

from groupwise import processes, progress, terminal
from groupwise.config.environment import TURN_DEADLINE
from groupwise.environment import Environment
from groupwise.prompts.draws import Draw
from groupwise.prompts.seeds import seed_for
from groupwise.sampler import Purpose, TurnSampler
from groupwise.training.assembly import Assembly
from groupwise.training.calls import Episode, Request
from groupwise.training.endings import ENDED
from groupwise.training.episodes import Episodes
from groupwise.training.loop_thread import BlockedError, CoroutineOverdue, LoopThread
from groupwise.training.places import Places
from groupwise.training.player_sampler import PlayerSampler
from groupwise.training.playing import Playing
from groupwise.training.sampling import Sampling

CLOSING = 30.0
"""Seconds that `Environment.close` may take."""


class EpisodeSampler:
    """Samples episodes, in training and in evaluations.

    All processes must call its methods in the same order.

    samplings: by label, that of each player; sizes: by label, `train.group_size`: of the first
    player of a cast, the number of episodes of a prompt, of others the number of completions of
    `Player.group`; deadline: seconds that the environment may take between two completions of an
    episode.
    """

    def __init__(
        self,
        environment: Environment,
        samplings: Mapping[str, Sampling],
        sizes: Mapping[str, int],
        *,
        deadline: float = TURN_DEADLINE,
    ) -> None:
        self.environment, self.samplings, self.sizes = environment, samplings, sizes
        self.deadline = deadline
        self.labels = [*samplings]
        self.casts = environment.casts(self.labels)
        self.columns = [n for n in environment.columns(self.labels) if n != ENDED]
        self.logged_columns = environment.logged(self.labels)
        self.shown_columns = environment.shown(self.labels)
        self.judged = environment.judged(self.labels)
        self._thread = LoopThread(deadline=deadline, place=Places(environment).runs)

    def begin(self, step: int) -> None:
        for sampling in self.samplings.values():
            sampling.policy.begin(step)

    def follow(self, weights: Mapping[str, str | None], version: int) -> None:
        """Make each sampler follow the kept weights of that name, or the current ones if None."""
        for label, sampling in self.samplings.items():
            sampling.follow(weights.get(label), version)

    def forget(self) -> None:
        """Weights were loaded, so samplers must follow them again."""
        for sampling in self.samplings.values():
            sampling.forget()

    def share(self, draws: Sequence[Draw]) -> Sequence[Draw]:
        """This process's share of the draws."""
        return next(iter(self.samplings.values())).share(draws)

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
        return any(self.samplings[label].greedy for label in self.casts[cast])

    # ---- training, evaluation

    def expect(self, episodes: int) -> None:
        """Show that so many more episodes will be played."""
        progress.expect(self._counted, episodes)

    @property
    def _counted(self) -> str:
        return "episodes" if self.environment.multi_turn else "completions"

    def draw(self, draws: Sequence[Draw]) -> Iterator[Episodes]:
        """Episodes to train on, for this process's share of the draws.

        A process without a share plays those of the first draw, which are dropped later:
        collectives of a sharded policy need every process.
        """
        ours = self.share(draws) or draws[:1]
        sizes = {cast: self.sizes[labels[0]] for cast, labels in self.casts.items()}
        self.expect(len(ours) * sum(sizes.values()))
        yield from self._play(
            ours, sizes, self.sizes, space="train", purpose="train", dummy=draws[0]
        )

    def evaluate(
        self, cast: str, draws: Sequence[Draw], size: int, purpose: Purpose, *, space: str
    ) -> Iterator[Episodes]:
        """`size` episodes of one cast for each draw of this process's share; space: of the seeds.

        Several players play a part of the draws at a time, so that memory does not grow with their
        number.
        """
        ours, labels = self.share(draws), self.casts[cast]
        most = processes.largest(len(ours))
        batch = min(self.samplings[label].batch for label in labels)
        each = most if len(labels) == 1 else max(1, batch // size)
        groups = dict.fromkeys(labels, 1)
        for start in range(0, most, max(1, each)):
            part = ours[start : start + each]
            yield from self._play(
                part, {cast: size}, groups, space=space, purpose=purpose, dummy=draws[0]
            )

    def _play(
        self,
        draws: Sequence[Draw],
        sizes: Mapping[str, int],
        groups: Mapping[str, int],
        *,
        space: str,
        purpose: Purpose,
        dummy: Draw,
    ) -> Iterator[Episodes]:
        """Play all episodes of these draws.

        sizes: by cast, the episodes of a draw; groups: by label, for `Player.group`; dummy: a draw
        that is sampled and dropped where other processes of a sharded policy have more prompts.
        """
        labels = [label for label in self.labels if any(label in self.casts[c] for c in sizes)]
        episodes = self._episodes(draws, sizes, space)
        samplings = {label: self.samplings[label] for label in labels}
        assembly = Assembly(
            self.environment,
            episodes,
            samplings,
            columns=self.columns,
            trained=purpose == "train",
            compared=len(sizes) > 1,
        )
        samplers = {
            label: PlayerSampler(
                sampling,
                assembly,
                group_size=groups[label],
                space=f"{space}/{label}" if len(labels) > 1 else space,
                purpose=purpose,
                dummy=dummy.row,
                multi_turn=self.environment.multi_turn,
            )
            for label, sampling in samplings.items()
        }
        playing = Playing(self.environment, episodes, samplers, deadline=self.deadline)
        is_collective = any(own.is_collective for own in samplers.values())
        with ExitStack() as stack:
            for own in samplers.values():
                stack.enter_context(own.session())
            stack.callback(self._stop, playing)
            self._thread.run(playing.begin())
            waiting = yield from self._finished(playing, assembly)
            while processes.any_process(bool(waiting)) if is_collective else waiting:
                for label in labels:
                    due = [request for request in waiting if request.label == label]
                    waiting = [request for request in waiting if request.label != label]
                    for answered in samplers[label].sample(due):
                        self._thread.run(playing.resume(answered))
                        waiting += yield from self._finished(playing, assembly)

    def _stop(self, playing: Playing) -> None:
        """End what still goes on of these episodes, unless `close` has.

        After an error the frame of `_play` may live as long as the program. No thread can be begun
        when it ends then, so a loop that is closed is not opened again.
        """
        if self._thread.is_open:
            self._thread.run(playing.stop())

    def _finished(
        self, playing: Playing, assembly: Assembly
    ) -> Generator[Episodes, None, list[Request]]:
        """Yields the episodes that are over until all others wait; returns their requests."""
        requests = None
        while requests is None:
            requests = self._thread.run(playing.waiting())
            for finished in assembly.finished():
                progress.count(self._counted, finished.count)
                yield finished
        return [*requests]

    def _episodes(
        self, draws: Sequence[Draw], sizes: Mapping[str, int], space: str
    ) -> list[Episode]:
        """The episodes of all draws, those of a draw adjacent."""
        run_seed = next(iter(self.samplings.values())).seed
        members = [(cast, index) for cast, size in sizes.items() for index in range(size)]
        return [
            Episode(
                draw=draw,
                place=place * len(members) + number,
                index=index,
                size=sizes[cast],
                cast=self.casts[cast],
                # 31 bits, which every generator and protocol takes.
                seed=seed_for(run_seed, f"{space} environment", draw.number, 0) >> 32,
            )
            for place, draw in enumerate(draws)
            for number, (cast, index) in enumerate(members)
        ]
