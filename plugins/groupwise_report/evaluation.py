"""One evaluation as a page: its metrics, and completions with their rewards."""

from pathlib import Path

from groupwise.storage.files import EVALUATED
from groupwise_report.comparison import MOST_PROMPTS, compare
from groupwise_report.document import document, section
from groupwise_report.gallery import MOST_PICTURED
from groupwise_report.page import configuration
from groupwise_report.run_data import RunData, named_accuracy, read_lines, read_text
from groupwise_report.tiles import tiles
from groupwise_report.wording import brief, number


def page(folder: Path) -> str:
    """The whole page of the evaluation in a folder."""
    evaluation = _read(folder)
    title = f"{evaluation.result.get('run', '')}, step {evaluation.last_step}"
    sections = (
        _header(evaluation, title),
        tiles(evaluation),
        _completions(evaluation),
        configuration(evaluation),
    )
    return document(title, sections, last_step=evaluation.last_step)


def _read(folder: Path) -> RunData:
    """The evaluation as a run with one step, that of the evaluation."""
    results, _ = read_lines(folder / "result.json", whole=True)
    result = results[0] if results else {}
    metrics, step = result.get("metrics"), number(result.get("step"))
    row = {f"evaluation/{k}": v for k, v in metrics.items()} if isinstance(metrics, dict) else {}
    samples, unreadable = read_lines(folder / EVALUATED)
    return RunData(
        folder=folder,
        config=read_text(folder / "config.yaml"),
        steps={int(step or 0): row},
        result=result,
        samples={"after": samples},
        unreadable=unreadable,
        accuracy=named_accuracy(result),
    )


def _header(evaluation: RunData, title: str) -> str:
    row = evaluation.steps[evaluation.last_step]
    summary = [f"{number(row.get('evaluation/prompts')) or 0:.0f} prompts"]
    source = evaluation.result.get("prompts")
    summary += [f"from {brief(source)}"] if source else []
    policy = evaluation.configured("policy")
    summary += [f"policy {brief(policy)}"] if policy else []  # "" in a run of several policies
    line = f'<p class="summary">{" · ".join(summary)}</p>'
    return f"<header><h1>Evaluation of {brief(title)}</h1>{line}</header>"


def _completions(evaluation: RunData) -> str:
    samples = evaluation.samples["after"]
    most = MOST_PICTURED if any(sample.get("image") for sample in samples) else MOST_PROMPTS
    intro = (
        f"The first {most} prompts at most, one completion each: the greedy one, or the first "
        f"that was sampled. All {len(samples):,} are in {EVALUATED}."
    )
    shown = compare(evaluation.folder, [], samples, names=("", "Completion"))
    return section("Completions", intro, shown)
