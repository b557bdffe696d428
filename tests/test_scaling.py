"""The tables of docs/scaling.md are those of the calculation, with the current estimates."""

import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

CALCULATION = Path(__file__).parent / "benchmarks" / "scaling"
MODULES = ("machines", "models", "published", "sizes", "steps", "tables", "stream")


@pytest.fixture
def calculation(monkeypatch):
    """The modules of the calculation, by name."""
    monkeypatch.syspath_prepend(str(CALCULATION))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


def test_the_tables_of_the_page_are_up_to_date(calculation):
    tables = calculation["tables"]
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.rewritten(page) == page, f"run: python {CALCULATION}"
    assert all(f"<!-- table: {name} -->" in page for name in tables.TABLES)


def test_the_stored_sizes_are_those_of_the_estimators(calculation, monkeypatch):
    """Without the sizes that need runs of the model's code, which take minutes."""
    from groupwise_llm.estimates import memory

    without = SimpleNamespace(cache_argument=None)
    monkeypatch.setattr(memory, "without_data", lambda *_: nullcontext(without))
    monkeypatch.setattr(memory, "_update", lambda *_: {})
    monkeypatch.setattr(memory, "_copies", lambda *_, **__: {})
    sizes, name, training = calculation["sizes"], "Qwen2.5-7B", "full"
    ((_, current),) = sizes.text_sizes(name, training, (64,))
    stored = sizes.of(name, training, 64)
    for phase in ("sampling", "updating"):
        assert len(current[phase]) >= 5
        assert current[phase] == pytest.approx(
            {k: stored[phase][k] for k in current[phase]}, abs=64
        )


def test_a_batch_takes_less_time_on_more_hardware(calculation):
    """With more GPUs or a faster network, but never less than its longest completion takes."""
    machines, sizes, steps = (calculation[name] for name in ("machines", "sizes", "steps"))
    model, batch = sizes.text("Qwen2.5-7B"), steps.TextBatch()
    seconds = [steps.generation(model, batch, gpus=gpus) for gpus in (8, 64, 512)]
    minimum = batch.longest * steps.decode(model, 1, batch.prompt)
    assert seconds[0] > seconds[1] > seconds[2] > minimum
    slow, fast = (
        steps.of_pass(model.weights, model.layers, 64, steps.with_network(rate), lora=False)
        for rate in (100, 3200)
    )
    assert slow == pytest.approx(
        fast * machines.H100.gather(64) / steps.with_network(100).gather(64), rel=0.3
    )
    assert steps.of_pass(model.weights, model.layers, 1, machines.H100, lora=False) == 0


def test_exchanging_weights_in_flight_saves_what_stragglers_cost(calculation):
    stream, steps = calculation["stream"], calculation["steps"]
    batch = steps.TextBatch(groups=16, group_size=8)
    rates = stream.Rates.of("Qwen2.5-7B", batch)

    def simulated(ahead, in_flight):
        how = {"ahead": ahead, "in_flight": in_flight}
        simulation = stream.Simulation(rates, batch, engines=2, gpus=2, **how)
        return simulation.seconds(), simulation.staleness

    assert simulated(0, in_flight=True) == simulated(0, in_flight=False)
    before = simulated(0, in_flight=True)[0]
    for ahead in (1, 2, 4):
        seconds, ages = simulated(ahead, in_flight=True)
        assert seconds < min(before, simulated(ahead, in_flight=False)[0])
        assert sum(ages) / len(ages) == pytest.approx(ahead, rel=0.1)
        before = seconds


def test_every_published_figure_has_a_source(calculation):
    published, sizes = calculation["published"], calculation["sizes"]
    rows = [
        made
        for part in ("runs", "engines")
        for made in getattr(published, part)(sizes.text, sizes.image)
    ]
    assert all("](https://" in row.source for row in rows)
    assert len({row.source.split("]")[0] for row in rows}) >= 3
