"""What strangers may say to a port, from a grammar.

    connection -> frame* bytes?            frame -> header payload, either of them wrong in any of its parts
    payload    -> JSON text | its bytes in another encoding | its bytes with some changed
    JSON text  -> an object of the names that greetings and requests use, and of others; its values are the right ones, their
                  neighbours, and everything else that JSON can write

Half of the sentences are right up to one part, so that a check that stands behind another one is reached.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Final

from xxhash import xxh3_64_intdigest

from penstock.protocol.messages import Stamp
from penstock.runners.spark.frames import CHECKED

TOKEN: Final = "5e" * 32
STAMP: Final = Stamp("abc", 1, 2)

NASTY: Final = [
    r'"\ud800"', r'"\udfff\ud800"', r'"\ud83d\ude00"', r'"\u0000"', r'"é"', '"\N{SNOWMAN}"', '""', '"x"', f'"{TOKEN[:-1]}"',
    f'"{TOKEN.upper()}"', f'"{TOKEN} "', f'"{TOKEN}\\ud800"', "null", "true", "false", "0", "-1", "1.0", "1e400", "-0.0", "1" * 400,
    "1" * 5_000, "NaN", "-Infinity", "[]", "{}", "[[[[]]]]", "[" * 2_000, "[" * 200 + "]" * 200, '{"a":{"a":{}}}', '{"say":"hello"}',
    '["abc",1,2]', '["abc",1,1]', '["abc",true,2.0]', '["abc",1,2,3]', '[["abc"],1,2]', '["127.0.0.1",1]', '["\\ud800",1]', '"hello"',
    '"ready"', '"failed"', '"x' + "y" * 300 + '"', "nul", "'", '"', "\\", '"\x01"', "",
]  # fmt: skip
NAMES: Final = [
    "say", "token", "stamp", "exchange", "source", "target", "worker", "uid", "pid", "address", "identity", "verb", "args", "",
    r"\ud800", "__class__", "say", "token",
]  # fmt: skip
RIGHT: Final = {
    "say": '"hello"', "token": f'"{TOKEN}"', "stamp": '["abc",1,2]', "exchange": "0", "source": "1", "target": "0", "worker": "0",
    "uid": '"u"', "pid": "1", "address": '["127.0.0.1",1]', "identity": '"code 1"', "verb": '"status"', "args": "{}",
}  # fmt: skip
MEMBERS: Final = [f'"{name}":{value}' for name, value in RIGHT.items()]
ODD: Final = [f'"{name}":{value}' for name in NAMES for value in NASTY]
ENCODINGS: Final = ["utf-16", "utf-32", "utf-8-sig", "utf-16-le", "latin-1"]
LENGTHS: Final = [0, 1, 31, 32, 65_536, 65_537, 1 << 26, (1 << 26) + 1, (1 << 32) - 1]
NUMBERS: Final = [1, 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


class Grammar:
    """Sentences, the same ones for the same seed. `token` is left out of what is said rightly unless `knows_token`."""

    def __init__(self, seed: int, *, knows_token: bool = True) -> None:
        self._random = random.Random(seed)
        own = f'"token":"{TOKEN}"'
        self._members = [member for member in MEMBERS if knows_token or member != own]
        self._odd = [member for member in ODD if knows_token or member != own]

    def text(self) -> str:
        """A text that is JSON, or nearly so."""
        of = self._random.random
        odd = self._odd
        many = len(odd)
        kind = of()
        if kind < 0.5:  # right but for one member, which comes last and counts
            return "{" + ",".join(self._members) + "," + odd[int(of() * many)] + "}"
        if kind < 0.9:
            return "{" + ",".join([odd[int(of() * many)] for _ in range(int(of() * 6))]) + "}"
        if kind < 0.95:
            return NASTY[int(of() * len(NASTY))]
        whole = "{" + ",".join(self._members) + "}"
        cut = int(of() * len(whole))
        return whole[:cut] + NASTY[int(of() * len(NASTY))] + whole[cut + int(of() * 5) :]

    def payload(self) -> bytes:
        """Bytes of such a text."""
        of = self._random.random
        text = self.text()
        kind = of()
        if kind < 0.9:
            return text.encode()
        if kind < 0.95:
            return text.encode(ENCODINGS[int(of() * len(ENCODINGS))], "replace")
        changed = bytearray(text.encode())
        for _ in range(min(3, len(changed))):
            changed[int(of() * len(changed))] = int(of() * 256)
        return bytes(changed)

    def line(self) -> bytes:
        """A request to a job's control socket."""
        return self.payload() if self._random.random() < 0.1 else self.payload().replace(b"\n", b"") + b"\n"

    def frame(self) -> bytes:
        """A frame, or nearly so."""
        of = self._random.random
        payload = self.payload()
        magic, version, kind, zero, length, number = b"PNSK", 1, 6, 0, len(payload), 0
        digest = xxh3_64_intdigest(payload)
        wrong = of()
        if wrong < 0.2:
            part = int(of() * 7)
            if part == 0:
                magic = b"GET "
            elif part == 1:
                version = int(of() * 256)
            elif part == 2:
                kind = int(of() * 256)
            elif part == 3:
                zero = int(of() * 65_536)
            elif part == 4:
                length = LENGTHS[int(of() * len(LENGTHS))]
            elif part == 5:
                number = NUMBERS[int(of() * len(NUMBERS))]
            else:
                digest ^= 1 << int(of() * 64)
        checked = CHECKED.pack(magic, version, kind, zero, length, number, digest)
        own = xxh3_64_intdigest(checked) & 0xFFFFFFFF
        return checked + struct.pack("<I", own if of() > 0.02 else own ^ 1) + payload

    def connection(self) -> bytes:
        """All bytes of a connection."""
        of = self._random.random
        said = self.frame()
        kind = of()
        if kind < 0.85:
            return said
        if kind < 0.9:
            return said + self.frame()
        if kind < 0.95:
            return said[: int(of() * len(said))]
        return self._random.randbytes(int(of() * 100))

    def pieces(self) -> Iterator[bytes]:
        """A connection as it is received, mostly at once."""
        said = self.connection()
        if self._random.random() < 0.95:
            yield said
            return
        while said:
            size = 1 + int(self._random.random() * 40)
            yield said[:size]
            said = said[size:]


def right_greeting() -> bytes:
    """What is accepted, to know that the grammar is about the parser that is tested."""
    payload = json.dumps({name: json.loads(value) for name, value in RIGHT.items()}).encode()
    checked = CHECKED.pack(b"PNSK", 1, 6, 0, len(payload), 0, xxh3_64_intdigest(payload))
    return checked + struct.pack("<I", xxh3_64_intdigest(checked) & 0xFFFFFFFF) + payload
