"""Outcomes: how often each prompt was answered right, and how much it can still teach."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor


class Outcome(NamedTuple):
    """The result of one draw: how many completions were right, of how many judged."""

    right: float
    judged: float


Count = TypeVar("Count", float, Tensor)


def worth(right: Count, judged: Count) -> Count:
    """E[p (1 - p)] of the success rate p, after `right` of `judged` completions.

    p (1 - p) is the variance of a reward of 0 or 1, by which a group's expected signal grows. With
    a uniform prior, p is Beta(1 + right, 1 + wrong), and so

        E[p (1 - p)] = (1 + right) (1 + wrong) / ((2 + judged) (3 + judged)),

    which is 1/6 for a new prompt, and 1/4 at most.
    """
    return (1 + right) * (1 + judged - right) / ((2 + judged) * (3 + judged))


UNSEEN = 1 / 6
"""The worth of a new prompt."""
RESTING = UNSEEN / 2
"""Prompts worth less than this are passed over."""


class Outcomes:
    """Counts of right and of judged completions per question, decaying over time.

    The counts of a question halve every `half_life` draws (of any prompts), so that old results
    fade and the question is tried again. `size` questions are remembered; if there are more, the
    eighth of them that was drawn longest ago is forgotten.

    The state is five columns, 32 bytes per question: `keys` [n] int64 (hashes of questions), `rows`
    [n] int64 (the row that it was last drawn as), `right` and `judged` [n] float32 (the counts at
    its last draw), and `drawn` [n] int64 (the number of that draw).
    """

    def __init__(self, *, half_life: float, size: int) -> None:
        self.half_life, self.size = half_life, size
        self.load_state_dict({})

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: int) -> bool:
        return key in self._places

    def column(self, name: str) -> Tensor:
        """[n]: one of the columns."""
        return self._columns[name][: len(self)]

    def counts(self, now: int) -> tuple[Tensor, Tensor]:
        """[n] float64 each: decayed counts of right and judged completions at draw `now`."""
        decay = torch.exp2((self.column("drawn") - now).double() / self.half_life)
        return self.column("right") * decay, self.column("judged") * decay

    def of(self, key: int, now: int) -> tuple[float, float]:
        """The decayed counts of one question; 0 if it is not known."""
        place = self._places.get(key)
        if place is None:
            return 0.0, 0.0
        right, judged, drawn = (
            self._columns[name][place].item() for name in ("right", "judged", "drawn")
        )
        decay = 2.0 ** ((drawn - now) / self.half_life)
        return right * decay, judged * decay

    def add(self, key: int, row: int, outcome: Outcome, now: int) -> None:
        """Add the outcome of a draw of this question."""
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
        """Make room for one more question: forget the oldest ones."""
        if len(self) >= self.size:
            dropped = max(len(self) // 8, len(self) - self.size + 1)
            kept = self.column("drawn").argsort(stable=True)[dropped:].sort().values
            self.load_state_dict({name: c[kept] for name, c in self.state_dict().items()})

    def state_dict(self) -> dict[str, Tensor]:
        return {name: self.column(name).clone() for name in _COLUMNS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        keys = state.get("keys", torch.empty(0)).long().tolist()
        self._places = {key: place for place, key in enumerate(keys)}
        room = max(self.size, len(keys))
        self._columns = {name: torch.zeros(room, dtype=dtype) for name, dtype in _COLUMNS.items()}
        for name, column in state.items():
            self._columns[name][: len(keys)] = column


_COLUMNS: Mapping[str, torch.dtype] = {
    "keys": torch.int64,
    "rows": torch.int64,
    "right": torch.float32,
    "judged": torch.float32,
    "drawn": torch.int64,
}
