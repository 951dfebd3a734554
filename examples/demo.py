"""`make demo`: a real API (Datasette, over flights), polled into a log and consumed into rows, in one SQLite file.

Everything is shown as the command that does it. The second poll finds nothing new, and says so.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.harness import datasette

ROWS = int(os.environ.get("DEMO_ROWS", "100000"))  # all of them take about three times as long
CONFIG = Path(__file__).parent / "flights" / "ingest.yaml"
FOLDER = Path(".cache/demo")


def ingest(*arguments: str) -> None:
    print(f"\n$ ingest {' '.join(arguments)}", flush=True)
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "ingest.cli", *arguments], check=True)
    print(f"  ({time.monotonic() - started:.1f} s)", flush=True)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    print(f"starting Datasette with {ROWS:,} flights …", flush=True)
    api = datasette.start(FOLDER / "api", rows=ROWS)
    try:
        print(f"it listens at {api.url}; the configuration is {os.path.relpath(CONFIG)}")
        os.environ.update(FLIGHTS_URL=api.url, INGEST_CONFIG=str(CONFIG))
        for name in ("INGEST_LOG_URL", "INGEST_STORE_URL", "INGEST_STATE_URL"):
            os.environ[name] = f"sqlite:///{FOLDER}/ingest.db"
        ingest("run", "--source", "flights", "--once")
        ingest("consume", "warehouse", "--once")
        ingest("events", "--limit", "5")
        print("\nonce more: what was read before is not published again")
        ingest("run", "--source", "flights", "--once")
        ingest("consume", "warehouse", "--once")
        print(f"\nall of it is in one file: {FOLDER}/ingest.db. To look into it:")
        print(f"  INGEST_STORE_URL=sqlite:///{FOLDER}/ingest.db .venv/bin/ingest events -c {os.path.relpath(CONFIG)}")
    finally:
        api.close()


if __name__ == "__main__":
    main()
