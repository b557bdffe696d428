"""audit_table: of each reward, at how many prompts it paid right and wrong answers."""

from collections.abc import Sequence

from groupwise.cli.trial import aligned
from groupwise.scoring.audit import Audit

UNTRIED = "not tried, since it is async or loads a model; `audit: note` tries it"


def audit_table(audits: Sequence[Audit]) -> str | None:
    """A line for each kind of completions, a column for each reward; None without a reward that
    has gold."""
    tried = [each for each in audits if each.counts]
    if not audits:
        return None
    kinds = dict.fromkeys(kind for each in tried for kind in each.counts)
    lines = [["audit: prompts at which is paid", *(each.reward for each in tried)]] if tried else []
    for kind in kinds:
        counts = [each.counts.get(kind) for each in tried]
        lines.append([f"  {kind}", *("-" if c is None else f"{c[0]} of {c[1]}" for c in counts)])
    cut = [f"  {each.reward}: there was no time to try more" for each in tried if each.is_cut]
    untried = [f"  {each.reward}: {UNTRIED}" for each in audits if not each.counts]
    return "\n".join([*aligned(lines), *cut, *untried, ""])
