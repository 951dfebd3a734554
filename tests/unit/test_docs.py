"""The documentation says what the program does: every verb, metric and example in it is real."""

import re
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase
from typer.main import get_command

from ingest import metrics
from ingest.cli import app
from ingest.config.loader import load, parse

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def yaml_blocks(text: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


def described() -> list[Metric]:
    return [m for v in vars(metrics).values() if isinstance(v, MetricWrapperBase) for m in v.describe()]


def full_name(metric: Metric) -> str:
    return metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")


def verbs() -> list[str]:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    return list(commands) + [
        f"{name} {sub}" for name, group in commands.items() for sub in getattr(group, "commands", ())
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: str(path.stem))
def test_every_example_is_accepted(path: Path) -> None:
    config = load(path).config
    assert config.sources or config.tasks


def test_the_file_that_init_writes_is_accepted() -> None:
    assert load(ROOT / "ingest" / "cli" / "init.yaml").config.consumers


@pytest.mark.parametrize("text", yaml_blocks(README))
def test_the_readme_shows_a_configuration_that_is_accepted(text: str) -> None:
    assert parse(text).config.sources


@pytest.mark.parametrize("text", [text for text in yaml_blocks(SECURITY) if text.startswith("version")])
def test_the_page_about_security_shows_configurations_that_are_accepted(text: str) -> None:
    assert parse(text).config.log or parse(text).config.store


def test_every_metric_is_documented_and_every_documented_metric_exists() -> None:
    documented = set(re.findall(r"^\| `(ingest_\w+)` \|", OPERATIONS, re.MULTILINE))
    assert documented == {full_name(metric) for metric in described()}


def test_the_labels_of_every_metric_are_documented() -> None:
    rows = dict(re.findall(r"^\| `(ingest_\w+)` \| ([^|]*) \|", OPERATIONS, re.MULTILINE))
    for value in vars(metrics).values():
        if isinstance(value, MetricWrapperBase) and value is not metrics.build_info:
            documented = rows[full_name(next(iter(value.describe())))]
            assert [name for name in documented.split(", ") if name] == list(value._labelnames)


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_is_in_the_readme(verb: str) -> None:
    name, _, sub = verb.partition(" ")
    assert re.search(rf"^\| .*`[^`]*\b{name}\b[^`]*\b{sub}", README, re.MULTILINE)


def test_the_list_of_verbs_shows_whole_sentences() -> None:
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert not command.get_short_help_str(limit=62).endswith("..."), name


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found.read_text()), f"{target}#{anchor}"


def test_every_page_about_sources_is_in_their_index() -> None:
    folder = ROOT / "docs" / "sources"
    linked = set(re.findall(r"\]\((\w+\.md)\)", (folder / "README.md").read_text()))
    assert linked | {"README.md"} == {page.name for page in folder.glob("*.md")}


def test_every_page_is_in_the_readme() -> None:
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(re.findall(r"\]\(([^)#:]+)\)", README))
