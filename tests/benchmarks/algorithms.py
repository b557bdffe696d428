"""All algorithms on examples/arithmetic.yaml: seconds of training to an accuracy of 0.85.

    python tests/benchmarks/algorithms.py --seeds 0 1 2 --jobs 16 --out runs/algorithms
    python tests/benchmarks/algorithms.py several --seeds 0 1 2 --jobs 16 --out runs/several

Each algorithm has its published settings; everything else is as in the example. The first race
makes one update with the 256 completions of a step, where every ratio is 1: clips, gates and
weights of the ratio have no effect, and algorithms differ only in their advantages and in how they
average the loss. Algorithms that differ from another one only in the ratio are left out.

The second race makes eight updates with the completions of a step (two epochs of four updates) at
the learning rate of the example, so that the ratio matters.
"""

import sys

from race import ROOT, Race, main

ADVANTAGES = {
    "grpo": ["algorithm=grpo"],
    "bnpo": ["algorithm=bnpo"],
    "dr_grpo": ["algorithm=dr_grpo"],
    "dapo": ["algorithm=dapo"],
    "luspo": ["algorithm=luspo"],
    "rloo": ["algorithm=rloo"],
    "reinforce_pp": ["algorithm=reinforce_pp"],
    "reinforce_pp_baseline": ["algorithm=reinforce_pp_baseline"],
    "lead": ["algorithm=lead"],
    "maxrl": ["algorithm=maxrl"],
    "opo": ["algorithm=opo"],
    "pass_at_k": ["algorithm=pass_at_k"],
    "pass_at_k, leave_one_out": ["algorithm=pass_at_k", "algorithm.baseline=leave_one_out"],
    "bnpo, top_entropy_quantile 0.2": ["algorithm=bnpo", "algorithm.top_entropy_quantile=0.2"],
}
RATIOS = {
    "grpo": ["algorithm=grpo"],
    "grpo, ratio_cap 3": ["algorithm=grpo", "algorithm.ratio_cap=3"],
    "bnpo": ["algorithm=bnpo"],
    "bnpo, clip_high 0.28": ["algorithm=bnpo", "algorithm.clip_high=0.28"],
    "gspo": ["algorithm=gspo"],
    "luspo": ["algorithm=luspo"],
    "cispo": ["algorithm=cispo"],
    "sapo": ["algorithm=sapo"],
    "vespo": ["algorithm=vespo"],
    "gmpo": ["algorithm=gmpo"],
    "dppo": ["algorithm=dppo"],
    "dppo, divergence kl": ["algorithm=dppo", "algorithm.divergence=kl"],
    "bnpo, top_entropy_quantile 0.2": ["algorithm=bnpo", "algorithm.top_entropy_quantile=0.2"],
}
RACES = {
    "once": Race(
        config=ROOT / "examples" / "arithmetic.yaml",
        variants=ADVANTAGES,
        goal=0.85,
        common=["train.steps=60"],
    ),
    "several": Race(
        config=ROOT / "examples" / "arithmetic.yaml",
        variants=RATIOS,
        goal=0.85,
        common=["train.steps=30", "train.epochs=2", "train.updates_per_rollout=4"],
    ),
}

if __name__ == "__main__":
    name = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in RACES else "once"
    main(RACES[name])
