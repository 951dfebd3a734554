"""What a start imports, and what it leaves away."""

import gc
import subprocess
import sys

from ingest.imports import lightly

LOADED = """
import sys, ingest.cli
print("colours" if "rich" in sys.modules or "pygments" in sys.modules else "plain")
import rich.table
print(rich.table.Table.__name__)
"""


def test_a_start_leaves_away_what_draws_on_a_terminal_and_who_draws_gets_it() -> None:
    ended = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["plain", "Table"]


def test_the_garbage_collector_rests_while_modules_are_imported_and_no_longer() -> None:
    with lightly():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_failing_import_leaves_nothing_hidden() -> None:
    before = dict(sys.modules)
    try:
        with lightly():
            raise ImportError("no such module")
    except ImportError:
        pass
    assert {name for name, module in sys.modules.items() if module is None} <= {n for n in before if before[n] is None}
    assert gc.isenabled()
