"""All behaviours, in the order of the page, each group under its heading."""

from collections.abc import Mapping, Sequence

from tests.conformance.case import Case
from tests.conformance.cases import answers, boundaries, data, gone, logins, origins, paging

GROUPS: Mapping[str, Sequence[Case]] = {
    "How a listing goes on, and ends": paging.CASES,
    "Where the next run begins": boundaries.CASES,
    "Answers that are no pages": answers.CASES,
    "Rows that are gone, or missing": gone.CASES,
    "Access tokens": logins.CASES,
    "Other hosts": origins.CASES,
    "What stands in the records": data.CASES,
}
CASES = tuple(case for group in GROUPS.values() for case in group)
