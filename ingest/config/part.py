"""What every part of the configuration is: a frozen pydantic model that knows no key but its own, and checks itself.

A rule that looks at several keys stands in `mistakes` of the part that has them. It yields the key it is about, so that
the loader can point at it, and as many mistakes as there are.
"""

import ast
import inspect
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for some reads the metadata of every package

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator

Mistake = tuple[str, str]
"""The key it is about ("" for the part as a whole), and what is wrong with it."""


class Mistakes(ValueError):
    """What `Part.mistakes` found; pydantic carries it to the loader."""

    def __init__(self, found: Sequence[Mistake]) -> None:
        super().__init__("; ".join(message for _, message in found))
        self.found = found


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    def mistakes(self) -> Iterable[Mistake]:
        """Rules that need more than one key. Runs only when every key is right by itself."""
        return ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if found := list(self.mistakes()):
            raise Mistakes(found)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What stands below a key describes it. Read only here: `use_attribute_docstrings` parses at every start."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for part in reversed(cls.__mro__):
            if part is not Part and issubclass(part, Part):
                for name, text in _docstrings(part):
                    properties[cls.model_fields[name].alias or name]["description"] = text
        return schema


def _docstrings(part: type[Part]) -> Iterator[tuple[str, str]]:
    """(key, what stands below it)."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    assert isinstance(definition, ast.ClassDef)
    for key, below in zip(definition.body, definition.body[1:], strict=False):
        match key, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
