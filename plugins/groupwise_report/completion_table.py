"""The table of completions: of training steps and of evaluations, to be sorted and filtered.

The page's script does both. Without it the table shows all its rows, in the order of steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from groupwise_report.completions import Sample, completion, heading, prompt, scores, shown
from groupwise_report.conversation import gist
from groupwise_report.document import section
from groupwise_report.images import Images, thumbnails
from groupwise_report.run_data import RunData
from groupwise_report.wording import brief, display, number

MOST_STEPS = 48  # of training, evenly spread over those that are kept
MOST_EXTREME = 12  # of all kept steps: the best, the worst, the longest, the failed
MOST_EVALUATED = 40  # completions before training, and as many after
MOST_PARTS = 4  # columns of rewards; every completion has all of them below it
MOST_CHARACTERS = 4_000_000  # of the table
MOST_BYTES = 3_000_000  # of its images
CHOSEN = ("first", "best", "worst", "longest", "next", "failed")
EN_DASH = "\N{EN DASH}"
Rewards = Mapping[str, object]


@dataclass(frozen=True)
class Shown:
    """A completion of the table; when: "before", "after" or "training"; step: as in the metrics."""

    when: str
    step: float
    sample: Sample

    @property
    def chosen(self) -> list[str]:
        """Why the run kept it, of its step."""
        words = self.sample.get("chosen")
        return [word for word in CHOSEN if isinstance(words, list) and word in words]

    @property
    def rewards(self) -> Rewards:
        rewards = self.sample.get("rewards")
        return rewards if isinstance(rewards, Mapping) else {}


def completion_table(run: RunData) -> str:
    """The section; "" for a run without completions."""
    training = _training(run.training, ("total",) if run.has_one_length else ("total", "length"))
    rows = [*_evaluated(run, "before"), *training, *_evaluated(run, "after")]
    if not rows:
        return ""
    parts = list(dict.fromkeys(name for row in rows for name in row.rewards))
    columns = parts[:MOST_PARTS] if len(parts) > 1 else []
    table = _Table(run, columns)
    intro = "Click a heading to sort, and a completion to read it with its prompt."
    if steps := len({number(row.get("step")) for row in run.training}):
        extremes = "best and the worst" if run.has_one_length else "best, the worst and the longest"
        some = f"those of {MOST_STEPS} steps, and the {extremes} of all"
        intro += (
            f" samples/training.jsonl has {_counted(len(run.training), 'completion')} of "
            f"{_counted(steps, 'step')}; here are {some if steps > MOST_STEPS else 'all'}."
        )
    return section("Completions", intro, table.html(rows))


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _evaluated(run: RunData, side: str) -> Iterator[Shown]:
    """The first completion of each prompt, the greedy one if there is one; no images, which are
    all in a grid of their own."""
    by_prompt: dict[tuple[str, str], Sample] = {}
    texts = [sample for sample in run.samples.get(side, ()) if not sample.get("image")]
    for sample in sorted(texts, key=lambda s: not s.get("greedy")):
        key = str(sample.get("draw", sample.get("prompt"))), str(sample.get("learner", ""))
        by_prompt.setdefault(key, sample)
    step = 0.0 if side == "before" else float(run.last_step)
    for sample in [*by_prompt.values()][:MOST_EVALUATED]:
        yield Shown(side, step, sample)


def _training(kept: Sequence[Sample], measures: Sequence[str]) -> list[Shown]:
    """Those of some steps, and of all steps the extremes by these measures."""
    rows = [Shown("training", number(each.get("step")) or 0.0, each) for each in kept]
    steps = sorted({row.step for row in rows})
    parts = range(MOST_STEPS if steps else 0)
    spread = {steps[n * (len(steps) - 1) // (MOST_STEPS - 1)] for n in parts}
    extreme = {id(row) for measure in measures for row in _extremes(rows, measure)}
    extreme |= {id(row) for row in [row for row in rows if row.sample.get("failed")][:MOST_EXTREME]}
    return [row for row in rows if row.step in spread or id(row) in extreme]


def _extremes(rows: Sequence[Shown], measure: str) -> Iterator[Shown]:
    """Those of the highest values, and of the lowest rewards."""
    known = [(value, row) for row in rows if (value := number(row.sample.get(measure))) is not None]
    for sign in (1, -1) if measure == "total" else (-1,):
        known.sort(key=lambda pair: sign * pair[0])
        yield from (row for _, row in known[:MOST_EXTREME])


class _Table:
    """The rows as HTML. parts: the rewards that have a column; lengths have one if they differ.

    Images of evaluations stand above the table already: here they are only named.
    """

    def __init__(self, run: RunData, parts: Sequence[str]) -> None:
        self.parts, self.unit = parts, "" if run.has_one_length else run.unit
        self.images = Images(run.folder, most=MOST_BYTES)
        self.names = Images(run.folder, most=0)

    def html(self, rows: Sequence[Shown]) -> str:
        heads = [
            "step",
            "kept as",
            "reward",
            *map(brief, self.parts),
            "advantage",
            *([brief(self.unit)] if self.unit else []),
        ]
        lines, size = [], 0
        for row in rows:
            line = self._row(row)
            size += len(line)
            if size > MOST_CHARACTERS:
                break
            lines.append(line)
        left = len(rows) - len(lines)
        note = f'<p class="cut">{left:,} more would make the page too large.</p>' if left else ""
        head = "".join(f'<th><button type="button">{name}</button></th>' for name in heads)
        return (
            f'<div class="card completions">{_filters(rows)}<table><thead><tr>{head}'
            f"<th>completion</th></tr></thead><tbody>{''.join(lines)}</tbody></table>{note}</div>"
        )

    def _row(self, row: Shown) -> str:
        sample = row.sample
        is_training = row.when == "training"
        numbers = [sample.get("total"), *(row.rewards.get(name) for name in self.parts)]
        numbers += [sample.get("advantage"), *([sample.get("length")] if self.unit else [])]
        step = display(row.step) if is_training else row.when
        cells = [f'<td data-value="{_order(row)}">{step}</td>']
        cells.append(f'<td data-value="">{", ".join(row.chosen) or EN_DASH}</td>')
        cells += [_cell(value) for value in numbers]
        right = sample.get("right")
        judged = str(int(right)) if isinstance(right, bool) else ""
        return (
            f'<tr data-when="{row.when}" data-step="{row.step:.0f}" '
            f'data-chosen="{" ".join(row.chosen)}" data-right="{judged}">'
            f"{''.join(cells)}<td>{self._text(row)}</td></tr>"
        )

    def _text(self, row: Shown) -> str:
        sample, picture = row.sample, row.sample.get("image")
        images = self.images if row.when == "training" else self.names
        thumb = thumbnails([images.small(picture)]) if picture else ""
        line = gist(sample.get("prompt") if picture else sample.get("completion"))
        content = "" if picture else completion(sample, images)
        inside = (
            f"{prompt(sample, images)}{heading('completion', sample)}"
            f"{shown(sample, images)}{content}{scores(sample)}"
            f"{_facts(row, self.unit)}"
        )
        key = f"{row.when} {row.step:.0f} {sample.get('draw')} {sample.get('index')}"
        return (
            f'{thumb}<details data-key="{brief(key)}"><summary>{line}</summary>{inside}</details>'
        )


def _facts(row: Shown, unit: str) -> str:
    """What the columns say, and the rewards of its group."""
    sample, group = row.sample, row.sample.get("group")
    of_group = group if isinstance(group, Mapping) else {}
    named = {
        "reward": sample.get("total"),
        "advantage": sample.get("advantage"),
        **({brief(unit): sample.get("length")} if unit else {}),
        "mean of its group": of_group.get("mean"),
        "standard deviation": of_group.get("std"),
    }
    known = {name: n for name, value in named.items() if (n := number(value)) is not None}
    facts = "".join(f"<span>{name} <b>{display(value)}</b></span>" for name, value in known.items())
    return f'<div class="scores">{facts}</div>'


def _order(row: Shown) -> str:
    """By which rows are sorted: evaluations before and after the training step of the same time."""
    return f"{row.step + {'before': -0.5, 'after': 0.5}.get(row.when, 0.0):g}"


def _cell(value: object) -> str:
    known = number(value)
    if known is None:
        return f'<td data-value="">{EN_DASH}</td>'
    return f'<td data-value="{known:.6g}">{display(known)}</td>'


def _filters(rows: Sequence[Shown]) -> str:
    """The row of filters, which the page's script shows and uses; each of those that can choose."""
    kinds = {"training": "training", "before": "before training", "after": "after training"}
    present = {row.when for row in rows}
    when = [(f"when {kind}", name) for kind, name in kinds.items() if kind in present]
    steps = sorted({row.step for row in rows if row.when == "training"})
    when += [(f"step {step:.0f}", f"step {display(step)}") for step in steps]
    chosen = {word for row in rows for word in row.chosen}
    why = [(f"chosen {word}", _KEPT[word]) for word in CHOSEN if word in chosen]
    judged = [row.sample.get("right") for row in rows]
    both = any(each is True for each in judged) and any(each is False for each in judged)
    right = [("right 1", "right"), ("right 0", "wrong")] if both else []
    selects = (_select("When", when, "training" in present), _select("Kept as", why),
               _select("Judged", right))  # fmt: skip
    return (
        f'<div class="filters" hidden>{"".join(selects)}<label>Containing '
        f'<input type="search"></label><output></output></div>'
    )


_KEPT = {
    "first": "first of its step",
    "best": "best of its step",
    "worst": "worst of its step",
    "longest": "longest of its step",
    "next": "further ones, unchosen",
    "failed": "failed",
}


def _select(name: str, options: Sequence[tuple[str, str]], first: bool = False) -> str:
    """A choice of rows by an attribute, such as "step 12"; first: the first option is set."""
    if not options:
        return ""
    inside = "".join(
        f'<option value="{value}"{" selected" * (first and n == 0)}>{text}</option>'
        for n, (value, text) in enumerate(options)
    )
    return f'<label>{name} <select><option value="">all</option>{inside}</select></label>'
