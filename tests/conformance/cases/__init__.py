"""All behaviours, in the order of the page, each group under its heading."""

from collections.abc import Mapping, Sequence

from tests.conformance.case import Case
from tests.conformance.cases import (
    answers,
    boundaries,
    data,
    endings,
    families,
    gone,
    logins,
    moments,
    origins,
    paging,
    reports,
    resuming,
    unchanged,
)

GROUPS: Mapping[str, Sequence[Case]] = {
    "How a listing goes on": paging.CASES,
    "How it ends": endings.CASES,
    "Where the next run begins": boundaries.CASES,
    "Times and numbers": moments.CASES,
    "Runs that were cut off": resuming.CASES,
    "Answers that are no pages": answers.CASES,
    "Lists below lists": families.CASES,
    "Rows that are gone, or missing": gone.CASES,
    "Answers that are sent only where they are new": unchanged.CASES,
    "Reports that are made meanwhile": reports.CASES,
    "Access tokens": logins.CASES,
    "Other hosts": origins.CASES,
    "What stands in the records": data.CASES,
}
CASES = tuple(case for group in GROUPS.values() for case in group)
