"""Commands that need torch and no server: they run in this process."""

import sys
from collections.abc import Callable

from plait_engine.config import EngineConfig


def print_memory_plan(config: EngineConfig) -> int:
    def report() -> bool:
        from plait_engine.build import make_plan

        print(make_plan(config).memory.describe())
        return True

    return status_of(report)


def print_layers(config: EngineConfig) -> int:
    def report() -> bool:
        from plait_engine.build import make_plan

        print(make_plan(config).describe().partition("\nmemory\n")[0])
        return True

    return status_of(report)


def verify_model(config: EngineConfig) -> int:
    def report() -> bool:
        from plait_engine.verify import verify

        return verify(config)

    return status_of(report)


def drill_model(config: EngineConfig) -> int:
    def report() -> bool:
        from rich.console import Console
        from rich.table import Column, Table

        from plait_engine.drill import drill

        names = ("broken", "state", "still cached", "counted as", "difference", "result")
        table = Table(*(Column(name, overflow="fold") for name in names))
        outcomes = drill(config)
        for each in outcomes:
            verdict = (each.remark or "ok") if each.passed else f"FAILED: {each.remark}"
            counted = each.counted.removeprefix(f"state={each.state},reason=")
            figures = (str(each.cached), counted, f"{each.largest_difference:.1e}") if each.state else ("", "", "")
            table.add_row(each.broken, each.state, *figures, verdict)
        Console().print(table)
        return all(each.passed for each in outcomes)

    return status_of(report)


def status_of(report: Callable[[], bool]) -> int:
    """0 when all is well, 1 when a check failed, 2 when the model or the options do not allow the question."""
    try:
        return 0 if report() else 1
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
