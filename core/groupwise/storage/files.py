"""Files: the names of what a run writes into its folder."""

import re

CONFIG = "config.yaml"
RUN_INFO = "run.json"
"""What a run notes about itself besides its configuration; a folder with this file is a run's."""
LOCK = "run.lock"
"""Locked while a process writes to the folder; contains that process, or the last one."""
METRICS = "metrics.jsonl"
RESULT = "result.json"
CHECKPOINTS = "checkpoints"
MODEL = "model"
SAMPLES = "samples"
"""The folder of completions."""
BEFORE, AFTER = f"{SAMPLES}/before.jsonl", f"{SAMPLES}/after.jsonl"
"""The samples of a run's first and last evaluation."""
BEFORE_METRICS = f"{SAMPLES}/before.json"
"""The metrics of the first evaluation, which a resumed run reads."""
TRAINING = f"{SAMPLES}/training.jsonl"
"""Some completions of training steps."""
EVALUATED = f"{SAMPLES}/evaluation.jsonl"
"""The samples of an evaluation that has a folder of its own."""
RUN_FILES = frozenset(
    {CONFIG, RUN_INFO, LOCK, METRICS, RESULT, CHECKPOINTS, MODEL, SAMPLES, "report.html"}
)
"""Everything that a run itself writes into its folder, except former configurations."""
FORMER_CONFIG = re.compile(r"config\.until_step_[0-9]+(_[0-9]+)?\.yaml")
"""Former configurations of a run, replaced when it was resumed with changes."""
