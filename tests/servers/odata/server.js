// On 127.0.0.1 alone; how the rest is served is in package.json and srv/shop.cds.
const cds = require("@sap/cds");
cds.on("bootstrap", (app) => {
  const listen = app.listen;
  app.listen = (port) => listen.call(app, port, "127.0.0.1");
});
module.exports = cds.server;
