"""Objects of other libraries in the place of plugins, and of their options."""

import pytest

import groupwise
from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.registry import Registry

ROWS = [{"question": f"question {number}", "id": number, "more": [number]} for number in range(8)]


@pytest.fixture(params=["frame", "dataset", "splits"])
def table(request):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(ROWS)
    if request.param == "splits":
        return datasets.DatasetDict({"train": data, "test": data.select(range(2))})
    return data.to_pandas() if request.param == "frame" else data


def run(lab, folder, prompts, **options):
    return groupwise.train(
        policy=lab.Tabular(),
        prompts=prompts,
        rewards=[lab.ones],
        evaluation={"prompts": 0},
        output=folder,
        quiet=True,
        **{"train": {"steps": 2, "groups_per_step": 2, "group_size": 4}, **options},
    )


def test_a_table_gives_the_run_of_its_rows(lab, tmp_path, table):
    rows = [{**row, "prompt": row["question"]} for row in ROWS]
    plain = run(lab, tmp_path / "rows", rows)
    tabled = run(lab, tmp_path / "table", {"name": table, "prompt": "question"})
    assert [row["reward"] for row in plain.metrics] == [row["reward"] for row in tabled.metrics]
    config = (tmp_path / "table" / "config.yaml").read_text()
    assert f"path: <{type(table).__name__}>" in config
    # It goes on in Python with the same data, and only there.
    again = run(
        lab,
        tmp_path / "table",
        {"name": table, "prompt": "question"},
        resume=True,
        train={"steps": 3, "groups_per_step": 2, "group_size": 4},
    )
    assert again.steps == 3
    with pytest.raises(UserError, match=r"Python objects for policy, prompts\.path, rewards\.0"):
        groupwise.train(tmp_path / "table" / "config.yaml", resume=True)


def test_a_table_lacks_a_split_or_a_column(lab, tmp_path, table):
    with pytest.raises(UserError, match="no column 'prompt'"):
        run(lab, tmp_path / "run", table)
    if type(table).__name__ == "DatasetDict":
        with pytest.raises(UserError, match=r"no split 'dev' \(it has train, test"):
            run(lab, tmp_path / "run", {"name": table, "prompt": "question", "split": "dev"})


def test_objects_are_known_by_their_class_and_set_aside(monkeypatch):
    """Also one of a subclass, in a section of a file that goes on to hold."""

    class Frame:
        __module__, __qualname__ = "pandas", "DataFrame"

    class Own(Frame):
        pass

    own = Own()
    given = {"policy": "tabular", "prompts": {"name": "dataset", "path": "x"}, "rewards": ["ones"]}
    loaded = load_config({**given, "prompts": {"name": own, "prompt": "q"}})
    assert loaded.config.prompts.name == "dataset"
    assert loaded.config.prompts.options == {"prompt": "q", "path": "<Own>"}
    assert loaded.objects == {("prompts", "path"): own}
    over = load_config(given, {"prompts": own, "prompts.prompt": "q"})
    assert over.config.prompts.options == {"prompt": "q", "path": "<Own>"}
    assert over.objects == {("prompts", "path"): own}
    assert load_config(given, {"prompts": own, "prompts.path": "y"}).objects == {}
    assert Registry().stands_for(own) is None
