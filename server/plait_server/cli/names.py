"""What a model is called when nobody says."""

from pathlib import Path

from plait_engine.demo_model import DEMO_FOLDER


def served_names(asked: str, folder: Path) -> tuple[str, ...]:
    """``org/name`` stays; a folder is called by its last part; the demo is ``plait-demo``."""
    if folder.resolve() == DEMO_FOLDER.resolve():
        return ("plait-demo",)
    if Path(asked).expanduser().exists():
        return (folder.resolve().name,)
    return (asked,)
