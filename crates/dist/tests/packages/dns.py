"""A DNS server on 127.0.0.1:53 that knows one name, given as argument, at 127.0.0.1. Prints each name that it is asked."""

import socket
import struct
import sys

A = 1
known = sys.argv[1]
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready", flush=True)
while True:
    query, client = server.recvfrom(512)
    end = query.index(0, 12) + 5
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    name, kind = ".".join(labels), struct.unpack(">H", query[end - 4 : end - 2])[0]
    print(name, flush=True)
    answer = b""
    if name == known and kind == A:
        answer = b"\xc0\x0c" + struct.pack(">HHIH", A, 1, 60, 4) + bytes([127, 0, 0, 1])
    code = 0x8180 if name == known else 0x8183
    head = query[:2] + struct.pack(">HHHHH", code, 1, 1 if answer else 0, 0, 0)
    server.sendto(head + query[12:end] + answer, client)
