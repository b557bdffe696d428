"""Evaluations in words: one in a line, and what changed between two."""

import math
from collections.abc import Mapping

from groupwise.evaluation import largest_error
from groupwise.kit.metric_names import JUDGED, Family, titled
from groupwise_console.step_line import listed

SHOWN = 5e-4
"""The smallest change of a mean that is shown."""


def brief(metrics: Mapping[str, float], accuracy: str | None = None) -> str:
    """An evaluation in one line: accuracy if a reward tells right from wrong, and the reward.

    accuracy: the name of that reward.
    """
    leading = "reward" if math.isnan(metrics.get("accuracy", math.nan)) else "accuracy"
    watched = Family.WATCH.of(metrics)
    each = {n.partition("/")[2]: v for n, v in metrics.items() if n.startswith(f"{leading}/")}
    shown = {
        titled(leading, accuracy): metrics.get(leading),
        "greedy": metrics.get(f"greedy_{leading}"),
        "reward": metrics.get("reward"),
        "length": metrics.get("length"),
        **{n: v for n, v in Family.ENVIRONMENT.of(metrics).items() if n in ("turns", "calls")},
        "failed": metrics.get("failed"),
        **watched,
    }
    words = [f"{k} {v:.3g}" for k, v in shown.items() if v is not None and not math.isnan(v)]
    if each and words and words[0].startswith(leading):
        words[0] += f" ({listed(each)})"
    prompts = f"{metrics.get('prompts', 0):.0f} held-out prompts"
    distinct = metrics.get("distinct_prompts")
    different = f", {distinct:.0f} different" if distinct is not None else ""
    return f"{'  '.join(words)}  ({prompts}{different})"


def changes(
    before: Mapping[str, float], after: Mapping[str, float], accuracy: str | None = None
) -> str:
    """What changed between two evaluations, the largest rise first; "" if nothing is in both.

    With shares of right completions, how exactly their prompts can tell them.

    accuracy: the name of the reward that tells right from wrong.
    """
    each = [name for name in after if name.startswith(f"{Family.REWARDS}/")]
    several, judging = len(each) > 1, f"{Family.REWARDS}/{accuracy}"
    if all(side.get(judging) == side.get("accuracy") for side in (before, after)):
        each = [name for name in each if name != judging]  # it is the accuracy
    watched = [name for name in after if name.startswith(f"{Family.WATCH}/")]
    names = ["reward", *JUDGED, *(each if several else ()), *watched]
    values = [(name, before.get(name), after.get(name)) for name in names]
    known = [(n, was, now) for n, was, now in values if was is not None and now is not None]
    known = [(n, was, now) for n, was, now in known if abs(now - was) >= SHOWN]  # not NaN
    known.sort(key=lambda change: change[1] - change[2])
    text = ", ".join(f"{titled(name, accuracy)} {was:.3g} -> {now:.3g}" for name, was, now in known)
    prompts = after.get("prompts")
    if not prompts or not any(name in JUDGED for name, *_ in known):
        return text
    error = largest_error(prompts)
    return f"{text} ({prompts:.0f} prompts: standard error of an accuracy up to {error:.2g})"
