"""What remains of a quota is read from the headers of the drafts and of those who came before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.ratelimit_header import Share, shares
from ingest.sources.quota import Quota, quotas

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("value", "policy", "found"),
    [
        ('"default";r=50;t=30', "", [Share(50, 30, None)]),
        ('"default";r=50;t=30', '"default";q=100;w=60', [Share(50, 30, 100)]),
        ('"minute";r=5;t=10, "day";r=0;t=3600;pk=:cHJvag==:', '"day";q=1000;w=86400, "minute";q=60;w=60',
         [Share(5, 10, 60), Share(0, 3600, 1000)]),
        ('default ; r=1 ; t=2', "", [Share(1, 2, None)]),
        ('"default";r=0', "", [Share(0, None, None)]),
        ("limit=100, remaining=50, reset=5", "", [Share(50, 5, 100)]),
        ("limit=100;w=60, remaining=0, reset=7", "", [Share(0, 7, 100)]),
        ('"default";t=30', "", []),
        ("garbage", "", []),
        ("", "", []),
    ],
)  # fmt: skip
def test_the_header_of_every_draft_is_read(value: str, policy: str, found: list[Share]) -> None:
    assert list(shares(value, policy)) == found


@pytest.mark.parametrize(
    ("headers", "quota"),
    [
        ({"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "17", "x-ratelimit-reset": "1700000060"},
         Quota(17, 5000, 60)),
        ({"ratelimit-limit": "100, 100;w=60", "ratelimit-remaining": "17", "ratelimit-reset": "60"},
         Quota(17, 100, 60)),
        ({"ratelimit-limit": "60", "ratelimit-remaining": "3", "ratelimit-reset": "1700000060"}, Quota(3, 60, 60)),
        ({"x-rate-limit": "700", "x-rate-limit-remaining": "699", "x-rate-limit-reset": "41"}, Quota(699, 700, 41)),
        ({"x-rate-limit-limit": "600", "x-rate-limit-remaining": "0", "x-rate-limit-reset": "1700000010"},
         Quota(0, 600, 10)),
        ({"x-ratelimit-remaining": "599.0", "x-ratelimit-reset": "180"}, Quota(599, None, 180)),
        ({"x-ratelimit-remaining": "4", "x-ratelimit-reset": "1700000090", "x-ratelimit-reset-after": "1.5"},
         Quota(4, None, 1.5)),
        ({"x-ratelimit-remaining": "4", "x-ratelimit-reset": "2023-11-14T22:13:50Z"}, Quota(4, None, 30)),
        ({"ratelimit": '"default";r=0;t=30', "ratelimit-policy": '"default";q=10'}, Quota(0, 10, 30)),
        ({"x-shopify-shop-api-call-limit": "39/40"}, Quota(1, 40, 0.5)),
        ({"x-shopify-shop-api-call-limit": "40/40"}, Quota(0, 40, 0.5)),
        ({"x-shopify-shop-api-call-limit": "1/80"}, Quota(79, 80, 79 / 4)),
    ],
)  # fmt: skip
def test_what_remains_is_read_whoever_says_it(headers: dict[str, str], quota: Quota) -> None:
    assert quotas(headers, NOW) == [quota]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-ratelimit-remaining": "4"},
        {"x-ratelimit-reset": "4"},
        {"x-ratelimit-remaining": "many", "x-ratelimit-reset": "4"},
        {"x-ratelimit-remaining": "4", "x-ratelimit-reset": "6m0s"},
        {"x-shopify-shop-api-call-limit": "0/0"},
        {"x-shopify-shop-api-call-limit": "39"},
        {"ratelimit": '"default";r=5'},
    ],
)
def test_what_says_half_or_nothing_says_nothing(headers: dict[str, str]) -> None:
    assert quotas(headers, NOW) == []


@given(st.text(max_size=200), st.text(alphabet='0123456789;=, "abrtqw:/-_', max_size=200))
def test_no_header_whatever_it_says_raises(free: str, likely: str) -> None:
    for text in (free, likely):
        list(shares(text, text))
        names = ("ratelimit", "ratelimit-policy", "x-ratelimit-remaining", "x-ratelimit-reset")
        assert all(quota.seconds >= 0 for quota in quotas(dict.fromkeys(names, text), NOW))
