"""Outcomes: how often prompts were answered rightly, and how much they have left to teach."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor


class Outcome(NamedTuple):
    """What came of one draw: how many completions were right, of how many that were judged."""

    right: float
    judged: float


Count = TypeVar("Count", float, Tensor)


def worth(right: Count, judged: Count) -> Count:
    """E[p (1 - p)] of a success rate p of which `right` of `judged` completions were seen.

    p (1 - p) is the variance of one completion's reward of 0 or 1: what a group is expected to
    teach. With a uniform prior p is Beta(1 + right, 1 + wrong), and the mean of p (1 - p) then

        (1 + right) (1 + wrong) / ((2 + judged) (3 + judged)),

    which is 1/6 before anything was seen, and 1/4 at most.
    """
    return (1 + right) * (1 + judged - right) / ((2 + judged) * (3 + judged))


UNSEEN = 1 / 6
"""What a prompt is worth that nothing is known of."""
RESTING = UNSEEN / 2
"""What one is worth at most that is passed over."""


class Outcomes:
    """Right and all judged completions of each question, older ones counting less.

    A question's counts halve with every `half_life` draws of whatever prompts, so that what is
    known of it fades and it is worth another look. `size` questions are remembered; when there are
    more, the eighth of them that was drawn longest ago is forgotten.

    All that it knows are five columns, 32 bytes a question: `keys` [n] int64 (hashes of questions),
    `rows` [n] int64 (the row each was last drawn as), `right` and `judged` [n] float32, as they
    stood when it was drawn last, and `drawn` [n] int64, the number of that draw.
    """

    def __init__(self, *, half_life: float, size: int) -> None:
        self.half_life, self.size = half_life, size
        self._columns: dict[str, Tensor] = {}
        self.load_state_dict({})

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: int) -> bool:
        return key in self._places

    def column(self, name: str) -> Tensor:
        """[n]: one of the columns."""
        return self._columns[name][: len(self)]

    def counts(self, now: int) -> tuple[Tensor, Tensor]:
        """[n] float64: right and judged completions as they count at draw number `now`."""
        kept = torch.exp2((self.column("drawn") - now).double() / self.half_life)
        return self.column("right") * kept, self.column("judged") * kept

    def of(self, key: int, now: int) -> tuple[float, float]:
        """Those of one question; 0 where it is not known."""
        place = self._places.get(key)
        if place is None:
            return 0.0, 0.0
        right, judged, drawn = (
            self._columns[name][place].item() for name in ("right", "judged", "drawn")
        )
        kept = 2.0 ** ((drawn - now) / self.half_life)
        return right * kept, judged * kept

    def add(self, key: int, row: int, outcome: Outcome, now: int) -> None:
        """Take note of what came of a draw of this question."""
        right, judged = self.of(key, now)
        if key not in self:
            self._make_room()
            self._places[key] = len(self)
        place = self._places[key]
        new: dict[str, float] = {
            "keys": key,
            "rows": row,
            "right": right + outcome.right,
            "judged": judged + outcome.judged,
            "drawn": now,
        }
        for name, value in new.items():
            self._columns[name][place] = value

    def _make_room(self) -> None:
        """For one more: columns grow by half; of `size` questions the oldest give way."""
        if len(self) >= self.size:
            dropped = max(len(self) // 8, len(self) - self.size + 1)
            kept = self.column("drawn").argsort(stable=True)[dropped:].sort().values
            self.load_state_dict({name: c[kept] for name, c in self.state_dict().items()})
        if len(self) == len(self._columns["keys"]):
            more = max(64, len(self) // 2)
            self._columns = {
                name: torch.cat([column, column.new_zeros(more)])
                for name, column in self._columns.items()
            }

    def state_dict(self) -> dict[str, Tensor]:
        return {name: self.column(name).clone() for name in _COLUMNS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        nothing = torch.empty(0)
        self._columns = {
            name: state.get(name, nothing).to(dtype, copy=True) for name, dtype in _COLUMNS.items()
        }
        self._places = {key: place for place, key in enumerate(self._columns["keys"].tolist())}


_COLUMNS: Mapping[str, torch.dtype] = {
    "keys": torch.int64,
    "rows": torch.int64,
    "right": torch.float32,
    "judged": torch.float32,
    "drawn": torch.int64,
}
