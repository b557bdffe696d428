"""Supervised fine-tuning by TRL's SFTTrainer, on JSON lines of `prompt` and `completion`.

    python examples/r1/sft.py --model base --data rows.jsonl --output model

Of several files all rows are used, in a mixed order. Other columns are ignored, so the output of
`groupwise sample` can be used directly. The output folder appears only when it is complete.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

NEEDS = "the supervised stages need TRL, which is not installed: pip install trl"


def train(
    model: Path,
    data: Sequence[Path],
    output: Path,
    *,
    epochs: float,
    rate: float,
    batch: int,
    seed: int,
) -> None:
    """Fine-tune all weights: loss on completions only, a linear schedule with some warm-up."""
    if find_spec("trl") is None:
        raise SystemExit(NEEDS)
    import torch
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    read = (json.loads(line) for path in data for line in path.read_text("utf-8").splitlines())
    rows = Dataset.from_list(
        [{name: row[name] for name in ("prompt", "completion")} for row in read]
    )
    arguments = SFTConfig(
        output_dir=str(output.with_suffix(".trainer")),
        num_train_epochs=epochs,
        learning_rate=rate,
        per_device_train_batch_size=batch,
        warmup_steps=0.05,  # of all steps
        seed=seed,
        bf16=False,
        gradient_checkpointing=None,  # TRL sets this deprecated option if it is left out
        model_init_kwargs={"dtype": torch.float32},
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = SFTTrainer(str(model), args=arguments, train_dataset=rows)
    trainer.train()
    fresh = output.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    trainer.model.save_pretrained(fresh)
    trainer.processing_class.save_pretrained(fresh)
    shutil.rmtree(output, ignore_errors=True)
    fresh.rename(output)
    shutil.rmtree(output.with_suffix(".trainer"), ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    train(options.pop("model"), options.pop("data"), options.pop("output"), **options)


if __name__ == "__main__":
    main()
