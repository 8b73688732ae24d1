"""``python -m benchmarks.front_end_cpu``: what the front end costs for a streamed token, without an engine's work.

With ``--pace SECONDS`` many streams get a token each so many seconds, and what is told is whether they do. Servers run
in processes of their own and a third process reads. Processor time is user plus system time of the server's process.
"""

import argparse

from benchmarks.front_end_cpu import cost, load

PATHS = ("/v1/completions", "/v1/chat/completions")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front_end_cpu", description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    parser.add_argument("--rounds", type=int, default=5, help="without --pace: how often each is measured, in turns")
    parser.add_argument("--pace", type=float, help="seconds between tokens")
    given = parser.parse_args()
    if given.pace is None:
        cost.measure(PATHS, given.streams, given.tokens, given.rounds)
    else:
        load.measure(PATHS, given.streams, given.tokens, given.pace)


if __name__ == "__main__":
    main()
