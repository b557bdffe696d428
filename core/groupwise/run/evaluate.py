"""evaluate_run: evaluates a run's last checkpoint again, with the results in a new folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from groupwise.building.reports import build_reports
from groupwise.config.objects import Objects
from groupwise.evaluation import Evaluation
from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise.learning.trainer import unit
from groupwise.run.reopening import Reopened, reopened
from groupwise.storage import disk
from groupwise.storage.files import EVALUATED, RESULT
from groupwise.storage.metrics import as_json
from groupwise.storage.run_info import first_free, write_config
from groupwise.storage.samples import write_samples

EVALUATIONS = "evaluations"


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The metrics of an evaluation and its folder.

    accuracy: the reward whose mean is the accuracy, None if there is none; reports: files with its
    pages; failures: by cause, a sentence on one.
    """

    metrics: Mapping[str, float]
    folder: Path
    accuracy: str | None
    reports: Sequence[Path]
    failures: Mapping[str, str]


def evaluate_run(
    run: Path,
    overrides: Sequence[str] = (),
    *,
    output: Path | None = None,
    objects: Objects | None = None,
    quiet: bool = True,
) -> Evaluated:
    """Evaluate a run's last checkpoint with the run's configuration and overrides.

    No file of the run is changed. Metrics, samples, configuration and a page are written to
    `output`, a new folder; if None to RUN/evaluations/step_N, with a further number if it exists.

    objects: the Python objects that were passed to the run, by the key path of their section;
    quiet: False to show meanwhile what is being done.

    Raises UserError if no prompt is held out, or if `output` exists.
    """
    with reopened(run, overrides, objects, quiet=quiet) as opened:
        evaluator, step = opened.evaluator, opened.state.global_step
        reports = build_reports(opened.parts.loaded)
        if not evaluator.draws:
            raise UserError(
                "there is nothing to evaluate: no prompt is held out, or evaluation.prompts is 0; "
                "to evaluate on other prompts set evaluation.source"
            )
        folder = processes.first(lambda: _new_folder(output, run / EVALUATIONS / f"step_{step}"))
        chief = opened.state.is_world_process_zero
        pages: list[Path] = []
        try:
            evaluation = evaluator(opened.state)
            if chief:
                _write(folder, run, opened, evaluation)
                pages = [report(folder) for report in reports]
        except BaseException:
            if chief:
                disk.remove(folder)
            raise
        return Evaluated(
            metrics=evaluation.metrics,
            folder=folder,
            accuracy=opened.accuracy,
            reports=pages,
            failures=dict(evaluator.failures),
        )


def _new_folder(output: Path | None, default: Path) -> Path:
    """Create the folder. Called early, so that an existing one is an error before sampling."""
    folder = first_free(default) if output is None else output
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise UserError(f"{folder} exists; choose another folder by --output") from error
    return folder


def _write(folder: Path, run: Path, opened: Reopened, evaluation: Evaluation) -> None:
    parts = opened.parts
    sampler, config = opened.evaluator.sampler, parts.config
    source = config.evaluation.source or config.prompts
    result = {
        "run": run.resolve().name,
        "step": opened.state.global_step,
        "prompts": source.options.get("path", source.name),
        "unit": unit({label: s.policy for label, s in sampler.samplings.items()}),
        "accuracy": parts.accuracy.name,
        "metrics": evaluation.metrics,
    }
    write_config(folder, parts.loaded.concealed().config)
    disk.write(folder / RESULT, as_json(result))
    write_samples(folder / EVALUATED, evaluation.samples)
