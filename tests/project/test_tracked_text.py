"""Nothing in the repository depends on the machine that it was written on, or points at files outside of it."""

import re
from pathlib import Path

from tests.project.repository import PAGES, ROOT, tracked_files

MACHINE = ("/work/", "/root/", "/opt/pypi", "/opt/wheels", "/etc/xdg", ".library/", "bash_jobs")
HOSTS = (
    "pypi.org",
    "files.pythonhosted",
    "download.pytorch.org",
    "debian.org",
    "registry.npmjs",
    "ghcr.io",
    "docker.io",
)
OUTSIDE = ("DESIGN.md", "STYLE.md", "API.md", "BASELINE.md", "CASES.md", "MODELS.md", "DEMO.md", "issues show")
SHARED = re.compile(r"\bshared/(?!expert)(traces|models|golden|hooks|[A-Z]+\.md)|\.\./shared")
MAY_USE_SHARED = ("tests/", "benchmarks/")
"""There, a folder beside the repository may be used when it exists; what needs it skips when it does not."""
LARGE_BYTES = 2_000_000


def texts() -> list[tuple[str, str]]:
    found = []
    for path in tracked_files():
        if path == Path(__file__) or path.stat().st_size > LARGE_BYTES or path.name == "constraints.txt":
            continue
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text()))
        except UnicodeDecodeError:
            continue
    assert len(found) > 10
    return found


def test_no_file_names_a_machine_path_a_registry_or_a_page_outside() -> None:
    wrong = [
        f"{name}:{number}: {word}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        for word in (*MACHINE, *HOSTS, *OUTSIDE)
        if re.search(rf"(?<![\w/]){re.escape(word)}", line)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_tests_and_benchmarks_mention_the_folder_beside_the_repository() -> None:
    wrong = [
        f"{name}:{number}"
        for name, text in texts()
        if not name.startswith(MAY_USE_SHARED)
        for number, line in enumerate(text.splitlines(), 1)
        if SHARED.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_links_between_pages_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_listed_on_the_first_page() -> None:
    first = (ROOT / "docs/index.md").read_text()
    assert [page.name for page in PAGES if page.name != "index.md" and f"({page.name})" not in first] == []
