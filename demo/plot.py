"""The training curves as a picture (needs matplotlib).

    python -m demo.plot --curves demo/curves/run-1.jsonl demo/curves/run-2.jsonl --out curve.png

Runs that follow each other are drawn one behind the other, by tokens seen.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def joined(paths: list[Path]) -> list[dict[str, Any]]:
    """All lines, with the tokens of earlier runs added to those of later ones."""
    lines: list[dict[str, Any]] = []
    before = 0
    for path in paths:
        run = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
        lines += [{**line, "tokens": line["tokens"] + before} for line in run]
        before = lines[-1]["tokens"]
    return lines


def main() -> None:
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    lines = joined(options.curves)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3))
    steps = [line for line in lines if "loss" in line]
    left.plot([line["tokens"] / 1e9 for line in steps], [line["loss"] for line in steps], linewidth=0.8)
    left.set(xlabel="tokens (10^9)", ylabel="weighted loss", ylim=(0.2, 1.6))
    probes = [line for line in lines if "look_ups" in line]
    for split in ("entity", "phrasing"):
        for length in ("2048", "8192"):
            points = [
                (line["tokens"] / 1e9, line["look_ups"][split][length])
                for line in probes
                if length in line["look_ups"][split]
            ]
            right.plot(*zip(*points, strict=True), label=f"unseen {split}, {length} tokens", linewidth=1)
    right.set(xlabel="tokens (10^9)", ylabel="look-ups right", ylim=(0, 1))
    right.legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(options.out, dpi=80)


if __name__ == "__main__":
    main()
