"""Finds the function that a configuration names: `package.module:function`.

The working directory is searched too, behind everything that is installed, so that no file in it can stand in for a
package.
"""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Function = Callable[[Any], Any]
"""Of one argument, async or not."""


class NotFound(ValueError):
    """What is wrong with the name, in words that go on from it."""


def find(call: str) -> Function:
    """Imports the module. Raises NotFound."""
    module_name, _, name = call.partition(":")
    found: Any = _module(module_name)
    for step in name.split("."):
        inside, found = found, getattr(found, step, None)
        if found is None:
            names = (one for one in dir(inside) if not one.startswith("_"))
            raise NotFound(f"`{module_name}` has no `{step}`{_meant(step, names)}")
    _ensure_callable(found, call)
    return found  # type: ignore[no-any-return]  # whatever it is, it can be called so


def _module(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (name + ".").startswith(exc.name + "."):
            raise NotFound(f"`{name}` cannot be imported: it imports `{exc.name}`, which is not installed") from exc
        meant = _meant(exc.name, _modules_in(Path(here)))
        raise NotFound(f"there is no module `{exc.name}`, neither installed nor in {here}{meant}") from exc
    except Exception as exc:
        raise NotFound(f"`{name}` cannot be imported: {type(exc).__name__}: {exc}") from exc


def _modules_in(folder: Path) -> Iterator[str]:
    return (path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())


def _ensure_callable(found: object, call: str) -> None:
    if not callable(found):
        raise NotFound(f"`{call}` is no function, but {type(found).__name__}")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise NotFound(f"`{call}` is a generator: it would not run")
    try:
        inspect.signature(found).bind(None)
    except TypeError as exc:
        raise NotFound(f"`{call}` must take one argument, the context: {exc}") from exc
    except ValueError:  # written in C: what it takes is not known
        pass


def _meant(word: str, known: Iterable[str]) -> str:
    close = [] if "." in word else difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""
