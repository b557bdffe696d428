"""Rubrics: files in YAML and Markdown, and one sentence for each mistake in them."""

import pytest

from groupwise_judge.grading import Judge
from groupwise_judge.rubric import Aspect, Rubric, read

MARKDOWN = """\
# Answers to customers

The shop sells bicycles.

## correct (0 to 10, weight 2.5)

Whether the facts are right:

- 0: wrong
- 10: right

## polite

Whether a customer would feel welcome.
"""
YAML = """\
introduction: "# Answers to customers\\n\\nThe shop sells bicycles."
aspects:
  - name: correct
    description: "Whether the facts are right:\\n\\n- 0: wrong\\n- 10: right"
    scale: [0, 10]
    weight: 2.5
  - name: polite
    description: Whether a customer would feel welcome.
"""


def test_markdown_and_yaml_say_the_same(tmp_path):
    (tmp_path / "rubric.md").write_text(MARKDOWN, encoding="utf-8")
    (tmp_path / "rubric.yaml").write_text(YAML, encoding="utf-8")
    rubric = read(str(tmp_path / "rubric.md"))
    assert rubric == read(str(tmp_path / "rubric.yaml"))
    assert [(a.name, a.scale, a.weight) for a in rubric.aspects] == [
        ("correct", (0, 10), 2.5),
        ("polite", (1, 5), 1.0),
    ]


def test_the_value_is_the_weighted_mean_of_the_shares_of_each_scale():
    aspects = [
        Aspect(name="correct", description="c", scale=(0, 10), weight=3),
        Aspect(name="polite", description="p", scale=(1, 5)),
    ]
    rubric = Rubric(aspects=aspects)
    assert rubric.value({"correct": 5, "polite": 5}) == pytest.approx((3 * 0.5 + 1.0) / 4)
    assert rubric.value({"correct": 0, "polite": 1}) == 0.0


def test_own_rubrics_have_names_and_gedits_mean_is_geometric():
    gedit, four = read("gedit"), read("edit_four")
    assert [aspect.scale for aspect in four.aspects] == [(1, 4)] * 4
    names = [aspect.name for aspect in gedit.aspects]
    assert names == ["semantic_consistency", "perceptual_quality"]
    for scores, expected in {(8, 2): 0.4, (10, 10): 1.0, (0, 10): 0.0}.items():
        assert gedit.value(dict(zip(names, scores, strict=True))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rubric.md", "Be nice.", "has no aspects: expected headings"),
        ("rubric.md", "## nice (from 1)\nx", "expected a heading such as"),
        ("rubric.md", "## nice (5 to 1)\nx", r"a lower and a higher integer.* found \[5, 1\]"),
        ("rubric.md", "## nice\n\n## kind\nx", "aspects.0.description: String should have"),
        ("rubric.md", "## a\nx\n## a\ny", "the aspect 'a' occurs twice"),
        ("rubric.md", "## reasoning\nx", "cannot be named 'reasoning'"),
        ("rubric.yaml", "aspects: [", "is not valid YAML"),
        ("rubric.yaml", "aspects: []", "aspects: List should have at least 1"),
        ("rubric.yaml", "- a", "should be a valid dictionary"),
        ("rubric.yaml", "aspects: [{name: a, description: b, wieght: 1}]", "wieght: Extra inputs"),
        ("rubric.yaml", "aspects: [{name: a, description: b, weight: 0}]", "greater than 0"),
        ("rubric.yaml", "aspects: [{name: a, description: b, scale: [0, 1000]}]", "at most 100 ap"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        read(str(tmp_path / name))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(ValueError, match=r"the rubric 'no\.md' cannot be read"):
        Judge(Judge.Config(server="http://localhost/v1", model="m", rubric="no.md"))
