// Checks a server by the client of ws: node client.js HOST:PORT. It writes one line of JSON for each check.
"use strict";
const assert = require("node:assert/strict");
const WebSocket = require("node:module").createRequire(process.env.AGENTD_WS_NODE + "/x.js")("ws");

const [host] = process.argv.slice(2);

// connect opens a connection and keeps what comes, so that nothing is lost between two turns of the event loop.
async function connect(path, protocols = [], options = {}) {
  const socket = new WebSocket(`ws://${host}${path}`, protocols, options);
  const queues = {message: [], pong: [], ping: []}, waiting = {message: [], pong: [], ping: []};
  for (const kind of Object.keys(queues)) {
    socket.on(kind, (data, binary) => {
      const item = {data, binary};
      if (waiting[kind].length) waiting[kind].shift()(item);
      else queues[kind].push(item);
    });
    socket["next" + kind] = () => new Promise(done => queues[kind].length ? done(queues[kind].shift()) : waiting[kind].push(done));
  }
  socket.closed = new Promise(done => socket.on("close", (code, reason) => done({code, reason: reason.toString()})));
  await new Promise((resolve, reject) => {
    socket.on("open", resolve);
    socket.on("error", reject);
    socket.on("unexpected-response", (_, answer) => resolve((socket.refused = answer)));
  });
  return socket;
}

// seen is how the server says that the connection with this id has ended.
const seen = async id => (await fetch(`http://${host}/end?id=${id}`)).json();

const letters = n => Buffer.alloc(n, "agentd ☂ ").subarray(0, n);
const text = n => "ü".repeat(n >> 1) + "x".repeat(n & 1); // n bytes

async function echoes(socket, data, binary) {
  const back = await socket.nextmessage();
  assert.equal(back.binary, binary);
  assert.ok(back.data.equals(Buffer.from(data)), `${back.data.length} bytes came back of ${Buffer.byteLength(data)}`);
}

const checks = {
  async sizes() {
    const socket = await connect("/echo?id=sizes");
    for (const n of [0, 1, 125, 126, 127, 65535, 65536, 1 << 20]) {
      socket.send(text(n));
      await echoes(socket, text(n), false);
      socket.send(letters(n));
      await echoes(socket, letters(n), true);
    }
    socket.close(1000, "done");
    assert.equal((await socket.closed).code, 1000);
    assert.deepEqual(await seen("sizes"), {code: 1000, reason: "done"});
  },

  async "many messages at once"() {
    const socket = await connect("/echo?id=many");
    for (let n = 0; n < 2000; n++) socket.send(`message ${n}`);
    for (let n = 0; n < 2000; n++) await echoes(socket, `message ${n}`, false);
    socket.close();
    await socket.closed;
  },

  async "fragments with pings between"() {
    const socket = await connect("/echo?id=fragments");
    for (const size of [1, 125, 126, 65535, 65536]) {
      const whole = text(3 * 65536);
      const bytes = Buffer.from(whole).subarray(0, Math.min(whole.length, 200 * size));
      for (let at = 0; at < bytes.length; at += size) {
        // A fragment may end within a character.
        socket.send(bytes.subarray(at, at + size), {binary: false, fin: at + size >= bytes.length});
        if (at < 3 * size) socket.ping(`at ${at}`);
      }
      await echoes(socket, bytes, false);
      for (let at = 0; at < Math.min(3 * size, bytes.length); at += size) assert.equal((await socket.nextpong()).data.toString(), `at ${at}`);
    }
    socket.send("", {fin: false});
    socket.send("", {fin: false});
    socket.send("", {fin: true});
    await echoes(socket, "", false);
    socket.close();
    await socket.closed;
  },

  async "pings of both sides"() {
    const socket = await connect("/ping");
    assert.equal((await socket.nextping()).data.length, 0); // answered by the library
    socket.send("has the pong come?");
    await echoes(socket, "yes", false);
    for (const n of [0, 1, 125]) {
      socket.ping(letters(n));
      assert.ok((await socket.nextpong()).data.equals(letters(n)));
    }
    socket.close();
    await socket.closed;
  },

  async "batches"() {
    const socket = await connect("/batch");
    for (const n of [0, 125, 126, 65535, 65536]) {
      await echoes(socket, "x".repeat(n), false);
      await echoes(socket, "y".repeat(n), true);
    }
    socket.close();
    await socket.closed;
  },

  async "close by the client"() {
    for (const [code, reason] of [[1000, ""], [1001, "away"], [3000, "r"], [4321, "bye ☂"], [4999, "x".repeat(123)]]) {
      const socket = await connect(`/echo?id=close${code}`);
      socket.close(code, reason);
      assert.equal((await socket.closed).code, code); // the answer need not have the reason
      assert.deepEqual(await seen(`close${code}`), {code, reason});
    }
    const socket = await connect("/echo?id=nocode");
    socket.close();
    assert.equal((await socket.closed).code, 1005);
    assert.deepEqual(await seen("nocode"), {code: 1005, reason: ""});
  },

  async "close by the server"() {
    for (const [code, reason] of [[1000, ""], [1001, "going"], [1011, "broken"], [4002, "auth.invalid"], [4999, "☂".repeat(41)]]) {
      const socket = await connect(`/close?code=${code}&reason=${encodeURIComponent(reason)}`);
      assert.deepEqual(await socket.closed, {code, reason});
    }
    const socket = await connect("/close?code=1005");
    assert.deepEqual(await socket.closed, {code: 1005, reason: ""});
  },

  async "no close at all"() {
    const socket = await connect("/echo?id=gone");
    socket.terminate();
    assert.deepEqual(await seen("gone"), {code: 1006, reason: ""});
  },

  async "too much"() {
    const socket = await connect("/echo?id=big");
    socket.on("error", () => {}); // the connection may be reset while it writes
    socket.send(letters((1 << 20) + 1));
    assert.equal((await seen("big")).code, 1009);
  },

  async "text that is none"() {
    const socket = await connect("/echo?id=utf8");
    socket.send(Buffer.from([0x61, 0xed, 0xa0, 0x80]), {binary: false}); // a surrogate
    assert.equal((await socket.closed).code, 1007);
    assert.equal((await seen("utf8")).code, 1007);
  },

  async "handshakes"() {
    const socket = await connect("/echo?id=protocol&protocol=b", ["a", "b", "c"], {perMessageDeflate: true});
    assert.equal(socket.protocol, "b");
    assert.equal(socket.extensions, ""); // it offered permessage-deflate
    socket.close();
    await socket.closed;
    const old = await connect("/echo", [], {protocolVersion: 8});
    assert.equal(old.refused?.statusCode, 426);
    assert.equal(old.refused.headers["sec-websocket-version"], "13");
  },
};

(async () => {
  for (const [name, check] of Object.entries(checks)) {
    let timer;
    const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error("it takes too long")), 10000); });
    const error = await Promise.race([check(), late]).then(() => undefined, e => String(e.stack));
    clearTimeout(timer);
    console.log(JSON.stringify({name, error}));
  }
  process.exit(0);
})();
