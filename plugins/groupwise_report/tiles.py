"""The numbers at the head of a run's page: before and after, with their intervals."""

from groupwise_report.run_data import Row, RunData
from groupwise_report.wording import MINUS, brief, display, number, wilson

MOST = 8


def tiles(run: RunData) -> str:
    """The results of the evaluations before and after, the most important first."""
    before, after, note = run.evaluations()
    known = dict.fromkeys((*before, *after))
    # Without a reward that tells right from wrong, the reward itself comes first.
    leading = "accuracy" if "accuracy" in known else "reward"
    keys = dict.fromkeys((leading, f"greedy_{leading}"))
    keys |= dict.fromkeys(key for key in known if key.startswith("watch/"))
    keys |= dict.fromkeys(key for key in known if key.startswith("pass_at_"))
    rewards = [key for key in known if key.startswith("rewards/")]
    keys |= dict.fromkeys(["length", *(["reward"] if len(rewards) > 1 else []), *rewards])
    for own in (f"rewards/{run.accuracy}", *(rewards if len(rewards) == 1 else ())):
        if all(side.get(own) == side.get(leading) for side in (before, after)):
            keys.pop(own, None)  # it is the leading figure
    every = (_tile(key, before, after, note, run) for key in keys)
    shown = [tile for tile in every if tile][:MOST]
    return f'<dl class="tiles">{"".join(shown)}</dl>' if shown else ""


def _tile(key: str, before: Row, after: Row, note: str, run: RunData) -> str:
    old, new = number(before.get(key)), number(after.get(key))
    if old is None and new is None:
        return ""
    percent = key.startswith("pass_at_") or key in ("accuracy", "greedy_accuracy")
    shown = [display(v, percent=percent) if v is not None else "\N{EN DASH}" for v in (old, new)]
    words = []
    if old is not None and new is not None:
        is_small = percent and abs(new - old) < 1e4
        change = f"{100 * (new - old):+.1f} points" if is_small else f"{new - old:+.3g}"
        words.append(change.replace("-", MINUS))
    if key in ("accuracy", "greedy_accuracy"):
        ranges = [r for r in (interval(old, before), interval(new, after)) if r]
        words += ["95 % interval: " + " → ".join(ranges)] if ranges else []
    words += [note] if note else []
    values = f"<b>{shown[not before]}</b>"
    if before and after:
        values = f"<span>{shown[0]} →</span> <b>{shown[1]}</b>"
    small = "".join(f"<dd><small>{word}</small></dd>" for word in words)
    return f'<div class="tile"><dt>{_title(key, run)}</dt><dd>{values}</dd>{small}</div>'


def interval(share: float | None, row: Row) -> str:
    """The 95% interval of a share in percent, by the number of prompts; "" if that is unknown."""
    count = number(row.get("prompts"))
    if share is None or not count or not 0 <= share <= 1:
        return ""
    return "\N{EN DASH}".join(f"{100 * bound:.0f}" for bound in wilson(share, count))


def _title(key: str, run: RunData) -> str:
    titles = {
        "reward": "Reward, sampled",
        "greedy_reward": "Reward, greedy",
        "accuracy": f"{run.accuracy_title}, sampled",
        "greedy_accuracy": f"{run.accuracy_title}, greedy",
        "length": f"Length, {run.unit}",
    }
    words = {"pass_at_": "Pass@", "rewards/": "Reward ", "watch/": "Watched "}
    for prefix, word in words.items():
        if key.startswith(prefix):
            return brief(word + key.removeprefix(prefix))
    return brief(titles.get(key, key))
