"""What installed packages watch of completions of their class, without being named."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.core.test_watch import length, lines, train

from groupwise import registry
from groupwise.evaluation import Watch
from groupwise.evaluator import watches as module
from groupwise.evaluator.watches import DefaultWatches
from groupwise_messages.video import Video


class Sketch:
    """A completion of a class of its own; not text."""

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


@pytest.fixture
def watched(monkeypatch):
    """Watches of an installed package, by name."""

    def install(**watches):
        monkeypatch.setattr(module, "_installed", lambda: watches)

    return install


OF_TEXT = {"of": ("builtins.str",), "better": "lower"}


def test_it_is_measured_beside_rewards_and_raises_the_alarm(watched, lab, tmp_path):
    """The run makes completions longer."""
    watched(size=Watch(measure=len, tolerance=0.1, **OF_TEXT))
    result = train(lab, tmp_path, watch=[length])
    assert set(result.alarms) == {"size"}
    assert result.after["watch/size"] == result.after["watch/length"]
    for sample in lines(result, "samples/after.jsonl"):
        assert sample["watched"] == {"length": len(sample["completion"])} | {
            "size": len(sample["completion"])
        }
    assert [row["alarm/size"] for row in lines(result) if "alarm/size" in row] == [1.0, 1.0]
    assert "<h3>Watched</h3>" in (result.folder / "report.html").read_text()


def test_training_is_the_same_and_it_can_be_switched_off(watched, lab, tmp_path):
    watched(size=Watch(measure=len, **OF_TEXT))
    on = train(lab, tmp_path / "on")
    off = train(lab, tmp_path / "off", evaluation={"default_watches": False})
    assert on.policy.table.equal(off.policy.table)
    assert off.alarms == {}
    assert not any("watch/" in key or "alarm/" in key for row in lines(off) for key in row)


def test_it_applies_to_its_class_and_gives_way_to_a_reward_of_its_name(watched, lab, tmp_path):
    other = Watch(of=(f"{__name__}.Sketch",), measure=lambda sketch: len(sketch.text))
    watched(length=Watch(measure=lambda text: -1.0, **OF_TEXT), other=other)
    result = train(lab, tmp_path, watch=[length])
    assert result.after["watch/length"] > 0
    assert "watch/other" not in result.after
    assert not any("other" in key for row in lines(result) for key in row)
    shown = DefaultWatches([]).measured({"completion": Sketch("abc")})
    assert shown["watched"] == {"other": 3.0}

    class Drawn(Sketch):
        pass

    assert DefaultWatches([]).measured({"completion": Drawn("ab")})["watched"] == {"other": 2.0}
    failed = {"completion": Sketch("abc"), "failed": "no colour"}
    assert DefaultWatches([]).measured(failed) == failed


def test_a_measure_that_fails_is_noted_once_and_stops_nothing(watched, lab, tmp_path, capsys):
    def broken(text):
        raise RuntimeError("no room")

    watched(broken=Watch(measure=broken, **OF_TEXT))
    result = train(lab, tmp_path)
    assert result.alarms == {}
    assert capsys.readouterr().err.count("watch 'broken' failed: RuntimeError: no room") == 1
    assert math.isnan(result.after["watch/broken"])


def test_a_resumed_run_compares_with_its_first_evaluation(watched, lab, tmp_path):
    watched(size=Watch(measure=len, **OF_TEXT))
    through = train(lab, tmp_path / "through")
    train(lab, tmp_path / "cut", settings={"steps": 5})
    resumed = train(lab, tmp_path / "cut", resume=True)
    assert resumed.alarms == through.alarms
    assert set(resumed.alarms) == {"size"}


def test_every_registered_watch_is_one_and_imports_no_library_of_pictures():
    """So a run of texts pays nothing for those of pictures."""
    entries = [entry for entry in registry.installed().entries if entry.kind == "watches"]
    assert {entry.name for entry in entries} >= {"darkness", "edges", "color_entropy", "motion"}
    for entry in entries:
        assert isinstance(registry.target_of(entry), Watch)


# ---- films that become still


def film(symbols):
    """A disk on gray that moves right by a pixel of 32 for each symbol but the last."""
    y, x = np.mgrid[:32, :32] + 0.5
    speed = len(symbols) - 1
    inside = [np.hypot(x - 8 - speed * frame, y - 16) < 5 for frame in range(3)]
    gray = np.where(np.stack(inside)[..., None], 40, 200).astype(np.uint8)
    return Video(np.repeat(gray, 3, axis=-1))


@pytest.fixture
def filming(lab):
    class Filming(lab.Tabular):
        def sample(self, *args, **keywords):
            rollouts = super().sample(*args, **keywords)
            films = [film(symbols) for symbols in rollouts.facts["completion_ids"]]
            return replace(rollouts, completions=films)

    return Filming()


def likeness(completions):
    """What is published as consistency: 1 - the mean difference of successive frames, 0 to 1."""
    pixels = [each.pixels.astype(float) / 255 for each in completions]
    return [1 - float(np.abs(np.diff(each, axis=0)).mean()) for each in pixels]


@pytest.mark.slow
def test_a_run_that_pays_stillness_is_caught_by_the_alarm_and_by_no_other(filming, lab, tmp_path):
    """`motion` and the others are watched without being named."""
    result = train(lab, tmp_path, policy=filming, rewards=[likeness])
    assert result.after["reward"] > result.before["reward"]
    assert result.after["watch/motion"] < 0.6 * result.before["watch/motion"]
    assert set(result.alarms) == {"motion"}
    assert result.alarms["motion"].watched.fell(0.02)


@pytest.mark.slow
def test_no_alarm_where_films_move_more(filming, lab, tmp_path):
    def unlike(completions):
        return [-value for value in likeness(completions)]

    result = train(lab, tmp_path, policy=filming, rewards=[unlike])
    assert result.after["watch/motion"] > result.before["watch/motion"]
    assert result.alarms == {}
