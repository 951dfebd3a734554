"""How the servers of tests/harness/apis are read: as examples/apis shows, and in other ways that they offer.

Every reading gives the source as YAML and the environment that it refers to."""

import re
from typing import NamedTuple

from tests.harness.apis import couch, json_server, kinto, oauth, odata, pocketbase, relay, synapse
from tests.harness.installs import REPOSITORY


class Reading(NamedTuple):
    source: str
    environment: dict[str, str]

    def sweeping(self, every: str) -> "Reading":
        """With sweeps of its last stream."""
        source = re.sub(r"\n        deletes: .*", "", self.source.rstrip())
        return Reading(f"{source}\n        deletes: {{sweep: {{every: {every}}}}}\n", self.environment)


def example(name: str, size: int, **environment: str) -> Reading:
    """What examples/apis shows, with pages of `size` rows."""
    text = (REPOSITORY / "examples" / "apis" / f"{name}.yaml").read_text()
    source = text.partition(f"\n  {name}:")[2].partition("\nconsumers:")[0]
    return Reading(re.sub(r"\b500?\b", str(size), source), environment)


def with_kinto(api: kinto.Kinto, size: int = 50) -> Reading:
    return example("kinto", size, KINTO_URL=api.url, KINTO_USER=kinto.USER, KINTO_PASSWORD=kinto.PASSWORD)


def with_buckets(api: kinto.Kinto) -> Reading:
    """All that an account may see, from above: buckets, their collections, and the records of each."""
    source = f"""
    base_url: {api.url}/v1
    auth: {{basic: {{user: {kinto.USER}, password: "${{env:KINTO_PASSWORD}}"}}}}
    defaults: {{records: $.data, id: id, version: last_modified}}
    streams:
      buckets: {{path: /buckets, conditional: true}}
      collections:
        parent: buckets
        path: "/buckets/{{parent.id}}/collections"
        records: {{path: $.data, keep: {{bucket: parent.id}}}}
        conditional: true
      orders:
        parent: collections
        path: "/buckets/{{parent.bucket}}/collections/{{parent.id}}/records"
        params: {{_sort: last_modified, _limit: 5}}
        paginate: {{type: next_url, from: header.Next-Page}}
        incremental:
          type: integer
          field: last_modified
          since: {{param: _since, first: 0, is: exclusive}}
          order: asc
        deletes: {{soft: deleted}}
"""
    return Reading(source, {"KINTO_PASSWORD": kinto.PASSWORD})


def with_pocketbase(api: pocketbase.PocketBase, size: int = 50) -> Reading:
    who = {"POCKETBASE_USER": pocketbase.USER, "POCKETBASE_PASSWORD": pocketbase.PASSWORD}
    return example("pocketbase", size, POCKETBASE_URL=api.url, **who)


def with_couch(api: couch.Couch, size: int = 50) -> Reading:
    return example("couchdb", size, COUCHDB_URL=api.url)


def with_feed(api: couch.Couch) -> Reading:
    """All documents at once; what is gone is told by the feed of changes."""
    source = f"""
    base_url: {api.url}
    streams:
      orders:
        path: /orders/_all_docs
        params: {{include_docs: true}}
        records: $.rows
        id: id
        version: value.rev
        deletes: {{feed: {{stream: changes, where: deleted, id: id}}}}
      changes:
        path: /orders/_changes
        params: {{limit: 50}}
        records: $.results
        id: id
        version: changes[0].rev
        paginate: {{type: cursor, from: $.last_seq, param: since, end: empty}}
        incremental: token
"""
    return Reading(source, {})


def with_odata(api: odata.OData, size: int = 50) -> Reading:
    return example("odata", size, ODATA_URL=api.url, ODATA_USER=odata.USER, ODATA_PASSWORD=odata.PASSWORD)


def with_relay(api: relay.Relay, size: int = 50) -> Reading:
    return example("graphql", size, GRAPHQL_URL=api.url)


def with_synapse(api: synapse.Synapse) -> Reading:
    who = {"MATRIX_USER": synapse.USER, "MATRIX_PASSWORD": synapse.PASSWORD}
    return example("matrix", 50, MATRIX_URL=api.url, MATRIX_ROOM=api.room, **who)


def with_keyset(api: json_server.JsonServer, size: int = 50) -> Reading:
    source = f"""
    base_url: {api.url}
    streams:
      orders:
        path: /orders
        params: {{_sort: revision}}
        records: $
        id: id
        version: revision
        paginate: {{type: keyset, fields: {{revision: revision_gte}}, size_param: _limit, size: {size}}}
        incremental: {{type: integer, field: revision, since: {{param: revision_gte}}, order: asc}}
"""
    return Reading(source, {})


def with_guests(api: pocketbase.PocketBase, limits: str) -> Reading:
    """What PocketBase has for everybody, twice."""
    source = f"""
    base_url: {api.url}
    limits: {limits}
    retry: {{base: 100ms}}
    defaults:
      path: /api/collections/orders/records
      records: $.items
      id: id
      paginate: {{type: page, param: page, size_param: perPage, size: 5, total_pages: $.totalPages}}
    streams:
      orders: {{params: {{sort: id}}}}
      backwards: {{params: {{sort: -id}}}}
"""
    return Reading(source, {})


def with_links(api: json_server.JsonServer, size: int = 50) -> Reading:
    source = f"""
    base_url: {api.url}
    streams:
      orders:
        path: /orders
        params: {{_page: 1, _limit: {size}, _sort: revision}}
        records: $
        id: id
        version: revision
        paginate: link
        incremental: {{type: integer, field: revision, since: {{param: revision_gte}}, order: asc}}
"""
    return Reading(source, {})


def with_oauth(gate: oauth.Guarded, grant: str, size: int = 5) -> Reading:
    """What json-server has, twice, behind the gate. `grant`: the rest of `oauth2`."""
    source = f"""
    base_url: {gate.url}
    auth: {{oauth2: {{token_url: "{gate.token_url}", client_secret: "${{env:SECRET}}", {grant}}}}}
    defaults: {{path: /orders, records: $, id: id, version: revision}}
    streams:
      orders: {{params: {{_page: 1, _limit: {size}, _sort: revision}}, paginate: link}}
      backwards:
        params: {{_sort: revision, _order: desc}}
        paginate: {{type: offset, param: _start, size_param: _limit, size: {size}, total: header.X-Total-Count}}
"""
    return Reading(source, {"SECRET": gate.secret, "REFRESH": gate.refresh_token})


def with_offsets(api: json_server.JsonServer, size: int = 50) -> Reading:
    source = f"""
    base_url: {api.url}
    streams:
      orders:
        path: /orders
        params: {{_sort: revision}}
        records: $
        id: id
        paginate:
          type: offset
          param: _start
          size_param: _limit
          size: {size}
          total: header.X-Total-Count
          overlap: 2
        incremental: {{type: integer, field: revision, since: {{param: revision_gte}}, order: asc}}
"""
    return Reading(source, {})
