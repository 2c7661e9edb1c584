"""A relay between a client and one broker, which can keep answers to itself and break connections."""

from __future__ import annotations

import socket
import threading


class Relay:
    """Listens on a port of its own, which the broker advertises. All threads end with :meth:`close`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.target = -1
        """The broker's own port, to be set before a client comes."""
        self.holding = threading.Event()
        """While it is set, the broker's answers vanish."""
        self.closed = threading.Event()
        """While it is set, new connections are closed at once."""
        self.refused = 0
        """Connections that were closed at once."""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all connections, and let no new one in until ``closed`` is cleared."""
        self.closed.set()
        for pair in self._pairs:
            for end in pair:
                _shut(end)
        self._pairs.clear()

    def close(self) -> None:
        self.cut()
        _shut(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.closed.is_set():
                client.close()
                self.refused += 1
                continue
            broker = socket.create_connection(("127.0.0.1", self.target))
            self._pairs.append((client, broker))
            threading.Thread(target=self._carry, args=(client, broker, None), daemon=True).start()
            threading.Thread(target=self._carry, args=(broker, client, self.holding), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, holding: threading.Event | None) -> None:
        try:
            while data := source.recv(65_536):
                if holding is None or not holding.is_set():
                    target.sendall(data)
        except OSError:
            pass
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
