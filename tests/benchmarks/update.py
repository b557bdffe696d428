"""CPU seconds of one update, forward and backward, by each training pass of a language model.

    python tests/benchmarks/update.py A B C

The works are those of `against_trl.py`. Passes run in turns in one process, on one thread, over the
same sampled rollouts; the first round does not count.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from works import WORKS, make

from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_llm.training.passes import SHARING

GROUP = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="+", choices=WORKS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| work | decisions |", *(f"{by} |" for by in SHARING))
    for name in options.works:
        with tempfile.TemporaryDirectory() as folder:
            decisions, medians = compare(name, Path(folder), options.rounds)
        print(f"| {name} | {decisions} |", *(f"{seconds:.2f} |" for seconds in medians), flush=True)


def compare(name: str, folder: Path, rounds: int) -> tuple[int, list[float]]:
    """The number of decisions, and the median seconds of each pass."""
    work = WORKS[name]
    make(work, folder)
    policy = LanguageModel(Settings(model=str(folder), max_new_tokens=work.completion))
    policy.place("cpu")
    prompts = [{"prompt": prompt} for prompt in work.prompts(work.rows // GROUP)]
    rollouts = policy.sample(prompts, group_size=GROUP, seeds=range(work.rows))
    seconds: list[list[float]] = [[] for _ in SHARING]
    for _ in range(1 + rounds):
        for by, measured in zip(SHARING, seconds, strict=True):
            policy._ability = replace(policy.ability, training=by)
            started = time.process_time()
            for rows, decisions in policy.microbatches(rollouts, 2**30, cut_decisions=True):
                piece = rollouts.select(rows)
                log_probs = policy(piece, decisions).log_probs
                (log_probs * piece.mask[:, decisions]).sum().backward()
            measured.append(time.process_time() - started)
            policy.zero_grad(set_to_none=True)
    return int(rollouts.mask.sum()), [statistics.median(measured[1:]) for measured in seconds]


if __name__ == "__main__":
    main()
