"""Several answers as one: the files of a zip."""

from collections.abc import Mapping, Sequence

from ingest.paths import Step
from ingest.sources.answers import Answer, Place
from ingest.sources.slices import Slice


class Joined(Answer):
    """Their records one after the other; anything else is what the first says that says it."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        self.body = answers[0].body
        self.strict = all(answer.strict for answer in answers)

    @property
    def clean(self) -> bool:
        return all(answer.clean for answer in self._answers)

    def members(self) -> Mapping[str, Slice]:
        return self._answers[0].members()

    def first(self, steps: Sequence[Step]) -> Slice | None:
        return next((found for answer in self._answers if (found := answer.first(steps)) is not None), None)

    def records(self, steps: Sequence[Step], *, may_be_absent: bool = False) -> list[bytes] | None:
        found: list[bytes] = []
        for answer in self._answers:
            records = answer.records(steps, may_be_absent=may_be_absent)
            if records is None:
                return None
            found += records
        return found

    def places(self, steps: Sequence[Step], *, may_be_absent: bool = False) -> list[Place]:
        return [place for answer in self._answers for place in answer.places(steps, may_be_absent=may_be_absent)]

    def lists(self) -> list[tuple[str, int]]:
        return self._answers[0].lists()


def joined(answers: Sequence[Answer]) -> Answer:
    """None at all: an empty list."""
    if len(answers) == 1:
        return answers[0]
    return Joined(answers) if answers else Answer.of([], shown=b"", strict=True)
