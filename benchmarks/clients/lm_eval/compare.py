"""Compares what two runs of lm-eval got for each item (``--log_samples``): the same answers, the same log-likelihoods.

python -m benchmarks.clients.lm_eval.compare FOLDER FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

TOLERANCE = 2e-3
"""Of a log-likelihood: a sum of float32 numbers that two implementations add up in other orders."""


def samples(folder: Path) -> dict[tuple[str, int], list[Any]]:
    """Responses by task and item."""
    found = {}
    for path in folder.rglob("samples_*.jsonl"):
        for line in path.read_text().splitlines():
            sample = json.loads(line)
            found[path.name.split("_20")[0], sample["doc_id"]] = sample["filtered_resps"]
    return found


def differences(ours: dict[tuple[str, int], list[Any]], theirs: dict[tuple[str, int], list[Any]]) -> list[str]:
    wrong = [f"only one run has {key}" for key in ours.keys() ^ theirs.keys()]
    for key in sorted(ours.keys() & theirs.keys()):
        for mine, other in zip(ours[key], theirs[key], strict=True):
            if isinstance(mine, list):
                same = abs(float(mine[0]) - float(other[0])) <= TOLERANCE and str(mine[1]) == str(other[1])
            else:
                same = mine == other
            if not same:
                wrong.append(f"{key}: {mine} and {other}")
    return wrong


def main() -> int:
    ours, theirs = (samples(Path(folder)) for folder in sys.argv[1:3])
    wrong = differences(ours, theirs)
    print(f"{len(ours)} items, {len(wrong)} differences", *wrong[:20], sep="\n")
    return 1 if wrong or not ours else 0


if __name__ == "__main__":
    sys.exit(main())
