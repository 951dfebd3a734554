"""PostGraphile: GraphQL over a PostgreSQL table, with the cursors of Relay. https://www.graphile.org/postgraphile

    POST {url}/graphql
    {"query": "query ($size: Int, $after: Cursor)
       {allOrders(first: $size, after: $after, orderBy: [UPDATED_ASC, ID_ASC])
         {pageInfo {hasNextPage endCursor} nodes {id title amount updated}}}", "variables": {"size": 50}}

    {"data": {"allOrders": {"pageInfo": {"hasNextPage": true, "endCursor": "WyJ1cGRhdGVkX2FzYyIs…"},
                            "nodes": [{"id": "order0000000003", "title": …, "amount": "3", "updated": …}, …]}}}

What is wrong with a query is answered with 400 or 200 and {"errors": […]}. Without rows `endCursor` is null.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import asyncpg

from tests.harness import installs
from tests.harness.apis import Record, Served
from tests.harness.processes import free_ports
from tests.harness.proxy import Beside

TABLE = """
CREATE TABLE orders (id text PRIMARY KEY, title text NOT NULL, amount bigint NOT NULL, updated timestamptz);
CREATE INDEX ON orders (updated, id);
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.updated := clock_timestamp(); RETURN NEW; END $$;
CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION touch();
"""
FIELDS = "id title amount updated"
CREATE = "mutation ($order: OrderInput!) {createOrder(input: {order: $order}) {clientMutationId}}"
CHANGE = """mutation ($id: String!, $order: OrderPatch!) {
  updateOrderById(input: {id: $id, orderPatch: $order}) {clientMutationId}}"""
DELETE = "mutation ($id: String!) {deleteOrderById(input: {id: $id}) {clientMutationId}}"


class Relay(Served):
    """Made by `start`."""

    def __init__(self, directory: Path, port: int, database: str) -> None:
        program = installs.node(directory) / "node_modules" / "postgraphile" / "cli.js"
        command = ["node", str(program), "--connection", database, "--host", "127.0.0.1", "--port", str(port)]
        super().__init__([*command, "--disable-graphiql", "--disable-query-log"], port, directory)
        self._written: set[str] = set()

    def put(self, orders: Mapping[str, Record]) -> None:
        for id, order in orders.items():
            if id in self._written:
                self._query(CHANGE, id=id, order=order)
            else:
                self._query(CREATE, order={"id": id, **order})
        self._written.update(orders)

    def delete(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._query(DELETE, id=id)

    def held(self) -> dict[str, Record]:
        asked = " ".join(f'{id}: orderById(id: "{id}") {{{FIELDS}}}' for id in sorted(self._written))
        answer = self._query(f"{{{asked} allOrders {{totalCount}}}}")
        total = answer.pop("allOrders")["totalCount"]
        found = {id: record for id, record in answer.items() if record is not None}
        assert len(found) == total
        return found

    def _query(self, query: str, **variables: object) -> Record:
        answer: Record = self.ask("POST", "/graphql", json={"query": query, "variables": variables})
        assert "errors" not in answer, answer
        data: Record = answer["data"]
        return data


def start(directory: Path, database: str) -> Relay:
    with Beside() as beside:
        beside.call(_create(database))
    return Relay(directory, free_ports(1)[0], database)


async def _create(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(TABLE)
    finally:
        await connection.close()
