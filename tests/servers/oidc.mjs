// An OAuth 2 server on 127.0.0.1: node oidc.mjs PORT LIFETIME, where an access token lives LIFETIME seconds.
// Prints a refresh token that a person gave to the client `person`; each works once (RFC 9700, 4.14.2).
import Provider from "oidc-provider";

const [port, lifetime] = process.argv.slice(2).map(Number);
// Secrets that HTTP's basic authentication and forms spell differently (RFC 6749, 2.3.1).
const known = (id, more) => ({ client_id: id, client_secret: `opensesame & ${id}+%`, redirect_uris: [], ...more });
const machine = { response_types: [], grant_types: ["client_credentials"] };
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    known("person", {
      redirect_uris: ["https://client.example/back"],
      grant_types: ["authorization_code", "refresh_token"],
    }),
    known("machine", { ...machine, scope: "orders:read" }),
    known("machine-post", { ...machine, scope: "orders:read", token_endpoint_auth_method: "client_secret_post" }),
    known("guard", machine),
  ],
  scopes: ["openid", "offline_access", "orders:read"],
  features: {
    clientCredentials: { enabled: true },
    introspection: { enabled: true, allowedPolicy: (ctx, asking) => asking.clientId === "guard" },
    revocation: { enabled: true },
    devInteractions: { enabled: false },
  },
  rotateRefreshToken: true,
  ttl: { AccessToken: lifetime, ClientCredentials: lifetime, RefreshToken: 3600, Grant: 3600 },
});

const who = { accountId: "clerk", clientId: "person" };
const grant = new provider.Grant(who);
grant.addOIDCScope("openid offline_access");
const given = new provider.RefreshToken({
  ...who,
  client: await provider.Client.find("person"),
  grantId: await grant.save(),
  gty: "authorization_code",
  scope: "openid offline_access",
});
console.log(`refresh token: ${await given.save()}`);
provider.listen(port, "127.0.0.1");
