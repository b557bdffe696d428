"""Several learners: a pool of two language models, and a writer before a painter.

    python tests/benchmarks/learners.py pool --seeds 0 1 2 --jobs 2 --out runs/pool
    python tests/benchmarks/learners.py chain --seeds 0 1 2 --jobs 2 --out runs/chain

Groups of the pool have eight completions of each policy. Alone, each policy has groups of eight, as
many as it draws in the pool, and of sixteen, the size of the pool's groups. In the chain, only the
writer learns, or both learn.
"""

import sys

from race import ROOT, Race, main

ADAPTER = ["policy.lora={rank: 16}", "train.learning_rate=1e-3"]
ALONE = {
    "whole, alone, 8": ["train.group_size=8"],
    "whole, alone, 16": ["train.group_size=16"],
    "adapter, alone, 8": [*ADAPTER, "train.group_size=8"],
    "adapter, alone, 16": [*ADAPTER, "train.group_size=16"],
}
RACES = {
    "pool": Race(
        config=ROOT / "examples" / "arithmetic.yaml",
        variants={**ALONE, "pool": []},
        configs={"pool": ROOT / "examples" / "pool.yaml"},
        goal=0.85,
        common=["evaluation.every=0"],
        columns={"whole": "accuracy/whole", "adapter": "accuracy/adapter"},
    ),
    "chain": Race(
        config=ROOT / "examples" / "chain.yaml",
        variants={
            "writer alone": ["players.1.learns=false", "train.minutes=5"],
            "writer and painter": [],
        },
        goal=0.4,
    ),
}

if __name__ == "__main__":
    name = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in RACES else "pool"
    main(RACES[name])
