"""audit_table: of each reward, at how many prompts it paid right and wrong answers."""

from collections.abc import Sequence

from groupwise.cli.trial import aligned
from groupwise.scoring.audit import Audit, Count


def audit_table(audits: Sequence[Audit]) -> str | None:
    """A line for each kind of completions, a column for each reward; None if none has gold."""
    tried = [each for each in audits if each.counts]
    if not audits:
        return None
    kinds = dict.fromkeys(kind for each in tried for kind in each.counts)
    head = ["audit: prompts at which is paid", *(each.reward for each in tried)]
    rows = [[f"  {k}", *(_cell(each.counts.get(k)) for each in tried)] for k in kinds]
    untried = [f"  {each.reward}: {each.untried}" for each in audits if each.untried]
    return "\n".join([*aligned([head, *rows] if tried else [["audit"]]), *untried, ""])


def _cell(count: Count | None) -> str:
    if count is None:
        return "-"
    equal = f", {count.equal} as equal to gold" if count.equal else ""
    return f"{count.paid} of {count.tried}{equal}"
