"""Audits: the rewards of a run, tried on right and on wrong answers before it begins."""

from collections.abc import Iterator

from groupwise.building.parts import Parts
from groupwise.config.measures import MeasureSection
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath
from groupwise.prompt_source import PlacedRow, is_chat
from groupwise.rewards import Reward
from groupwise.run.gold import first_rows
from groupwise.scoring.audit import Audit, audit
from groupwise.scoring.gold import gold_column

ROWS = 8
"""Prompts that are tried, spread over the first ones."""
COSTLY = "not tried, since it is async or loads a model; `audit: note` tries it"
NO_GOLD = (
    "this reward cannot be tried: no gold answer is known of these rows; give it a method "
    "`gold_completion`, or leave `audit` out"
)
OTHER_FORM = (
    "; if right answers have another form than those that were tried, state it by `gold_completion`"
)

OF_MESSAGES = (
    "; its completions are lists of messages, since the prompts are chats: their text is "
    '`completion[-1]["content"]`'
)


def audits(parts: Parts, *, refusing: bool = False) -> list[Audit]:
    """The audits of the rewards that have gold; of those that may cost money or load a model an
    empty one, unless `audit` is set.

    refusing: only of rewards with `audit: refuse`. Raises UserError if one of these judges a
    completion wrongly.
    """
    sections = {path: _section(parts, path) for path in parts.measures}
    wanted = {path for path, each in sections.items() if each.audit == "refuse" or not refusing}
    if not wanted:
        return []
    rows, made = [*_rows(parts)], list[Audit]()
    for path in (path for path in parts.measures if path in wanted):
        choice = sections[path].audit
        tried = _tried(parts.measures[path], rows, choice)
        if choice == "refuse" and (tried is None or tried.findings):
            problem = NO_GOLD if tried is None else _refusal(tried)
            raise UserError(parts.loaded.origin.message((*path, "audit"), problem))
        made += [tried] if tried is not None else []
    return made


def audit_notes(parts: Parts, made: list[Audit]) -> Iterator[str]:
    """What the audits found, as sentences; without what `gold_notes` says of more rows."""
    stated = {r.name for r in parts.measures.values() if r.members.gold_completion is not None}
    chats = any(is_chat(row["prompt"]) for row in _rows(parts)) if made else False
    hint = f"{OF_MESSAGES if chats else ''}{OTHER_FORM}"
    for each in made:
        for finding in each.findings:
            if finding.is_of_gold and each.reward in stated:
                continue
            is_unknown = finding.is_of_gold and finding.wrong == finding.tried
            yield f"reward {each.reward!r} {finding.sentence}{hint if is_unknown else ''}"


def _refusal(tried: Audit) -> str:
    all_ = "".join(f"\n  it {finding.sentence}" for finding in tried.findings)
    return (
        f"reward {tried.reward!r} judges answers wrongly that are known before the run:{all_}\n"
        f"Correct the reward or these rows, or set `audit: note` to begin nevertheless"
    )


def _tried(reward: Reward, rows: list[PlacedRow], choice: str | None) -> Audit | None:
    """The audit of a reward; None if it is not to be tried, or has no gold."""
    rows = [row for row in rows if reward.judges(row)]
    if choice == "skip" or not rows or not _can_be_tried(reward, rows):
        return None
    if choice is not None or not (reward.is_async or reward.members.load is not None):
        return audit(reward, rows)
    return Audit(reward=reward.name, untried=COSTLY) if gold_column(reward) is not None else None


def _section(parts: Parts, path: KeyPath) -> MeasureSection:
    key, number = path
    sections: list[MeasureSection] = getattr(parts.config, str(key))
    return sections[int(number)]


def _can_be_tried(reward: Reward, rows: list[PlacedRow]) -> bool:
    """Whether it says or may say what is right, by the rows' columns alone."""
    if reward.members.judges is False or reward.members.relative:
        return False
    try:
        reward.check_columns({name: None for name in rows[0] if name != "prompt"})
    except UserError:  # it needs facts of a policy, or of an environment
        return False
    return True


def _rows(parts: Parts) -> Iterator[PlacedRow]:
    """Rows as episodes open with them."""
    rows, most = [*first_rows(parts)], ROWS * len(parts.prompts.each)
    for row in rows[:: max(1, len(rows) // most)][:most]:
        yield PlacedRow(parts.players.opening(row), row.place)
