// What stands before an API and lets nobody through without a token: node guard.mjs PORT API ISSUER USES.
// It asks the OAuth 2 server about every token (RFC 7662), and has it revoked (RFC 7009) after USES requests.
// Prints a line per request: the number of the token, in the order in which they came, and the status.
import http from "node:http";

const [port, api, issuer, uses] = process.argv.slice(2);
const used = new Map();

async function ask(path, client, token) {
  const pair = [client, `opensesame & ${client}+%`].map((part) => new URLSearchParams({ x: part }).toString().slice(2));
  const headers = { authorization: `Basic ${Buffer.from(pair.join(":")).toString("base64")}` };
  const answer = await fetch(`${issuer}${path}`, { method: "POST", headers, body: new URLSearchParams({ token }) });
  return answer.text();
}

http
  .createServer(async (request, response) => {
    const token = (request.headers.authorization ?? "").replace(/^Bearer /, "");
    const known = token ? JSON.parse(await ask("/token/introspection", "guard", token)) : {};
    if (token && !used.has(token)) used.set(token, 0);
    const number = [...used.keys()].indexOf(token) + 1;
    if (!known.active) {
      if (token) console.log(`token ${number}: 401`);
      response.writeHead(401, { "www-authenticate": 'Bearer error="invalid_token"' }).end();
      return;
    }
    used.set(token, used.get(token) + 1);
    if (used.get(token) === Number(uses)) await ask("/token/revocation", known.client_id, token);
    const { method, headers } = request;
    const forwarded = http.request(`${api}${request.url}`, { method, headers }, (answer) => {
      console.log(`token ${number}: ${answer.statusCode}`);
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    request.pipe(forwarded);
  })
  .listen(Number(port), "127.0.0.1");
