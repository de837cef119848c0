// Serves by ws, for a client that is checked: node server.js. Its first line is {"port": ...}; then there is one for the
// end of each connection. It ends with its standard input.
"use strict";
const http = require("node:http");
const {WebSocketServer} = require("node:module").createRequire(process.env.AGENTD_WS_NODE + "/x.js")("ws");

const tell = what => console.log(JSON.stringify(what));
const sockets = new WebSocketServer({
  noServer: true,
  perMessageDeflate: {threshold: 0},
  handleProtocols: offered => offered.has("b") && "b",
});

const serve = {
  "/echo": socket => socket.on("message", (data, binary) => socket.send(data, {binary})),

  // It answers in frames of 1000 bytes, with a ping after each.
  "/fragments": socket => socket.on("message", (data, binary) => {
    for (let at = 0; at === 0 || at < data.length; at += 1000) {
      socket.send(data.subarray(at, at + 1000), {binary, fin: at + 1000 >= data.length});
      socket.ping(`at ${at}`);
    }
  }),

  // It pings, and tells the pong.
  "/ping": socket => {
    socket.on("pong", data => socket.send(`pong ${data}`));
    socket.on("ping", data => socket.send(`ping ${data}`));
    socket.on("message", data => socket.ping(data));
  },

  "/close": (socket, query) => {
    const code = query.get("code");
    if (code) socket.close(Number(code), query.get("reason") ?? "");
    else socket.close();
  },
  "/terminate": socket => socket.terminate(),
  "/big": (socket, query) => socket.send("x".repeat(Number(query.get("size")))),
  "/surrogate": socket => socket.send(Buffer.from([0x61, 0xed, 0xa0, 0x80]), {binary: false}),
};

const server = http.createServer((_, answer) => answer.writeHead(404).end());
server.on("upgrade", (request, connection, head) => {
  const url = new URL(request.url, "http://localhost");
  if (!serve[url.pathname]) {
    connection.end("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 4\r\n\r\nbusy");
    return;
  }
  sockets.handleUpgrade(request, connection, head, socket => {
    socket.on("error", () => {}); // the end tells
    socket.on("close", (code, reason) => tell({path: request.url, code, reason: reason.toString()}));
    serve[url.pathname](socket, url.searchParams);
  });
});
server.listen(0, "127.0.0.1", () => tell({port: server.address().port}));
process.stdin.on("end", () => process.exit(0)).resume();
