"""describe: batch sizes, prompts, memory and warnings of a configuration; loads no weights."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from groupwise.algorithm import Algorithm
from groupwise.building.build import build_parts
from groupwise.building.overlap import with_overlap
from groupwise.building.parts import SECONDS_OF_CHECKING, Parts, checked_rows
from groupwise.building.policies import check_teachers
from groupwise.cli.audits import audit_table
from groupwise.cli.memory import Sizes, estimate, excess, reward_sizes, size, teacher_sizes
from groupwise.cli.preview import preview
from groupwise.cli.stage import Stage
from groupwise.cli.trial import trial
from groupwise.config.learners import SOLE
from groupwise.config.load import LoadedConfig, idle_processes
from groupwise.config.train import TrainSection
from groupwise.evaluation import largest_error
from groupwise.kit.errors import UserError
from groupwise.kit.processes import shards as shards_of
from groupwise.plugins.resolved import resolve
from groupwise.policy import Policy
from groupwise.run.audits import audit_notes, audits
from groupwise.run.gold import gold_notes
from groupwise.sampler import TurnSampler

FEW = 20
"""With fewer evaluated prompts, an accuracy says little."""
ENGINE = "held while the sampler draws"


def describe(loaded: LoadedConfig, *, processes: int = 1) -> str:
    """Batch arithmetic, prompts, memory by purpose and warnings, as text in columns.

    Builds the parts of the run that need no weights. Raises the UserErrors that a run would raise.
    """
    resolved, notes = with_overlap(resolve(loaded))
    resolved.check()
    parts = build_parts(resolved)
    loaded, config = parts.loaded, parts.config
    kinds = {label: parts.plugin(label).target for label in config.learners}
    parts.check_policies(kinds)
    # Of a function that builds a policy, the class is unknown before it is called.
    policies: dict[str, type[Policy]] = {
        n: kind if isinstance(kind, type) else Policy for n, kind in kinds.items()
    }
    shards = shards_of(config.train.shard, processes)
    sizes: dict[str, Sizes] = {}
    rates: dict[str, float] = {}
    configs: dict[str, Any] = {}
    for label, policy in policies.items():
        settings = parts.plugin(label).settings
        parts.algorithms[label].check(settings)
        if policy is kinds[label]:
            parts.check_sampler_class(label, policy)
            _check_shard(policy, loaded)
        if settings is None:
            continue
        configs[label] = settings
        parts.check_tools(label, policy, settings)
        notes += policy.examine(settings, parts.rows() if label in parts.players.receivers else ())
        if parts.players.environment.multi_turn and issubclass(policy, TurnSampler):
            notes += policy.examine_turns(settings)
        notes += parts.algorithms[label].examine(settings)
        rates[label] = policy.least_rate(settings)
        sizes[label] = estimate(parts, label, policy, settings, processes=processes, shards=shards)
    check_teachers(parts)
    notes += [*gold_notes(parts), *few_notes(parts)]
    stage = Stage.of(parts, policies, configs)
    shown = [] if stage is None else [preview(stage), trial(stage)]
    audited = audits(parts)
    notes += audit_notes(parts, audited)
    shown += filter(None, [audit_table(audited)])
    taught = {label: teacher_sizes(parts, label, shards=shards) for label in policies}
    counts = parts.players.counts(
        evaluated=len(parts.held_out), greedy=any(policy.greedy for policy in policies.values())
    )
    idle = idle_processes(config, processes)
    held = reward_sizes(parts)
    largest, cpu = Counter[str](), Counter[str]()
    for each in (held, *sizes.values(), *taught.values()):
        largest.update(each.largest())
        cpu.update(each.cpu)
    texts = [
        _table("batch arithmetic", {name: f"{count:,}" for name, count in counts.items()}),
        _table("prompts", _prompts(parts)),
        *(
            _memory(sizes.get(label, Sizes()), parts, label, (shards, processes))
            for label in policies
        ),
        *(_of_teacher(sizes, label) for label, sizes in taught.items() if sizes),
        *_of_rewards(held),
        *filter(None, shown),
        *(f"note: {note}" for note in (*notes, *parts.notes)),
        *(
            f"warning: {text}"
            for text in (idle, *excess(largest, cpu), *warnings(loaded, parts.algorithms, rates))
            if text
        ),
    ]
    return "\n".join(texts)


def _check_shard(policy: type[Policy], loaded: LoadedConfig) -> None:
    if loaded.config.train.shard and policy.shard is Policy.shard:
        raise UserError(
            f"train.shard: {policy.__name__} cannot be sharded; leave train.shard out, then every "
            f"process holds all of its weights"
        )


def _prompts(parts: Parts) -> dict[str, str]:
    """How many rows there are, and how many of them are held out."""
    source, prompts = parts.prompts.source, parts.evaluation_prompts
    started, counted, held = time.monotonic(), 0, list[str]()
    for row in islice(prompts.rows(), checked_rows(prompts.source)):
        counted += 1
        question, is_held = prompts.side(row)
        held += [question] if is_held else []
        if time.monotonic() - started > SECONDS_OF_CHECKING:  # sources with pictures may be slow
            break
    of = "" if counted == len(prompts.source) else f" of the first {counted:,}"
    return {
        "rows": f"{len(source):,}",
        **{f"  of {n}": f"{len(rows):,}" for n, rows in getattr(source, "sources", {}).items()},
        "held out": f"{len(held):,}{of}",
        "different questions held out": f"{len(set(held)):,}{of}",
        "evaluated": f"{len(parts.held_out):,}",
    }


def few_notes(parts: Parts) -> list[str]:
    """A note on what so few evaluated prompts can tell."""
    count, share = len(parts.held_out), parts.config.prompts.held_out
    evaluation = parts.config.evaluation
    if not count and evaluation.count and evaluation.source is None and share:
        rows = f"{len(parts.prompts.source):,} rows"
        return [f"prompts.held_out: {share:g} keeps none of {rows}: nothing is evaluated; raise it"]
    if not 0 < count < FEW:
        return []
    only = "1 prompt is" if count == 1 else f"only {count} prompts are"
    error = f"the standard error of an accuracy is up to {largest_error(count):.2f} then"
    return [f"{only} evaluated: {error}; raise prompts.held_out for more"]


def warnings(
    loaded: LoadedConfig, algorithms: Mapping[str, Algorithm], least_rates: Mapping[str, float]
) -> Iterator[str]:
    """Settings that are allowed but seldom intended; algorithms and the least learning rates: by
    label of the learner."""
    config = loaded.config
    for label, learning in config.learners.items():
        prefix = "" if label == SOLE else f"{label}: "
        if learning.learns:
            of_learner = _warnings_of(
                learning.train, algorithms[label], least_rates.get(label, 0.0)
            )
            yield from (prefix + each for each in of_learner)
    train, prompts, evaluation = config.train, config.prompts, config.evaluation
    if train.ahead and config.sampler is None:
        yield (
            f"ahead {train.ahead} without a sampler: the policy samples before the update, which "
            f"saves no time"
        )
    if evaluation.count and evaluation.source is None and prompts.held_out == 0:
        yield "held_out 0 without an evaluation.source: there is nothing to evaluate on"
    if config.watch and not evaluation.count:
        yield "watch without evaluation.prompts: nothing is measured"
    elif config.watch and not evaluation.every:
        yield "watch without evaluation.every: an alarm can come only when training has ended"


def _warnings_of(train: TrainSection, algorithm: Algorithm, least_rate: float) -> Iterator[str]:
    """The warnings about one learner."""
    if algorithm.smallest_group > 1 and train.group_size < 4:
        yield f"group_size {train.group_size}: advantages of so few completions are mostly noise"
    if train.microbatch < train.group_size:
        yield (
            f"microbatch {train.microbatch}: counts decisions, not rollouts; such a small value "
            f"makes many passes"
        )
    if train.steps and train.warmup_steps >= train.steps:
        yield f"warmup_steps {train.warmup_steps}: the learning rate never reaches its value"
    if train.learning_rate == 0:
        yield "learning_rate 0: nothing will be learned"
    elif train.learning_rate < least_rate:
        yield (
            f"learning_rate {train.learning_rate:g}: low for the adapters of this policy, which "
            f"usually take {least_rate:g} or more"
        )
    if algorithm.reference:
        copied = " a copy" if algorithm.moves_reference else ", without adapters, a copy"
        yield (
            f"the algorithm uses a reference: one more pass over every rollout and{copied} of the "
            f"trained weights"
        )
    for name, read in algorithm.copies.items():
        passes = ": one more pass over every rollout" if read else ""
        yield f"the algorithm keeps a copy of the trained weights, {name!r}{passes}"


def _memory(sizes: Sizes, parts: Parts, label: str, shards: tuple[int, int]) -> str:
    """The memory of a policy on one process, by purpose, and the largest sum at one time.

    shards: number of processes that divide the weights, and of all processes.
    """
    learning = parts.config.learners[label]
    title = "memory" if label == SOLE else f"memory of {label}"
    if not sizes:
        return f"{title}\n  policy {learning.policy.name!r} makes no estimate\n"
    count, processes = shards
    if count > 1:
        divided = "among which" if count == processes else f"among each {count} of which"
        title += f" of each of {processes} processes, {divided} weights are divided"
    held = {} if learning.sampler is None else {ENGINE: sum(sizes.sampling.values())}
    device = _sizes(sizes.all(), held | {"at most at once": sum(sizes.largest().values())})
    table = _table(
        f"{title}, estimated for micro-batches of at most {learning.train.microbatch:,} decisions",
        device,
    )
    if not sizes.cpu:
        return table
    label = "" if label == SOLE else f" of {label}"
    cpu = _sizes(sizes.cpu, {"together": sum(sizes.cpu.values())})
    return f"{table}\n{_table(f'CPU memory{label} of each process in addition, estimated', cpu)}"


def _of_teacher(sizes: Sizes, label: str) -> str:
    """The memory of a learner's teacher on one process, held during the whole run."""
    title = "memory of the teacher" if label == SOLE else f"memory of the teacher of {label}"
    total = sum(sizes.updating.values())
    return _table(f"{title} in addition, estimated", _sizes(sizes.updating, {"together": total}))


def _of_rewards(sizes: Sizes) -> Iterator[str]:
    """The memory of the models of rewards on one process, held during the whole run."""
    if sizes:
        yield _table("memory of rewards in addition, estimated", _sizes(sizes.all(), {}))
    if sizes.cpu:
        yield _table("CPU memory of rewards in addition, estimated", _sizes(sizes.cpu, {}))


def _sizes(sizes: Mapping[str, int], sums: Mapping[str, int]) -> dict[str, str]:
    """The lines of a table of memory."""
    return {purpose: size(each) for purpose, each in {**sizes, **sums}.items()}


def _table(title: str, rows: Mapping[str, str]) -> str:
    names, values = max(map(len, rows)), max(map(len, rows.values()))
    lines = [f"  {name:<{names}}  {value:>{values}}" for name, value in rows.items()]
    return "\n".join([title, *lines, ""])
