"""How the servers of tests/harness/apis are read: one source each, with one stream of orders.

Every reading gives the source as YAML and the environment that it refers to."""

import json
from typing import NamedTuple

from tests.harness.apis import couch, json_server, kinto, oauth, odata, pocketbase, relay, synapse


class Reading(NamedTuple):
    source: str
    environment: dict[str, str]

    def and_also(self, key: str) -> "Reading":
        """With one more key of the stream."""
        return Reading(f"{self.source.rstrip()}\n        {key}\n", self.environment)


def with_kinto(api: kinto.Kinto, size: int = 50) -> Reading:
    source = f"""
    base_url: {api.url}/v1
    auth: {{basic: {{user: {kinto.USER}, password: "${{env:PASSWORD}}"}}}}
    streams:
      orders:
        path: /buckets/shop/collections/orders/records
        params: {{_limit: {size}, _sort: last_modified}}
        records: $.data
        id: id
        version: last_modified
        paginate: {{type: next_url, from: header.Next-Page}}
        incremental:
          type: integer
          field: last_modified
          since: {{param: _since, first: 0, is: exclusive}}
          order: asc
"""
    return Reading(source, {"PASSWORD": kinto.PASSWORD})


def with_pocketbase(api: pocketbase.PocketBase, size: int = 50) -> Reading:
    source = f"""
    base_url: {api.url}
    auth:
      session:
        login: {{path: {pocketbase.LOGIN}, json: {{identity: {pocketbase.USER}, password: "${{env:PASSWORD}}"}}}}
        token: $.token
        send: {{header: Authorization}}
    streams:
      orders:
        path: /api/collections/orders/records
        params: {{sort: "updated,id"}}
        records: $.items
        id: id
        version: updated
        paginate: {{type: page, param: page, size_param: perPage, size: {size}, total_pages: $.totalPages}}
        incremental:
          type: timestamp
          field: updated
          since: {{param: filter, value: "updated >= '{{cursor}}'"}}
          format: "%Y-%m-%d %H:%M:%S.%fZ"
          timezone: UTC
          order: asc
"""
    return Reading(source, {"PASSWORD": pocketbase.PASSWORD})


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


def with_couch(api: couch.Couch, size: int = 50) -> Reading:
    source = f"""
    base_url: {api.url}
    streams:
      orders:
        path: /orders/_changes
        params: {{include_docs: true, limit: {size}}}
        records: $.results
        id: id
        version: changes[0].rev
        paginate: {{type: cursor, from: $.last_seq, param: since, end: empty}}
        incremental: token
"""
    return Reading(source, {})


def with_odata(api: odata.OData) -> Reading:
    source = f"""
    base_url: {api.url}/odata/v4/shop
    auth: {{basic: {{user: {odata.USER}, password: "${{env:PASSWORD}}"}}}}
    streams:
      orders:
        path: /Orders
        params: {{$orderby: "modifiedAt,id"}}
        records: $.value
        id: id
        version: modifiedAt
        paginate: {{type: next_url, from: '$["@odata.nextLink"]'}}
        incremental:
          type: timestamp
          field: modifiedAt
          since: {{param: $filter, value: "modifiedAt ge {{cursor}}"}}
          order: asc
"""
    return Reading(source, {"PASSWORD": odata.PASSWORD})


def with_relay(api: relay.Relay, size: int = 50) -> Reading:
    source = f"""
    base_url: {api.url}
    streams:
      orders:
        path: /graphql
        graphql:
          query: |
            query ($size: Int, $after: Cursor) {{
              allOrders(first: $size, after: $after, orderBy: [UPDATED_ASC, ID_ASC]) {{
                pageInfo {{ hasNextPage endCursor }}
                nodes {{ id title amount updated }}
              }}
            }}
          variables: {{size: {size}}}
        records: $.data.allOrders.nodes
        id: id
        version: updated
        paginate:
          type: cursor
          from: $.data.allOrders.pageInfo.endCursor
          more: $.data.allOrders.pageInfo.hasNextPage
          body: $.variables.after
        incremental: token
"""
    return Reading(source, {})


def with_synapse(api: synapse.Synapse) -> Reading:
    source = f"""
    base_url: {api.url}
    auth:
      session:
        login: {{path: {synapse.LOGIN}, json: {json.dumps(synapse.WHO)}}}
        token: $.access_token
        send: {{header: Authorization, value: "Bearer {{token}}"}}
    defaults: {{version: none}}
    streams:
      said:
        path: {api.room}/messages
        params: {{dir: f, limit: 20, filter: '{{"types": ["m.room.message", "m.room.redaction"]}}'}}
        records: $.chunk
        id: event_id
        occurred_at: origin_server_ts
        paginate: {{type: cursor, from: $.end, param: from}}
        incremental: token
      users:
        path: /_synapse/admin/v2/users
        params: {{limit: 10}}
        records: $.users
        id: name
        paginate: {{type: cursor, from: $.next_token, param: from}}
"""
    return Reading(source, {"PASSWORD": synapse.PASSWORD})
