"""The rows of `on_gpu.py`: which command measures what, and what it needs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TASKS = ("word_sums", "gsm_symbolic")
LONGEST = 7.0
"""Minutes of training in a row of the curve."""
PRECISIONS = {"arithmetic": ("float32", "bf16"), "shapes": ("float32", "bf16", "fp16")}
TEXT = ("transformers", "accelerate")
IMAGES = (*TEXT, "diffusers", "peft")


@dataclass(frozen=True)
class Setup:
    """out: folder of the results; smollm: folder of the model of the curve, as transformers saves
    it or as a GGUF file."""

    out: Path
    device: str
    toy: bool
    smollm: Path
    task: str
    curve_minutes: float

    @property
    def work(self) -> Path:
        return self.out / "work"


@dataclass(frozen=True, kw_only=True)
class Row:
    """command: of Python, printing an object of JSON as its last line; minutes: at most; needs:
    modules; blocked: why it cannot be measured."""

    piece: str
    name: str
    command: Sequence[str]
    minutes: float
    needs: Sequence[str] = ()
    blocked: str = ""


def rows(setup: Setup, pieces: Sequence[str]) -> list[Row]:
    """Those of the pieces, or of all, in their order; the machine is always the first."""
    chosen = set(pieces) | {"machine"} if pieces else set(PIECES)
    if set(pieces) == {"page"}:
        return []
    return [row for name, make in PIECES.items() if name in chosen for row in make(setup)]


def machine(setup: Setup) -> Iterator[Row]:
    size = ["--megabytes", "16"] if setup.toy else []
    command = [*script("decoding_cost.py", setup), "machine", *size]
    yield Row(piece="machine", name="machine", command=command, minutes=3)


def tests(setup: Setup) -> Iterator[Row]:
    """A row for each file that has tests marked `gpu`."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "pytest.mark.gpu" in path.read_text("utf-8"):
            name = str(path.relative_to(ROOT))
            command = [str(HERE / "gpu_tests.py"), name]
            yield Row(piece="tests", name=name, command=command, minutes=9, needs=("pytest",))
            if setup.toy:
                return


def decoding(setup: Setup) -> Iterator[Row]:
    work, steps = ("tiny L", "2") if setup.toy else ("L", "3")
    models = ["--models", str(setup.work / "models")]
    sides = {
        "trl": ("trl", "datasets"),
        "trl in bf16": ("trl", "datasets"),
        "ours": TEXT,
        "ours without graphs": TEXT,
        "model alone": TEXT,
    }
    for side, needs in sides.items():
        command = [*script("against_trl.py", setup), work, "--side", side, "--steps", steps]
        command += models
        yield Row(piece="decoding", name=side, command=command, minutes=4, needs=needs)
    # The profiler takes long over the launches of many eager tokens.
    eager = ["--eager", "--tokens", "64"]
    for name, more in {"launches": [], "launches without graphs": eager}.items():
        command = [*script("decoding_cost.py", setup), "launches", work, *models, *more]
        command += ["--tokens", "4"] if setup.toy else []
        yield Row(piece="decoding", name=name, command=command, minutes=4, needs=TEXT)


def curve(setup: Setup) -> Iterator[Row]:
    """Both sides in turns, each going on from where it stopped."""
    parts = 2 if setup.toy else math.ceil(setup.curve_minutes / LONGEST)
    total = 0.1 if setup.toy else setup.curve_minutes
    absent = ""
    if not (setup.toy or setup.smollm.is_dir()):
        absent = f"no folder {setup.smollm}: run `python examples/get_smollm.py` or set --smollm"
    unpacking = ("gguf",) if any(setup.smollm.glob("*.gguf")) and not setup.toy else ()
    common = ["--smollm", str(setup.smollm), "--task", setup.task, "--work", str(setup.work)]
    common += ["--toy"] if setup.toy else []
    for part in range(1, parts + 1):
        minutes = total * part / parts
        for side, needs in {"trl": ("trl", "datasets"), "ours": TEXT}.items():
            command = [*script("curve_trl.py", setup), side, *common, "--until", f"{minutes:g}"]
            yield Row(
                piece="curve",
                name=f"{side}, to minute {minutes:.3g}",
                command=[*command, "--points", str(setup.out / f"curve_{side}.jsonl")],
                minutes=total / parts + 2.5,
                needs=(*needs, *unpacking),
                blocked=absent,
            )


def images(setup: Setup) -> Iterator[Row]:
    small = ["--small"] if setup.toy else []
    for name in ("window", "window, recomputed", "published step", "without a path"):
        command = [str(HERE / "real_sizes.py"), "images", *small, "--row", name]
        command += ["--models", str(setup.work / "models")]
        yield Row(piece="images", name=name, command=command, minutes=5, needs=IMAGES)


def precisions(setup: Setup) -> Iterator[Row]:
    for example, names in PRECISIONS.items():
        needs = TEXT if example == "arithmetic" else IMAGES
        for precision in names:
            command = [str(HERE / "precisions.py"), example, precision]
            yield Row(
                piece="precisions",
                name=f"{example}, {precision}",
                command=[*command, *(["--toy"] if setup.toy else [])],
                minutes=3,
                needs=(*needs, "reasoning_gym") if example == "arithmetic" else needs,
            )


def script(name: str, setup: Setup) -> list[str]:
    return [str(HERE / name), "--device", setup.device]


PIECES = {
    "machine": machine,
    "tests": tests,
    "decoding": decoding,
    "curve": curve,
    "images": images,
    "precisions": precisions,
}
"""In the order of what counts most."""
