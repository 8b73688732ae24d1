"""Which release this is."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    try:
        return version("plait")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
