"""The tables of docs/scaling.md; each is between two comments of the page, which name it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from pathlib import Path

import machines
import published
import sizes
import steps
from machines import GB, GIB, H100
from models import Image
from steps import ImageBatch, Step, TextBatch

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
TENSOR = {"Qwen2.5-7B": 1, "Qwen2.5-32B": 2}
"""GPUs of an engine."""
PICTURES = {
    "FLUX.1-dev": ImageBatch(together=sizes.PICTURES),
    "Qwen-Image": ImageBatch(together=sizes.PICTURES, guided=True),
}
TEXT = TextBatch()
SCALES = (8, 16, 32, 64, 128, 512)


def rewritten(page: str) -> str:
    """The page with its tables calculated again."""
    return MARKED.sub(lambda part: f"{part[1]}{TABLES[part[2]]()}\n{part[3]}", page)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _image(name: str) -> Image:
    return sizes.image(name, *sizes.IMAGES[name])


# ---- assumptions


def assumptions() -> str:
    return table(["what", "taken as", "source"], machines.ASSUMPTIONS)


def sized() -> str:
    rows = []
    for name in sizes.TEXTS:
        model = sizes.text(name)
        work, cached = model.forward(1, 0) / GB, model.cached / 1024
        rows.append([name, f"{model.weights / GB:.2f}", f"{work:.1f} a token", f"{cached:.0f} KiB"])
    for name, (side, prompt) in sizes.IMAGES.items():
        model = _image(name)
        work = f"{model.flops / GB:,.0f} an image of {side}x{side} with {prompt} tokens"
        rows.append([name, f"{model.weights / GB:.2f}", work, ""])
    return table(["model", "10⁹ weights", "GFLOP of a forward pass", "cache of a token"], rows)


# ---- memory


def memory() -> str:
    rows = []
    for how in sizes.HOW:
        for name in (*sizes.TEXTS, *sizes.IMAGES):
            views = {"": ("updating", "sampling")}
            if name in sizes.TEXTS:
                views = {", an engine samples": ("updating",), ", samples itself": views[""]}
            for text, phases in views.items():
                cells = [_most(sizes.of(name, how, gpus), phases) for gpus in sizes.GPUS]
                rows.append([f"{name}, {how}{text}", *cells])
    return table(["GiB on each of", *(f"{n} GPU{'s' * (n > 1)}" for n in sizes.GPUS)], rows)


def _most(phase_sizes: sizes.Sizes, phases: Iterable[str]) -> str:
    most = max(sum(phase_sizes[phase].values()) for phase in phases)
    text = f"{most / GIB:,.0f}"
    return f"**{text}**" if most < 0.9 * H100.memory else text


def purposes() -> str:
    names = [*sizes.TEXTS, *sizes.IMAGES]
    columns = {
        f"{name}, {how}": {
            **sizes.of(name, how, 8)["sampling"],
            **sizes.of(name, how, 8)["updating"],
        }
        for name in names
        for how in sizes.HOW
    }
    order = dict.fromkeys(purpose for column in columns.values() for purpose in column)
    rows = [
        [purpose, *(_gib(column.get(purpose)) for column in columns.values())] for purpose in order
    ]
    return table(["GiB on each of 8 GPUs", *columns], rows)


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.1f}"


# ---- traffic


def _unit(name: str) -> tuple[int, int, float, str]:
    """(weights, blocks, FLOPs of a forward pass of one thing, its name)."""
    if name in sizes.TEXTS:
        model = sizes.text(name)
        context = (TEXT.prompt + TEXT.mean) / 2
        return model.weights, model.layers, model.forward(1, context), "tokens"
    picture = _image(name)
    return picture.weights, picture.blocks, picture.flops, "images"


def _achieved(name: str) -> float:
    return (machines.TRAINING if name in sizes.TEXTS else machines.IMAGES) * H100.flops


def _cases() -> list[tuple[str, str]]:
    return [(name, how) for name in (*sizes.TEXTS, *sizes.IMAGES) for how in sizes.HOW]


def traffic() -> str:
    rows = []
    for name, how in _cases():
        weights, blocks, one, unit = _unit(name)
        lora = how == "LoRA"
        received = (2 * steps.HALF + (0 if lora else steps.FULL)) * weights
        count = sizes.TOKENS if name in sizes.TEXTS else sizes.PICTURES
        work = (3 if lora else 4) * count * one / _achieved(name)
        seconds = [
            f"{steps.of_pass(weights, blocks, gpus, H100, lora=lora):.2f}" for gpus in (8, 64, 512)
        ]
        rows.append(
            [f"{name}, {how}", f"{received / GB:.0f}", *seconds, f"{work:.1f} ({count:,} {unit})"]
        )
    head = ["a micro-batch", "GB received", "s, 8 GPUs", "s, 64", "s, 512", "s of its passes"]
    return table(head, rows)


def microbatch() -> str:
    rates = (3200, 800, 400, 100)
    rows = []
    for name, how in _cases():
        weights, blocks, one, unit = _unit(name)
        lora = how == "LoRA"
        work = (3 if lora else 4) * one / _achieved(name)
        cells = []
        for rate in rates:
            machine = steps.with_network(rate)
            needed = steps.of_pass(weights, blocks, 64, machine, lora=lora) / work
            cells.append(f"{ceil(needed):,}")
        rows.append([f"{name}, {how}, {unit}", *cells])
    return table(["64 GPUs, Gb/s of a node", *map(str, rates)], rows)


def hybrid() -> str:
    rates = (3200, 800, 400, 100)
    rows = []
    for name in (*sizes.TEXTS, *sizes.IMAGES):
        weights, blocks, *_ = _unit(name)
        every = [
            steps.of_pass(weights, blocks, 64, steps.with_network(rate), lora=False)
            for rate in rates
        ]
        within = steps.of_pass(weights, blocks, machines.NODE, H100, lora=False)
        once = [steps.between_nodes(weights, steps.with_network(rate)) for rate in rates]
        for what, seconds in {
            "`true`, a micro-batch": every,
            "`node`, a micro-batch": [within] * len(rates),
            "`node`, an update": once,
        }.items():
            rows.append([f"{name}, {what}", *(f"{each:.2f}" for each in seconds)])
    return table(["s on 64 GPUs, Gb/s of a node", *map(str, rates)], rows)


def sync() -> str:
    rows = []
    for name in sizes.TEXTS:
        model = sizes.text(name)
        seconds = steps.sync(model.weights)
        shares = [f"{seconds / _text_step(name, gpus).seconds:.1%}" for gpus in (8, 64, 512)]
        rows.append([name, f"{steps.HALF * model.weights / GB:.0f}", f"{seconds:.1f}", *shares])
    head = ["model", "GB", "s", "of a step, 8 GPUs", "64 GPUs", "512 GPUs"]
    return table(head, rows)


# ---- sampling


def sampling() -> str:
    counts = (1, 8, 32, 128, 256)
    rows = []
    for name in sizes.TEXTS:
        model, gpus = sizes.text(name), TENSOR[name]
        rates = [n / steps.decode(model, n, 1000, gpus=gpus) / gpus for n in counts]
        engine = f"{name}, engine of {gpus} GPU{'s' * (gpus > 1)}"
        rows.append([engine, *(f"{rate:,.0f}" for rate in rates)])
    return table(["tokens a second and GPU, sequences at once:", *map(str, counts)], rows)


def pictures() -> str:
    rows = []
    for name, batch in PICTURES.items():
        model = _image(name)
        branches = 2 if batch.guided else 1
        alone = machines.IMAGES * H100.flops / (branches * batch.steps * model.flops)
        cells = []
        for together in (1, 8):
            once = steps.gather(model.weights, model.blocks, 64)
            one = together * model.flops / (machines.IMAGES * H100.flops)
            cells.append(f"{alone * min(1.0, one / once):.2f}")
        what = f"{name}, {batch.steps} steps{', guided' if batch.guided else ''}"
        rows.append([what, f"{alone:.2f}", *cells])
    head = [
        "images a second and GPU",
        "whole on each",
        "sharded, 1 at once",
        "sharded, 8 at once",
    ]
    return table(head, rows)


# ---- steps


def _text_step(name: str, gpus: int, *, lora: bool = False) -> Step:
    return steps.text_step(sizes.text(name), TEXT, gpus=gpus, tensor=TENSOR[name], lora=lora)


def _image_step(name: str, gpus: int, *, lora: bool = False) -> Step:
    batch = PICTURES[name]
    return steps.image_step(_image(name), batch, gpus=gpus, lora=lora, shard=not lora)


def _anatomy(names: Iterable[str], step: Callable[..., Step], *, lora: bool) -> str:
    rows = []
    for name in names:
        first = 8 * step(name, 8, lora=lora).seconds
        for gpus in SCALES:
            of = step(name, gpus, lora=lora)
            parts = [of.sampling, of.rewards, of.passes, of.gathers, of.sync]
            ideal = f"{first / gpus / of.seconds:.0%}"
            rows.append(
                [name, gpus, *(f"{part:.1f}" for part in parts), f"{of.seconds:.0f}", ideal]
            )
    head = ["model", "GPUs", "sampling", "rewards", "passes", "gathers", "sync", "s a step"]
    return table([*head, "of 8 GPUs' efficiency"], rows)


def text_steps() -> str:
    return _anatomy(sizes.TEXTS, _text_step, lora=False)


def image_steps() -> str:
    return _anatomy(sizes.IMAGES, _image_step, lora=False)


def lora_steps() -> str:
    """A step with adapters, compared with one in which all weights are trained."""
    rows = []
    for name, step in [
        *((name, _text_step) for name in sizes.TEXTS),
        *((name, _image_step) for name in sizes.IMAGES),
    ]:
        for gpus in (8, 64):
            full, lora = step(name, gpus).seconds, step(name, gpus, lora=True).seconds
            rows.append([name, gpus, f"{full:.0f}", f"{lora:.0f}", f"{full / lora:.2f}"])
    return table(["model", "GPUs", "full, s", "LoRA, s", "times as fast"], rows)


# ---- published


def _comparison(rows: Iterable[published.Row]) -> str:
    lines = [
        [row.what, row.source, _figure(row.published), _figure(row.predicted), f"{row.ratio:.2f}"]
        for row in rows
    ]
    return table(["what", "source", "published", "predicted", "predicted / published"], lines)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def runs() -> str:
    return _comparison(published.runs(sizes.text, sizes.image))


def engines() -> str:
    return _comparison(published.engines(sizes.text, sizes.image))


TABLES: Mapping[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        assumptions,
        sized,
        memory,
        purposes,
        traffic,
        microbatch,
        hybrid,
        sync,
        sampling,
        pictures,
        text_steps,
        image_steps,
        lora_steps,
        runs,
        engines,
    )
}
