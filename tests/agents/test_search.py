"""The tool `search`: passages of a folder of texts."""

import asyncio
import json
from pathlib import Path

import pytest

from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise_agents.search import Passages, SearchConfig
from groupwise_agents.tool import Tool
from groupwise_agents.tools import Tools

pytest.importorskip("bm25s")
TEXTS = {
    "kenya.txt": "Nairobi is the capital of Kenya.",
    "norway.md": "Oslo is the capital of Norway.\n\nBergen is a port in Norway.",
    "animals/cats.txt": "Cats sleep.\n\n" + "purr " * 12,
    "picture.png": "Oslo",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in TEXTS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path


def searched(folder, query, **options):
    return Passages(SearchConfig(folder=str(folder), **options)).search(query)


def test_the_passages_that_fit_best_are_returned_with_their_titles(folder):
    options = {"words": 6, "results": 2}
    assert searched(folder, "capital of Norway", **options).splitlines()[0] == (
        "(1) norway: Oslo is the capital of Norway."
    )
    assert searched(folder, "BERGEN?", **options) == "(1) norway: Bergen is a port in Norway."
    assert searched(folder, "kenya", words=6) == "(1) kenya: Nairobi is the capital of Kenya."
    assert searched(folder, "cats", **options) == (  # a title is searched, too
        "(1) animals/cats: Cats sleep.\n\n(2) animals/cats: purr purr purr purr purr purr"
    )


@pytest.mark.parametrize("query", ["", "?", "zebra", "\x00", "a" * 100_000, "\ud800"])
def test_a_search_without_a_result_says_so(folder, query):
    assert searched(folder, query) == "nothing was found"


def test_paragraphs_are_joined_and_cut_to_so_many_words(folder):
    whole = searched(folder, "Bergen")
    assert whole == "(1) norway: Oslo is the capital of Norway. Bergen is a port in Norway."
    assert searched(folder, "sleep", words=1) == "(1) animals/cats: sleep."


def test_the_environment_has_the_tool(folder):
    environment = Tools(Tools.Config(search={"folder": str(folder)}))
    (schema,) = environment.toolbox.schemas
    assert schema["function"]["name"] == "search"
    assert list(schema["function"]["parameters"]["properties"]) == ["query"]
    tool = Tool.of(Passages(SearchConfig(folder=str(folder))).search)
    assert asyncio.run(tool(query="Nairobi")).startswith("(1) kenya: ")


def test_a_folder_without_texts_is_refused(folder, tmp_path_factory):
    with pytest.raises(ValueError, match="no such file or folder"):
        searched(folder / "away", "Oslo")
    for path in (tmp_path_factory.mktemp("empty"), folder / "kenya.txt"):
        with pytest.raises(UserError, match=r"expected texts, .txt or .md, in .*, found none"):
            searched(path, "Oslo")
    (folder / "latin.txt").write_bytes("Málaga".encode("cp1252"))
    with pytest.raises(UserError, match=r"expected UTF-8 in .*latin.txt, found other bytes"):
        searched(folder, "Oslo")


RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


def test_the_texts_of_the_recipe_hold_the_answers_to_its_questions():
    """A search for the question finds those that take one search, and seldom the others."""
    rows = map(json.loads, (RECIPES / "islands.jsonl").read_text("utf-8").splitlines())
    environment = load_config(RECIPES / "qwen3_search.yaml", []).config.environment
    found = [
        any(
            answer in searched(RECIPES / environment.search["folder"], row["question"])
            for answer in row["answers"]
        )
        for row in rows
    ]
    assert [sum(found[kind::7]) for kind in range(5)] == [16] * 5
    assert all(sum(found[kind::7]) < 8 for kind in (5, 6))


def test_a_folder_is_relative_to_the_configuration(folder, monkeypatch):
    config = Tools.Config.model_validate(
        {"search": {"folder": "animals"}}, context={"folder": str(folder)}
    )
    assert config.search.folder == str(folder / "animals")
