"""One evaluation as a page: its metrics, and completions with their rewards."""

from pathlib import Path

from groupwise.report.comparison import MOST_PROMPTS, compare
from groupwise.report.document import document, section, write_page
from groupwise.report.gallery import MOST_PICTURED
from groupwise.report.page import configuration
from groupwise.report.record import Record, read_lines, read_text
from groupwise.report.tiles import tiles
from groupwise.report.wording import brief, number

SAMPLES = "samples/evaluation.jsonl"


def write_evaluation(folder: Path) -> Path:
    """Write `report.html` of an evaluation from the files of its folder; return its path."""
    evaluation = _read(folder)
    title = f"{evaluation.result.get('run', '')}, step {evaluation.last_step}"
    sections = (
        _header(evaluation, title),
        tiles(evaluation),
        _completions(evaluation),
        configuration(evaluation),
    )
    page = document(title, sections, last_step=evaluation.last_step)
    return write_page(folder / "report.html", page)


def _read(folder: Path) -> Record:
    """The evaluation as the record of a run with one step, that of the evaluation."""
    results, _ = read_lines(folder / "result.json", whole=True)
    result = results[0] if results else {}
    metrics, step = result.get("metrics"), number(result.get("step"))
    row = {f"evaluation/{k}": v for k, v in metrics.items()} if isinstance(metrics, dict) else {}
    samples, unreadable = read_lines(folder / SAMPLES)
    return Record(
        folder=folder,
        config=read_text(folder / "config.yaml"),
        steps={int(step or 0): row},
        result=result,
        samples={"after": samples},
        unreadable=unreadable,
    )


def _header(evaluation: Record, title: str) -> str:
    row = evaluation.steps[evaluation.last_step]
    facts = [f"{number(row.get('evaluation/prompts')) or 0:.0f} prompts"]
    source = evaluation.result.get("prompts")
    facts += [f"from {brief(source)}"] if source else []
    policy = evaluation.configured("policy")
    facts += [f"policy {brief(policy)}"] if policy else []  # "" in a run of several policies
    summary = f'<p class="summary">{" · ".join(facts)}</p>'
    return f"<header><h1>Evaluation of {brief(title)}</h1>{summary}</header>"


def _completions(evaluation: Record) -> str:
    samples = evaluation.samples["after"]
    most = MOST_PICTURED if any(sample.get("image") for sample in samples) else MOST_PROMPTS
    intro = (
        f"The first {most} prompts at most, one completion each: the greedy one, or the first "
        f"that was sampled. All {len(samples):,} are in {SAMPLES}."
    )
    shown = compare(
        evaluation.folder, [], samples, names=("", "Completion"), writers=evaluation.writers
    )
    return section("Completions", intro, shown)
