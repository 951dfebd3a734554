"""Every behaviour of an API that is known to lose, double or hide data elsewhere ends as it must here."""

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance import table
from tests.conformance.case import Case
from tests.conformance.cases import CASES
from tests.conformance.play import play
from tests.conformance.tools import Product, forks
from tests.conformance.verdict import RIGHT


@pytest_asyncio.fixture(scope="module")
async def product() -> AsyncIterator[Product]:
    async with forks(Path(sys.executable), "ingest_run.py") as running:
        yield Product(running)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.ids)
async def test_what_must_happen_happens(case: Case, product: Product, tmp_path: Path) -> None:
    assert await play(case, product, tmp_path) == RIGHT, f"{case.does}: {case.must}"


def test_the_page_shows_every_behaviour_and_no_other() -> None:
    text = table.PAGE.read_text().partition(table.END)[0]
    for case in CASES:
        assert f"\n{table.line(case, [table.RIGHT])[:-2]} | " in f"{text} ", f"{case.ids}: run `make conformance`"
    assert len(re.findall(r"^\| (?!\||-)", text, re.MULTILINE)) == len(CASES)


def test_the_page_names_only_tests_that_exist() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", table.PAGE.read_text())
    assert named
    for file, test in named:
        assert f"def {test}(" in (table.PAGE.parents[1] / file).read_text(), f"{file}::{test}"
