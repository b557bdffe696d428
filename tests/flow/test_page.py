"""docs/flow.md names every setting."""

from pathlib import Path

from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.policy import FlowPolicy

PAGE = Path(__file__).parents[2] / "docs" / "flow.md"


def test_the_page_names_every_setting():
    page = PAGE.read_text(encoding="utf-8")
    own = {"advantage_clip", "kl", "clip_low", "beta"}
    assert own <= FlowGRPO.Config.model_fields.keys()
    assert [
        name for name in {*FlowPolicy.Config.model_fields, *own} if f"`{name}" not in page
    ] == []
