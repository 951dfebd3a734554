"""airbyte-cdk: a declarative source reads the fixture API and writes its messages to standard output.

airbyte_read.py URL-OF-THE-API
"""

import json
import sys
from pathlib import Path

from airbyte_cdk.entrypoint import launch
from airbyte_cdk.models import ConfiguredAirbyteCatalogSerializer
from airbyte_cdk.sources.declarative.concurrent_declarative_source import ConcurrentDeclarativeSource

SCHEMA = {"type": "object", "additionalProperties": True, "properties": {"id": {"type": "string"}}}
LIMIT = {"type": "RequestOption", "inject_into": "request_parameter", "field_name": "limit"}
AFTER = {"type": "RequestOption", "inject_into": "request_parameter", "field_name": "starting_after"}

manifest = {
    "version": "6.0.0",
    "type": "DeclarativeSource",
    "check": {"type": "CheckStream", "stream_names": ["events"]},
    "spec": {"type": "Spec", "connection_specification": {"type": "object", "properties": {}}},
    "streams": [
        {
            "type": "DeclarativeStream",
            "name": "events",
            "primary_key": ["id"],
            "schema_loader": {"type": "InlineSchemaLoader", "schema": SCHEMA},
            "retriever": {
                "type": "SimpleRetriever",
                "requester": {
                    "type": "HttpRequester", "url_base": sys.argv[1], "path": "/v1/events", "http_method": "GET",
                },
                "record_selector": {
                    "type": "RecordSelector", "extractor": {"type": "DpathExtractor", "field_path": ["data"]},
                },
                "paginator": {
                    "type": "DefaultPaginator",
                    "page_size_option": LIMIT,
                    "page_token_option": AFTER,
                    "pagination_strategy": {
                        "type": "CursorPagination",
                        "page_size": 1000,
                        "cursor_value": "{{ last_record['id'] }}",
                        "stop_condition": "{{ not response['has_more'] }}",
                    },
                },
            },
        }
    ],
}  # fmt: skip
stream = {"name": "events", "json_schema": SCHEMA, "supported_sync_modes": ["full_refresh"]}
catalog = {
    "streams": [{"stream": stream, "sync_mode": "full_refresh", "destination_sync_mode": "append"}],
}
Path("config.json").write_text("{}")
Path("catalog.json").write_text(json.dumps(catalog))
source = ConcurrentDeclarativeSource(
    catalog=ConfiguredAirbyteCatalogSerializer.load(catalog), config={}, state=None, source_config=manifest
)
launch(source, ["read", "--config", "config.json", "--catalog", "catalog.json"])
