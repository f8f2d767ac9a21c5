#!/usr/bin/env python3
"""The MAC of `seal`, written from docs/reference/seal.md with Python's integers and openssl's AES.

`python3 tools/seal_tag.py` prints the vectors in net/src/seal/mac.rs; needs `openssl`.
"""

import subprocess


def aes(key, blocks):
    command = ["openssl", "enc", "-aes-256-ecb", "-nopad", "-K", key.hex()]
    return subprocess.run(command, input=blocks, capture_output=True, check=True).stdout


def derive(key, purpose, first, count):
    blocks = b"".join(
        b"dogseal2" + purpose.to_bytes(4, "little") + i.to_bytes(4, "little")
        for i in range(first, first + count)
    )
    return aes(key, blocks)


def word(data, i):
    return int.from_bytes(data[8 * i : 8 * i + 8], "little")


def product(a, b):
    total = 0
    while b:
        if b & 1:
            total ^= a
        a, b = a << 1, b >> 1
    return total


def tag(key, link, number, message):
    padded = message + bytes(-len(message) % 16)
    keys = derive(key, 3, 0, len(padded) // 16) if padded else b""
    total = product(len(message), word(derive(key, 2, 0, 1), 0))
    for i in range(0, len(padded) // 8, 2):
        total ^= product(word(padded, i) ^ word(keys, i), word(padded, i + 1) ^ word(keys, i + 1))
    nonce = link.to_bytes(8, "little") + number.to_bytes(8, "little")
    pad = aes(derive(key, 1, 0, 2), nonce)
    return (total ^ int.from_bytes(pad, "little")).to_bytes(16, "little")


def main():
    key = bytes(range(32))
    print("key id", hex(word(derive(key, 4, 0, 1), 0)))
    for length, number in [(0, 1), (1, 2), (14, 3 | 13 << 56), (16, 4), (24, 5), (1472, 6), (65536, 7)]:
        message = bytes(i * 7 % 251 for i in range(length))
        made = tag(key, 0x0123456789ABCDEF, number, message)
        print(f'({length}, {number:#x}, "{made.hex()}"),')


if __name__ == "__main__":
    main()
