"""The other side of TestAutobahnClient, by Autobahn (Debian's python3-autobahn).

    peer.py PROTOCOL URL   sends messages to an echoing server, and fails if others come back
"""

import asyncio
import sys

from autobahn.asyncio.websocket import WebSocketClientFactory, WebSocketClientProtocol

subprotocol, url = sys.argv[1:3]
sent = []
for n in [0, 1, 125, 126, 127, 65535, 65536, 500000]:
    sent += [(("€" * (n // 3)).encode(), False), (b"\xff" * n, True)]


class Client(WebSocketClientProtocol):
    got = pongs = 0

    def onOpen(self):
        assert self.websocket_protocol_in_use == subprotocol
        self.offer()

    def offer(self):
        payload, binary = sent[self.got]
        self.sendPing(b"between")
        self.sendMessage(payload, binary, fragmentSize=max(1, len(payload) // 7))

    def onPong(self, payload):
        self.pongs += 1

    def onMessage(self, payload, isBinary):
        assert (payload, isBinary) == sent[self.got], "message %d" % self.got
        self.got += 1
        if self.got < len(sent):
            self.offer()
        else:
            self.sendClose(4000, "bye")

    def onClose(self, wasClean, code, reason):
        ok = wasClean and code == 4000 and self.got == len(sent) and self.pongs == self.got
        if not ok:
            print("closed", wasClean, code, reason, self.got, self.pongs, file=sys.stderr)
        done.set_result(0 if ok else 1)


async def main():
    global done
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    factory = WebSocketClientFactory(url, protocols=[subprotocol])
    factory.protocol = Client
    await loop.create_connection(factory, factory.host, factory.port)
    return await done


sys.exit(asyncio.run(main()))
