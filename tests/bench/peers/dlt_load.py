"""dlt: the fixture API merged by id into Postgres (csv, which is COPY) or DuckDB (parquet), the fastest way each.

    dlt_load.py URL-OF-THE-API postgres DSN | duckdb FILE
"""

import os
import sys
import tempfile

os.environ.update(
    {
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "RUNTIME__LOG_LEVEL": "ERROR",
        "DLT_DATA_DIR": tempfile.mkdtemp(prefix="dlt-", dir="."),
        "DATA_WRITER__BUFFER_MAX_ITEMS": "20000",
        "NORMALIZE__DATA_WRITER__BUFFER_MAX_ITEMS": "20000",
        "NORMALIZE__DATA_WRITER__FILE_MAX_ITEMS": "50000",
        "EXTRACT__DATA_WRITER__FILE_MAX_ITEMS": "50000",
        "EXTRACT__WORKERS": "2",
        "LOAD__WORKERS": "4",
    }
)

import dlt
from dlt.sources.rest_api import rest_api_source

api, engine, place = sys.argv[1:]
destination, file_format = {
    "postgres": (lambda: dlt.destinations.postgres(place), "csv"),
    "duckdb": (lambda: dlt.destinations.duckdb(place), "parquet"),
}[engine]
source = rest_api_source(
    {
        "client": {"base_url": api},
        "resources": [
            {
                "name": "events",
                "primary_key": "id",
                "max_table_nesting": 0,  # what is nested stays one JSON column, as the product keeps it
                "write_disposition": {"disposition": "merge", "strategy": "upsert"},
                "endpoint": {
                    "path": "/link/events",
                    "params": {"per_page": 1000},
                    "paginator": "header_link",
                    "data_selector": "$",
                },
            }
        ],
    }
)
pipeline = dlt.pipeline("bench", destination=destination(), dataset_name="bench")
pipeline.run(source, loader_file_format=file_format)
with pipeline.sql_client() as client:
    [[rows]] = client.execute_sql("SELECT count(*) FROM events")
print("rows", rows)
