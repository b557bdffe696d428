"""describe: what a configuration will do and what it will take, before anything is loaded."""

from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.building import has_config, load_target, validate
from groupwise.config import LoadedConfig, check_labels, derive
from groupwise.sections import plugin_sections
from groupwise.yaml_lines import KeyPath


def describe(loaded: LoadedConfig) -> str:
    """Batch arithmetic, memory by purpose and warnings, as text in columns.

    Raises UserError for unknown names and for options that their plugin does not accept.
    """
    check_labels(loaded)
    settings: dict[KeyPath, Any] = {}
    targets: dict[KeyPath, Any] = {}
    for kind, path, section in plugin_sections(loaded.config):
        targets[path] = load_target(loaded, kind, path, section.name)
        if has_config(targets[path]):
            settings[path] = validate(loaded, path, targets[path], section.options)
    greedy = getattr(targets[("policy",)], "greedy", True)
    counts = {name: f"{n:,}" for name, n in derive(loaded.config, greedy=greedy).items()}
    parts = [
        _table("batch arithmetic", counts),
        _memory(loaded, targets[("policy",)], settings),
        *(f"warning: {text}" for text in warnings(loaded, settings.get(("algorithm",)))),
    ]
    return "\n".join(parts)


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


def _memory(loaded: LoadedConfig, policy: Any, settings: Mapping[KeyPath, Any]) -> str:
    """The policy's own estimate for training, and copies of what is trained, as large as gradients.

    A policy that makes no estimate is said to make none.
    """
    own, algorithm = settings.get(("policy",)), settings.get(("algorithm",))
    estimate = getattr(policy, "estimate", None)
    decisions = loaded.config.train.microbatch
    rollouts = derive(loaded.config)["rollouts per update"]
    sizes: dict[str, int] = {}
    if estimate:
        sizes |= estimate(own, decisions=decisions, rollouts=rollouts, training=True)
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
