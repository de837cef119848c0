// The other side of TestInterop, by the npm package ws.
//
//   node peer.js server PROTOCOL       listens, prints its port, and echoes
//   node peer.js client PROTOCOL URL   sends messages to an echoing server, and fails if others come back
'use strict'
const path = require('path')
const { createRequire } = require('module')
const { WebSocket, WebSocketServer } = createRequire(path.join(process.env.AGENTD_WS_NODE, 'x.js'))('ws')

const [mode, protocol, url] = process.argv.slice(2)
const fail = why => { console.error(why); process.exit(1) }

if (mode === 'server') {
  const server = new WebSocketServer({ host: '127.0.0.1', port: 0, perMessageDeflate: true, handleProtocols: offered => offered.has(protocol) && protocol })
  server.on('listening', () => console.log(server.address().port))
  server.on('connection', socket => {
    socket.on('error', () => {})
    socket.on('message', (data, binary) => {
      // In three frames, to have something to put together.
      const a = data.length / 3 | 0, b = data.length / 2 | 0
      socket.send(data.subarray(0, a), { binary, fin: false })
      socket.ping('between')
      socket.send(data.subarray(a, b), { binary, fin: false })
      socket.send(data.subarray(b), { binary, fin: true })
    })
  })
} else {
  const sizes = [0, 1, 125, 126, 127, 65535, 65536, 500000]
  const sent = []
  for (const n of sizes) {
    sent.push([Buffer.from('€'.repeat(n / 3 + 1)).subarray(0, n - n % 3), false], [Buffer.alloc(n, 0xff), true])
  }
  const socket = new WebSocket(url, [protocol], { perMessageDeflate: true })
  let got = 0, pongs = 0
  socket.on('error', fail)
  socket.on('open', () => {
    if (socket.protocol !== protocol) fail('protocol ' + socket.protocol)
    if (socket.extensions) fail('extensions ' + socket.extensions)
    for (const [data, binary] of sent) {
      const half = data.length / 2 | 0
      socket.send(data.subarray(0, half), { binary, fin: false })
      socket.ping(String(half))
      socket.send(data.subarray(half), { binary, fin: true })
    }
  })
  socket.on('pong', () => pongs++)
  socket.on('message', (data, binary) => {
    const [want, wantBinary] = sent[got++]
    if (binary !== wantBinary || !data.equals(want)) fail(`message ${got}: ${data.length} bytes, binary ${binary}`)
    if (got === sent.length) socket.close(4000, 'bye')
  })
  socket.on('close', (code) => {
    if (code !== 4000 || got !== sent.length || pongs === 0) fail(`closed with ${code} after ${got} messages and ${pongs} pongs`)
  })
}
