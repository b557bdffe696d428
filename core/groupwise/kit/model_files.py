"""A model's files on this machine: whether a path is a model's folder, and its weights are whole.

No weights are read, only the headers of their files, which say how long a file is.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groupwise.kit import foreign_json

NAME = "model.safetensors"
"""transformers' name of the file of weights."""
PICKLED = (
    "it has no weights as safetensors, and pickled ones (.bin) are not read, since a pickle can "
    "run code; convert them: load the model in Python with use_safetensors=False, and write it by "
    "save_pretrained"
)
"""The message for a model whose weights are pickled."""
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "pytorch_lora_weights.safetensors")
"""Files of a folder that holds LoRA adapters, by peft and by diffusers."""
MERGE = (
    "it holds LoRA adapters, not a model: merge them into the model that they were trained from "
    "(docs/recipes/merge.md), and name the folder of the result"
)
"""The message for a folder of adapters in the place of a model."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
POINTER = b"version https://git-lfs"
"""The beginning of a file that Git LFS has not replaced by its content."""
MOST_HEADER = 100_000_000
"""Bytes of the longest header that safetensors reads."""
AGAIN = "copy or download it again"


def folder_problem(path: Path, index: str, *, of_file: str, of_gguf: str) -> str | None:
    """Why a local path is not the folder of a model, and what to set instead; None if it is one.

    index: the file that describes a model in its folder. of_file, of_gguf: what to do with a file
    of weights, and with GGUF.
    """
    names = sorted(each.name for each in path.iterdir()) if path.is_dir() else [path.name]
    if path.is_dir() and index in names and ADAPTERS[0] not in names:
        return None
    if any(name in ADAPTERS for name in names):
        return MERGE
    if any(name.endswith(".gguf") for name in names):
        return of_gguf
    if path.is_file():
        return f"it is a file, and a model is a folder with {index}: {of_file}"
    shown = f"it holds {', '.join(names[:6])}" if names else "it is empty"
    return f"it has no {index}, which describes a model in its folder; {shown}"


def weight_files(folder: Path, name: str = NAME, variant: str | None = None) -> list[Path]:
    """The safetensors files of a model, by its index if it has one; [] if there are none.

    name: of the file of weights that are not divided. Raises ValueError for a damaged index.
    """
    stem = name.removesuffix(".safetensors")
    usual = [f"{name}.index.json", name]
    of_variant = [f"{name}.index.{variant}.json", f"{stem}.{variant}.safetensors"]
    for path in (folder / each for each in (*(of_variant if variant else ()), *usual)):
        if path.is_file() and path.suffix == ".safetensors":
            return [path]
        if path.is_file():
            return [folder / part for part in sorted({*_parts(path)})]
    return []


def weights_problem(folder: Path, name: str = NAME, variant: str | None = None) -> str | None:
    """Why the weights in a model's folder cannot be read, and what to do; None if they are whole.

    name, variant: as in `weight_files`.
    """
    try:
        files = weight_files(folder, name, variant)
        problems = (_problem(path) for path in files)
        return next(filter(None, problems), None) if files else _absent(folder, name)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"


def _parts(index: Path) -> Iterator[str]:
    try:
        yield from foreign_json.read(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index} is damaged: it lists no files of weights; {AGAIN}") from None


def _absent(folder: Path, name: str) -> str:
    """Why there are no files of weights with the usual names."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    others = [each for each in names if each.endswith((".safetensors", ".gguf"))]
    stem = name.removesuffix(".safetensors")
    variants = [each.removeprefix(stem).split(".")[1] for each in others if each.startswith(stem)]
    if variants and variants[0] != "safetensors":
        variant = variants[0].partition("-")[0]
        return f"there is no {name}, only that of a variant (policy.loading.variant: {variant})"
    if others:
        return f"expected its weights in {name}, found {', '.join(others[:3])}"
    if any(each.endswith(PICKLES) for each in names):
        return PICKLED
    return f"it has no weights: there is no {name} in {folder}"


def _problem(path: Path) -> str | None:
    """Why a safetensors file cannot be read; None if it is as long as its header says."""
    if not path.is_file():
        return f"{path} is missing, which the index of its weights names; {AGAIN}"
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if POINTER.startswith(start) and start:
            return f"{path} is a pointer of Git LFS: run `git lfs pull` in the folder of the model"
        length = int.from_bytes(start, "little")
        header = file.read(length) if length <= MOST_HEADER else b""
    begins = length <= MOST_HEADER and b"{".startswith(header[:1])
    if size < 8 or (begins and len(header) < length):
        return f"{path} is cut off: it has {size:,} bytes; {AGAIN}"
    expected = _end(header)
    if expected is None:
        return f"{path} is no safetensors file, or it is damaged; {AGAIN}"
    if size == 8 + length + expected:
        return None
    what = "is cut off" if size < 8 + length + expected else "is too long"
    return f"{path} {what}: it has {size:,} of {8 + length + expected:,} bytes; {AGAIN}"


def _end(header: bytes) -> int | None:
    """The length of the tensors after a header in bytes; None if it is not one."""
    try:
        tensors: dict[str, Any] = foreign_json.read(header)
        ends = [t["data_offsets"][1] for name, t in tensors.items() if name != "__metadata__"]
        return max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
