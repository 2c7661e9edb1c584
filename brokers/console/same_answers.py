"""Answers that are the same bytes as one before are not decoded again.

What a fleet's partitions and their settings are changes seldom, and pages ask for all of it each time: decoding it is
most of what the console computes. Nothing here can be out of date, since the brokers are asked, and no viewer gets what
its own login was not told: equal bytes say the same to everybody.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final

from fleetlog.wire import messages

REPEATED: Final = ("DescribeTopicPartitionsResponse", "DescribeConfigsResponse")
KEPT_BYTES: Final = 1_000_000
"""Of answers together. Decoded they take eight times as much."""
WORTH_BYTES: Final = 2_000
"""Smaller answers are decoded sooner than looked up."""
_UNTHROTTLED: Final = bytes(4)


class SameAnswers:
    """The newest answers by message, version and bytes. Whoever gets one must not change it."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes, self._bytes = kept_bytes, 0
        self._answers: OrderedDict[tuple[str, bytes], Any] = OrderedDict()
        self._lock = threading.Lock()

    def apply_to(self, message: Any) -> None:
        """Let the library decode this kind of answer so."""
        decode_anew = message.decode.__func__

        def decode(cls: Any, /, data: Any, **how: Any) -> Any:
            body = data.read() if hasattr(data, "read") else bytes(data)
            if len(body) < WORTH_BYTES or not body.startswith(_UNTHROTTLED) or how:
                return decode_anew(cls, body, **how)
            key = (cls.__name__, body)  # whose name has the version
            with self._lock:
                if key in self._answers:
                    self._answers.move_to_end(key)
                    return self._answers[key]
            answer = decode_anew(cls, body)
            with self._lock:
                self._keep(key, answer)
            return answer

        message.decode = classmethod(decode)

    def _keep(self, key: tuple[str, bytes], answer: Any) -> None:
        if key not in self._answers:
            self._bytes += len(key[1])
        self._answers[key] = answer
        while self._bytes > self._most_bytes:
            (_, body), _ = self._answers.popitem(last=False)
            self._bytes -= len(body)


_applied = threading.Lock()


def remember_same_answers() -> None:
    """In this process, from now on. Once is enough."""
    if _applied.acquire(blocking=False):
        same = SameAnswers()
        for name in REPEATED:
            same.apply_to(messages.message_class(name))
