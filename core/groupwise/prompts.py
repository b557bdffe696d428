"""Prompts: which rows are held out, and which group comes next; resumable by one number."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field

from groupwise.errors import UserError

Row = Mapping[str, Any]
SCAN = 200_000
"""Rows looked through for the held-out split before giving up; sources may be endless."""


class PromptSource(Protocol):
    """A map-style dataset of rows, each with at least a `prompt`: a string or chat messages.

    A source whose rows ask the same question in several wordings states by an attribute `key` the
    column with the question.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Row: ...


class Rows:
    """Rows given in Python or in the configuration."""

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        rows: list[dict[str, Any]] = Field(description="the rows, each with a prompt")

    def __init__(self, config: Config) -> None:
        self.rows: Sequence[Row] = config.rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> Row:
        return self.rows[index]


@dataclass(frozen=True)
class Draw:
    """One prompt drawn for one group: its number in the run, and the row."""

    number: int
    row: Row


def held_out(question: Any, fraction: float) -> bool:
    """Whether a question belongs to the held-out split: by a hash of its text, so by nothing else.

    The split survives shuffling, appending and other seeds; two rows of one question are on the
    same side.
    """
    text = question if isinstance(question, str) else _as_text(question)
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def seed_for(run_seed: int, space: str, draw: int, index: int) -> int:
    """The seed that names one sample: a 63-bit hash of run seed, name space, draw and index."""
    key = f"{run_seed}/{space}/{draw}/{index}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


class Prompts:
    """Draws training prompts in a seeded order, epoch after epoch, the held-out ones left out.

    key: the column that says what a row asks, for sources where several prompts ask the same; the
        source's own if unset, else the prompt.
    skips: rows for which this is true are never drawn, neither to train on nor to evaluate.

    Its whole state is `position`, the number of rows looked at, `drawn`, the number of draws, and
    `skipped`, the number of rows left out by `skips`.
    """

    def __init__(
        self,
        source: PromptSource,
        *,
        seed: int = 0,
        fraction: float = 0.1,
        shuffle: bool = True,
        key: str | None = None,
    ) -> None:
        if len(source) == 0:
            raise UserError("the prompts are empty: the source has no rows")
        self.source, self.seed, self.fraction, self.shuffle = source, seed, fraction, shuffle
        self.key: str = key or getattr(source, "key", None) or "prompt"
        self.skips: Callable[[Row], bool] = lambda _: False
        self.position = self.drawn = self.skipped = 0
        self._epoch, self._order = -1, torch.empty(0)
        check_row(source[0], 0)

    def question(self, row: Row) -> str:
        """What a row asks, as text that is equal where two rows ask the same."""
        return _as_text(self._key(row))

    def is_held_out(self, row: Row) -> bool:
        return held_out(self._key(row), self.fraction)

    def _key(self, row: Row) -> Any:
        if self.key not in row:
            raise UserError(
                f"prompts.key: a row has no column {self.key!r} (it has {', '.join(map(str, row))})"
            )
        return row[self.key]

    def rows(self) -> Iterator[Row]:
        """The source's rows in its own order, the first `SCAN` of a source that has more."""
        for index in range(min(len(self.source), SCAN)):
            row = self.source[index]
            check_row(row, index)
            yield row

    def take(self, count: int) -> list[Draw]:
        """The next `count` draws. Raises UserError when the split leaves nothing to train on."""
        draws: list[Draw] = []
        passed = skipped = 0
        while len(draws) < count:
            row = self._row(self.position)
            self.position += 1
            held = self.is_held_out(row)
            if held or self.skips(row):
                passed += 1
                skipped += not held
                if passed > len(self.source) + SCAN or (
                    passed >= 2 * len(self.source) and not draws
                ):
                    share = skipped / passed
                    skipping = f", as the policy skips {share:.0%} of them" if skipped else ""
                    raise UserError(
                        f"held_out={self.fraction} leaves none of {len(self.source)} prompts "
                        f"to train on{skipping}"
                    )
                continue
            draws.append(Draw(self.drawn, row))
            self.drawn += 1
        self.skipped += skipped
        return draws

    def evaluation(self, count: int, *, distinct: bool = True, strict: bool = True) -> list[Draw]:
        """The first `count` held-out prompts, in the source's own order; the same always.

        distinct: take a question once; False takes them as often as the source has them.
        strict: raise UserError when there are fewer; otherwise take what there is.
        """
        draws: list[Draw] = []
        seen: set[str] = set()
        skipped = 0
        for row in self.rows():
            if len(draws) == count:
                break
            key = self.question(row)
            if (distinct and key in seen) or not self.is_held_out(row):
                continue
            if self.skips(row):
                skipped += 1
                continue
            seen.add(key)
            draws.append(Draw(len(draws), row))
        if strict and len(draws) < count:
            raise UserError(
                f"evaluation.prompts asks for {count} held-out prompts, but only {len(draws)} of "
                f"{len(self.source)} rows are held out (held_out: {self.fraction}); "
                f"lower the one or raise the other"
                + (f". The policy skips {skipped} more of them" if skipped else "")
            )
        return draws

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "drawn": self.drawn, "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.position, self.drawn = state["position"], state["drawn"]
        self.skipped = state["skipped"]

    def _row(self, position: int) -> Row:
        epoch, offset = divmod(position, len(self.source))
        index = offset
        if self.shuffle:
            if epoch != self._epoch:
                generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch, 0))
                self._order = torch.randperm(len(self.source), generator=generator)
                self._epoch = epoch
            index = int(self._order[offset])
        row = self.source[index]
        check_row(row, index)
        return row


def is_chat(value: Any) -> bool:
    """Whether it is a list of messages, each with a role and a content."""
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(part, Mapping) and {"role", "content"} <= set(part) for part in value)
    )


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def check_row(row: Any, index: int) -> None:
    """Raise UserError, naming the row, when it is no row with a usable prompt."""
    if not isinstance(row, Mapping):
        raise UserError(f"prompts, row {index}: expected a mapping, found {type(row).__name__}")
    if "prompt" not in row:
        columns = ", ".join(map(str, row)) or "none"
        raise UserError(f"prompts, row {index}: no column 'prompt' (it has {columns})")
    prompt = row["prompt"]
    if is_chat(prompt) or (isinstance(prompt, str) and prompt):
        _check_characters(prompt, index)
        return
    raise UserError(
        f"prompts, row {index}: 'prompt' must be a non-empty string or a list of messages with "
        f"'role' and 'content', found {prompt!r}"[:400]
    )


def _check_characters(prompt: Any, index: int) -> None:
    """Half of a surrogate pair is no character: tokenizers and files refuse a text with one."""
    text = (
        prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, default=str)
    )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"prompts, row {index}: 'prompt' holds half of a surrogate pair, "
            f"{text[error.start]!r}, which is no character; was the text cut amidst an emoji? "
            f"`text.encode(errors='replace').decode()` removes it"
        ) from error
