"""The generated tables of the documentation are up to date."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from groupwise.registry import installed

ROOT = Path(__file__).parents[1]


@pytest.fixture
def generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """generate(script, page) -> what the script defines, after it has rewritten a copy of the page,
    which must not change."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "tables")

    def generate(script: str, page: str) -> dict[str, Any]:
        text = (ROOT / page).read_text(encoding="utf-8")
        (tmp_path / "page.md").write_text(text, encoding="utf-8")
        monkeypatch.setattr("sys.argv", [script, str(tmp_path / "page.md")])
        defined = runpy.run_path(str(ROOT / script), run_name="__main__")
        unchanged = (tmp_path / "page.md").read_text(encoding="utf-8") == text
        assert unchanged, f"run: python {script} {page}"
        return defined

    return generate


def test_every_key_has_a_description_and_the_generated_page_is_up_to_date(generate: Any) -> None:
    tables = generate("docs/tables/options.py", "docs/configuration.md")["TABLES"]
    for model in tables.values():
        assert all(info.description for info in model.model_fields.values()), model
    assert tables.keys() >= {"The top level", "`train`"}


def test_each_script_is_told_to_write_the_page_that_has_its_table() -> None:
    for script in (ROOT / "docs" / "tables").glob("*.py"):
        own = f"docs/tables/{script.name}"
        told = re.findall(rf"python {own} (\S+\.md)", script.read_text(encoding="utf-8"))
        pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        made = [page for page in pages if f"made by python {own} -->" in page.read_text("utf-8")]
        assert {ROOT / page for page in told} == {*made}, script


def test_the_table_of_algorithms_is_up_to_date(generate: Any) -> None:
    table = generate("docs/tables/algorithms.py", "docs/algorithms.md")["table"]()
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    entries = [entry for entry in installed().entries if entry.kind == "algorithms"]
    expected = {entry.name for entry in entries if entry.distribution == "groupwise"}
    assert {row[0].split("`")[1] for row in rows} == expected
    for name, summary, formula, averaged, source in rows:
        assert (ROOT / "docs" / name.split("(")[1].rstrip(")")).exists()
        assert (summary[-1], bool(averaged)) == (".", True)
        assert " = " in formula
        assert "arxiv.org" in source or "`bnpo`" in name, (  # from TRL, without a paper
            f"{name}: its class's docstring names the paper that it is from, as arXiv:2402.03300"
        )


def test_the_tables_of_other_frameworks_are_up_to_date(generate: Any) -> None:
    tables = generate("docs/tables/porting.py", "docs/porting.md")["tables"]()
    for title in ("## From TRL 1.16", "## From flow_grpo"):
        assert title in tables
    for row in tables.splitlines():
        assert not row.startswith("| `") or row.count("|") == 4, row


def test_the_table_of_rewards_is_up_to_date(generate: Any) -> None:
    table = generate("docs/tables/rewards.py", "docs/rewards.md")["table"]()
    entries = [entry for entry in installed().entries if entry.kind == "rewards"]
    for entry in entries:
        if entry.distribution == "groupwise":
            assert f"`{entry.name}`" in table


def test_the_table_of_parts_is_up_to_date(generate: Any) -> None:
    table = generate("docs/tables/parts.py", "docs/plugins.md")["table"]()
    assert "| `Clipped` |" in table


@pytest.mark.slow
def test_the_table_of_the_audit_is_up_to_date(generate: Any) -> None:
    """The audit finds what is wrong in published rewards, and pays gold in all."""
    audits = dict(generate("docs/tables/audits.py", "docs/audit.md")["AUDITS"])
    found = {tried.reward: {each.kind for each in tried.findings} for tried in audits.values()}
    assert len(found) == 10
    assert not any("gold" in kinds for kinds in found.values())
    assert [name for name, kinds in found.items() if not kinds] == [
        *("last_number", "after_hashes", "same_text", "similar")
    ]
    assert found["exits_with_0"] >= {"a program that exits", "a program that overrides equality"}
    assert found["lines_agree"] == {"a program that prints half of the output"}


def test_a_page_without_a_generated_part_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tables")
    (tmp_path / "page.md").write_text("# Other", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "page.md")])
    with pytest.raises(SystemExit, match=r"page\.md has no lines <!-- begin"):
        runpy.run_path(str(ROOT / "docs/tables/algorithms.py"), run_name="__main__")
