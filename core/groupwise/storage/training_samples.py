"""TrainingSamples: completions of training steps, in samples/training.jsonl, of bounded size."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.storage.attached import Attached
from groupwise.storage.disk import only_files, read_text, remove, write
from groupwise.storage.samples import ATTACHED, as_line, make_folder, with_its_image, with_names

LONGEST = (8_000, 2_000, 500, 100)
"""Characters of a text, the first of these with which a line is no longer than `LINE`; the middle
is left out, since answers are at the end."""
LINE = 32_000
"""Characters of a line, unless it consists of very many short texts."""


def stride(step: int, most: int) -> int:
    """2^k, the smallest with which the multiples up to `step` are no more than `most`."""
    return 1 << ((step - 1) // most).bit_length()


def is_kept(step: int, most: int) -> bool:
    """Whether the samples of a new step are kept, if those of at most so many steps are.

    It depends on nothing but the step, so that a resumed run keeps the same.
    """
    return step % stride(step, most) == 0


class TrainingSamples:
    """Appends samples of steps to a file; images lie beside it, in a folder of its name.

    most: the most steps whose samples are kept: those that are multiples of `stride`.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most
        self.folder = path.with_suffix("")
        self._attached = Attached(self.folder / ATTACHED, path.parents[1])

    def write(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Add the samples of a step; to be called after each, since older ones may have to go."""
        if step > 1 and stride(step, self.most) != stride(step - 1, self.most):
            self.truncate_after(step)
        if not samples:
            return
        make_folder(self.path.parent)
        taken = set[str]()
        lines = [self._line({"step": step, **sample}, taken) for sample in samples]
        self._attached.forget()
        with open(
            self.path, "a", encoding="utf-8", errors="backslashreplace", opener=only_files
        ) as file:
            file.write("".join(lines))

    def truncate_after(self, step: int) -> None:
        """Drop the samples of later steps, which a resumed run writes again, of earlier ones that
        are not kept at this step, and incomplete lines; and images that no other line names."""
        if not self.path.exists():
            return
        every = stride(max(step, 1), self.most)
        kept = [
            line
            for line, of in _lines(self.path)
            if of is not None and of <= step and of % every == 0
        ]
        write(self.path, "".join(f"{line}\n" for line in kept))
        if self.folder.is_dir():
            self._sweep("".join(kept))

    def _line(self, sample: Mapping[str, Any], taken: set[str]) -> str:
        saved = with_its_image(sample, self.folder, _name, taken, small=True)
        plain = with_names(saved, self._attached)
        lines = (as_line(_cut(plain, longest)) for longest in LONGEST)
        return next(
            (line for line in lines if len(line) <= LINE), as_line(_cut(plain, LONGEST[-1]))
        )

    def _sweep(self, lines: str) -> None:
        """Remove the images that are not named in these lines."""
        for path in [*self.folder.glob("*.*"), *self.folder.glob(f"{ATTACHED}/*")]:
            if path.is_file() and path.name not in lines:
                remove(path)
        self._attached = Attached(self.folder / ATTACHED, self.path.parents[1])


def _name(sample: Mapping[str, Any]) -> str:
    """That of its image."""
    learner = f"_{sample['learner']}" if sample.get("learner") else ""
    return f"{sample['step']}_{sample['draw']}_{sample['index']}{learner}"


def _lines(path: Path) -> Iterator[tuple[str, int | None]]:
    """The lines of a file, each with its step; None for one that is damaged or incomplete."""
    for line in read_text(path, errors="replace").split("\n"):
        try:
            step = json.loads(line)["step"]
        except (ValueError, RecursionError, TypeError, KeyError):
            step = None
        yield line, step if type(step) is int else None


def _cut(value: Any, longest: int) -> Any:
    """The value with the middle of every longer text in it left out."""
    if isinstance(value, str) and len(value) > longest:
        half = longest // 2
        left_out = len(value) - 2 * half
        return f"{value[:half]}\n[{left_out:,} characters left out]\n{value[-half:]}"
    if isinstance(value, Mapping):
        return {key: _cut(inner, longest) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(inner, longest) for inner in value]
    return value
