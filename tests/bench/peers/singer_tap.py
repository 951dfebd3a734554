"""A tap of the Singer SDK: the fixture API as Singer messages on standard output.

API=URL-OF-THE-API singer_tap.py --config FILE
"""

import os
from typing import Any
from urllib.parse import ParseResult, parse_qsl

from singer_sdk import RESTStream, Tap
from singer_sdk import typing as th
from singer_sdk.pagination import BaseHATEOASPaginator

ANY_OBJECT = th.ObjectType(additional_properties=True)


class NextLink(BaseHATEOASPaginator):
    def get_next_url(self, response: Any) -> str | None:
        return (response.links.get("next") or {}).get("url")


class Events(RESTStream[ParseResult]):
    name = "events"
    path = "/link/events"
    url_base = os.environ["API"]
    primary_keys = ("id",)
    records_jsonpath = "$[*]"
    schema = th.PropertiesList(
        th.Property("id", th.StringType, required=True),
        *(th.Property(name, th.StringType) for name in ("object", "type", "customer", "currency", "status")),
        *(th.Property(name, th.IntegerType) for name in ("created", "amount")),
        th.Property("livemode", th.BooleanType),
        th.Property("metadata", ANY_OBJECT),
        th.Property("lines", th.ArrayType(ANY_OBJECT)),
    ).to_dict()

    def get_new_paginator(self) -> NextLink:
        return NextLink()

    def get_url_params(self, context: Any, next_page_token: ParseResult | None) -> dict[str, Any]:
        return dict(parse_qsl(next_page_token.query)) if next_page_token else {"per_page": 1000}


class TapEvents(Tap):
    name = "tap-events"
    config_jsonschema = th.PropertiesList().to_dict()

    def discover_streams(self) -> list[Events]:
        return [Events(self)]


TapEvents.cli()
