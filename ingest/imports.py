"""Imports with less beside them: a third of what a start takes is spent on modules that it has no use for.

structlog and httpx load Rich, Pygments and click where they find them, for tracebacks and a command line that nobody
sees here. And the garbage collector looks through all that was imported again and again, though none of it is garbage.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNWANTED = ("rich", "pygments", "click")


@contextmanager
def lightly() -> Iterator[None]:
    """Around `import`. Who wants one of the unwanted modules itself imports it elsewhere, and gets it."""
    hidden = [name for name in UNWANTED if name not in sys.modules]
    collecting = gc.isenabled()
    gc.disable()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: it cannot be imported
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if collecting:
            gc.enable()
        gc.freeze()  # what was imported stays: not to be looked at again is a tenth of a run's CPU
