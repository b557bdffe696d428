"""describe: what a configuration will do and what it will take, before any weights are loaded."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from groupwise.config.load import LoadedConfig, derive, idle_processes
from groupwise.plugins.build import check_options
from groupwise.run.parts import Parts, build_parts, check_sections, looked_at


def describe(loaded: LoadedConfig, *, processes: int = 1) -> str:
    """Batch arithmetic, prompts, memory by purpose and warnings, as text in columns.

    Builds all that a run would, but for what loads weights. Raises UserError for what a run would
    refuse.
    """
    policy = check_sections(loaded, {})["policy",]
    parts = build_parts(loaded, {})
    parts.check_policy(policy)
    section = loaded.config.policy
    settings = check_options(loaded, ("policy",), policy, section.name, section.options)
    parts.algorithm.check(settings)
    examine = getattr(policy, "examine", None)
    notes = examine(settings, parts.rows()) if examine and settings is not None else ()
    counts = derive(loaded.config, greedy=getattr(policy, "greedy", True))
    algorithm = getattr(parts.algorithm, "config", None)
    idle = idle_processes(loaded.config, processes)
    texts = [
        _table("batch arithmetic", {name: f"{count:,}" for name, count in counts.items()}),
        _table("prompts", _prompts(parts)),
        _memory(loaded, policy, settings, algorithm),
        *(f"note: {note}" for note in (*notes, *parts.notes)),
        *(f"warning: {text}" for text in (idle, *warnings(loaded, algorithm)) if text),
    ]
    return "\n".join(texts)


def _prompts(parts: Parts) -> dict[str, str]:
    """How many rows there are, and how many of them are held out."""
    source, exam = parts.prompts.source, parts.exam
    counted = looked_at(exam.source)
    held = [row for row in islice(exam.rows(), counted) if exam.is_held_out(row)]
    of = "" if counted == len(exam.source) else f" of the first {counted:,}"
    return {
        "rows": f"{len(source):,}",
        "held out": f"{len(held):,}{of}",
        "different questions held out": f"{len(set(map(exam.question, held))):,}{of}",
        "evaluated": f"{len(parts.held_out):,}",
    }


def warnings(loaded: LoadedConfig, algorithm: Any) -> Iterator[str]:
    """What is allowed and still seldom meant; algorithm: its `Config`, where it has one."""
    train, prompts, evaluation = (
        loaded.config.train,
        loaded.config.prompts,
        loaded.config.evaluation,
    )
    if train.group_size < 4:
        yield f"group_size {train.group_size}: advantages of so few completions are mostly noise"
    if train.microbatch < train.group_size:
        yield f"microbatch {train.microbatch}: decisions, not rollouts; so few make many passes"
    if train.steps and train.warmup_steps >= train.steps:
        yield f"warmup_steps {train.warmup_steps}: the learning rate never reaches its value"
    if train.learning_rate == 0:
        yield "learning_rate 0: nothing will be learned"
    if evaluation.count and evaluation.source is None and prompts.held_out == 0:
        yield "held_out 0 without an evaluation.source: there is nothing to evaluate on"
    if loaded.config.watch and not evaluation.count:
        yield "watch without evaluation.prompts: nothing is measured"
    elif loaded.config.watch and not evaluation.every:
        yield "watch without evaluation.every: an alarm can come only when training has ended"
    if getattr(algorithm, "beta", 0) > 0:
        yield "beta > 0: a reference pass over every rollout and, without adapters, a second model"


def size(count: int) -> str:
    """Bytes in GiB or MiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _memory(loaded: LoadedConfig, policy: Any, own: Any, algorithm: Any) -> str:
    """The policy's own estimate for training, and copies of what is trained, as large as gradients.

    own, algorithm: their `Config`s. A policy that makes no estimate is said to make none.
    """
    estimate = getattr(policy, "estimate", None)
    decisions = loaded.config.train.microbatch
    counts = derive(loaded.config)
    rollouts = counts["rollouts per update"]
    evaluated = counts["rollouts per evaluation"]
    together = min(loaded.config.train.sample_batch, max(counts["rollouts per step"], evaluated))
    sizes: dict[str, int] = {}
    if estimate:
        sizes |= estimate(
            own, decisions=decisions, rollouts=rollouts, sampled=together, training=True
        )
    if not sizes:
        return f"memory\n  policy {loaded.config.policy.name!r} makes no estimate\n"
    trained = sizes.get("gradients", 0)
    if trained and loaded.config.train.ema is not None:
        sizes["moving average"] = trained
    if trained and getattr(algorithm, "beta", 0) > 0 and getattr(own, "lora", None) is None:
        sizes["reference"] = trained
    rows = {purpose: size(count) for purpose, count in sizes.items()}
    return _table(
        f"memory, estimated for micro-batches of at most {decisions:,} decisions",
        {**rows, "in total": size(sum(sizes.values()))},
    )


def _table(title: str, rows: Mapping[str, str]) -> str:
    names, values = max(map(len, rows)), max(map(len, rows.values()))
    lines = [f"  {name:<{names}}  {value:>{values}}" for name, value in rows.items()]
    return "\n".join([title, *lines, ""])
