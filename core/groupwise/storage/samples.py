"""Samples: the completions of an evaluation as JSON lines, with images in folders."""

import errno
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from groupwise import attachments
from groupwise.kit import media
from groupwise.storage.attached import Attached
from groupwise.storage.disk import read_text, reason, remove, write

ATTACHED = "attached"
"""The folder of attachments, beside the files of samples."""
Named = Callable[[Mapping[str, Any]], str]
"""The name of a sample's image."""


def write_samples(path: Path, samples: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line; images and videos are saved in a folder of the file's name,
    and what is attached to prompts and messages in the folder `attached` beside it, each once."""
    make_folder(path.parent)
    folder = path.with_suffix("")
    remove(folder)  # images of an earlier writing of this evaluation
    attached = Attached(path.parent / ATTACHED, path.parents[1])
    taken = set[str]()
    saved = (with_its_image(s, folder, _name, taken) for s in samples)
    plain = (with_names(sample, attached) for sample in saved)
    write(path, "".join(as_line(sample) for sample in plain))


def make_folder(path: Path) -> None:
    """Make the folder of samples, if there is none. Raises NotADirectoryError for a file."""
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path)) from error


def as_line(sample: Mapping[str, Any]) -> str:
    """A line of JSON; messages of an environment may hold anything, which becomes text."""
    return json.dumps(sample, ensure_ascii=False, default=str) + "\n"


def read_samples(path: Path) -> list[dict[str, Any]]:
    """What `write_samples` wrote; [] if there is no file. Raises ValueError if it is damaged."""
    if not path.exists():
        return []
    try:
        lines = read_text(path).split("\n")
        samples = [json.loads(line) for line in lines if line]
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {reason(error)}") from error
    if not all(isinstance(sample, dict) for sample in samples):
        raise ValueError(f"{path} is damaged: expected an object in every line")
    return samples


def with_completions(samples: Iterable[Mapping[str, Any]], run: Path) -> list[dict[str, Any]]:
    """Samples that were read, with images and videos in place of the files that they name; those
    that are parts of messages remain files, by their whole paths.

    run: the run's folder. Raises ValueError if a file cannot be read.
    """
    return [_with_files(sample, run) for sample in samples]


def _with_files(sample: Mapping[str, Any], run: Path) -> dict[str, Any]:
    if "image" in sample:
        return {**sample, "completion": _image(run / sample["image"])}
    located = partial(attachments.located, folder=run)
    return {**sample, **_in_messages(sample, located)}


def _image(path: Path) -> Any:
    try:
        return media.read(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error


def numbered(name: str, taken: set[str]) -> str:
    """The name, with a number after it if it is taken; the result is taken from now on. An episode
    may have several judged images."""
    first, number = name, 1
    while name in taken:
        number += 1
        name = f"{first}_{number}"
    taken.add(name)
    return name


def _name(sample: Mapping[str, Any]) -> str:
    way = "_greedy" if sample["greedy"] else ""
    way += f"_{sample['learner']}" if sample.get("learner") else ""
    return f"{sample['draw']:04d}_{sample['index']}{way}"


def with_its_image(
    sample: Mapping[str, Any], folder: Path, name: Named, taken: set[str], *, small: bool = False
) -> Mapping[str, Any]:
    """The sample with its image, if it has one, saved, and named by a path relative to the run's
    folder; name: of the file, which gets a number if it is taken."""
    image = sample["completion"]
    if not callable(getattr(image, "save", None)):
        return sample
    folder.mkdir(exist_ok=True, parents=True)
    path = media.write(image, folder / numbered(name(sample), taken), small=small)
    return {**sample, "completion": "", "image": path.relative_to(folder.parents[1]).as_posix()}


def with_names(sample: Mapping[str, Any], attached: Attached) -> Mapping[str, Any]:
    """The sample with the names of files in the place of attachments."""
    images = {"images": [*map(attached.name, sample["images"])]} if "images" in sample else {}
    shown = {name: _named(value, attached) for name, value in sample.get("shown", {}).items()}
    own = {**images, **({"shown": shown} if shown else {})}
    return {**sample, **_in_messages(sample, attached.name), **own}


def _named(shown: Any, attached: Attached) -> Any:
    """What is shown, a picture by the name of its file."""
    own = attachments.of_part(shown)
    return shown if own is None else {**shown, shown["type"]: attached.name(own)}


def _in_messages(sample: Mapping[str, Any], change: attachments.Change) -> Mapping[str, Any]:
    """The prompt and the completion with their attachments changed."""
    names = (name for name in ("prompt", "completion") if name in sample)
    return {name: attachments.replaced(sample[name], change) for name in names}
