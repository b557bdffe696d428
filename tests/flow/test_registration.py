"""The adapter of a pipeline: the one registered for its class, or the one that is configured."""

import pytest

from groupwise.kit.errors import UserError
from groupwise.registry import Entry, Registry, installed
from groupwise_flow import named_adapter
from groupwise_flow.adapters.flux import FluxAdapter
from groupwise_flow.adapters.sd3 import SD3Adapter
from groupwise_flow.files import folder


class Mine(SD3Adapter):
    targets = ("attn.to_q",)


def entry(name, target, plugin="mine"):
    return Entry(
        kind="adapters", name=name, target=target, extra=None, plugin=plugin, distribution="mine"
    )


@pytest.fixture
def registered(monkeypatch):
    """registered(*entries) makes these the only registered adapters."""

    def register(*entries):
        registry = Registry(entries=list(entries), failures={"broken": "ImportError: no voice"})
        for module in (folder, named_adapter):
            monkeypatch.setattr(module, "installed", lambda: registry)

    return register


def test_the_plugins_own_adapters_are_registered():
    entries = [entry for entry in installed().entries if entry.kind == "adapters"]
    assert {(entry.name, entry.plugin) for entry in entries} >= {
        ("StableDiffusion3Pipeline", "flow"),
        ("FluxPipeline", "flow"),
        ("StableDiffusionPipeline", "flow"),
        ("StableDiffusionXLPipeline", "flow"),
    }


def test_a_pipeline_gets_the_adapter_of_its_class(lab, registered, monkeypatch):
    assert type(lab.policy("sd3").adapter) is SD3Adapter
    assert type(lab.policy("flux").adapter) is FluxAdapter
    monkeypatch.setattr("groupwise_flow.adapters.sd3.Mine", Mine, raising=False)
    registered(entry("StableDiffusion3Pipeline", "groupwise_flow.adapters.sd3:Mine"))
    assert type(lab.policy("sd3").adapter) is Mine


def test_two_adapters_for_a_class_must_be_chosen_by_plugin(lab, registered):
    one = entry("FluxPipeline", "groupwise_flow.adapters.flux:FluxAdapter", plugin="one")
    registered(one, entry("FluxPipeline", "groupwise_flow.adapters.flux:FluxAdapter", plugin="two"))
    with pytest.raises(UserError, match="'FluxPipeline' is registered twice"):
        lab.policy("flux")
    assert type(lab.policy("flux", adapter="two/FluxPipeline").adapter) is FluxAdapter


def test_a_pipeline_without_an_adapter_is_refused(lab, registered):
    registered(entry("FluxPipeline", "groupwise_flow.adapters.flux:FluxAdapter"))
    message = (
        r"policy\.model: no adapter for StableDiffusion3Pipeline; registered are adapters for "
        r"FluxPipeline \(could not be loaded: plugin 'broken': ImportError: no voice\)\. Write "
        r"your own as docs/plugins\.md shows, and set policy\.adapter"
    )
    with pytest.raises(UserError, match=message):
        lab.policy("sd3")


def test_an_adapter_for_another_pipeline_is_refused(lab):
    for adapter in ("FluxPipeline", FluxAdapter):
        with pytest.raises(
            UserError, match=r"policy\.adapter: FluxAdapter is for FluxPipeline, .* holds a Stable"
        ):
            lab.policy("sd3", adapter=adapter)


@pytest.mark.parametrize("value", ["groupwise_flow.sde:step", "groupwise_flow.sde:SdeStep", 3])
def test_values_that_are_not_adapters_are_refused(lab, value):
    with pytest.raises(
        ValueError, match=r"expected a subclass of groupwise_flow\.adapter\.Adapter"
    ):
        lab.settings(adapter=value)
