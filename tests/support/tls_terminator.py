"""A TLS listener in front of another one: decrypts on loopback and passes the bytes on."""

from __future__ import annotations

import asyncio
import ssl
import threading

from fleetlog.brokers.tls.machine import TlsEngine, TlsFailure, TlsState


class TlsTerminator:
    """Serves in a thread of its own until :meth:`close`; ``port`` is taken, ``target`` is a port of loopback."""

    def __init__(self, context: ssl.SSLContext, port: int, target: int) -> None:
        self.target, self.context = target, context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", port)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine = TlsEngine(self.context, server_side=True)
        try:
            await _shake_hands(engine, reader, writer)
            await self._pass_on(engine, reader, writer)
        except (TlsFailure, OSError):
            writer.write(engine.take())
        finally:
            writer.close()

    async def _pass_on(self, engine: TlsEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.target)
        there = asyncio.ensure_future(_decrypt(engine, reader, inner_writer))
        back = asyncio.ensure_future(_encrypt(engine, inner_reader, writer))
        try:
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (there, back):
                one.cancel()
            inner_writer.close()
            await asyncio.gather(there, back, return_exceptions=True)

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _shake_hands(engine: TlsEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not engine.handshake():
        writer.write(engine.take())
        data = await reader.read(65_536)
        if data:
            engine.feed(data)
        else:
            engine.feed_eof()
    writer.write(engine.take())


async def _decrypt(engine: TlsEngine, reader: asyncio.StreamReader, inner: asyncio.StreamWriter) -> None:
    while True:
        while text := engine.read(65_536):
            inner.write(text)
        await inner.drain()
        data = await reader.read(65_536)
        if not data or engine.state is not TlsState.OPEN:
            return
        engine.feed(data)


async def _encrypt(engine: TlsEngine, inner: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await inner.read(65_536):
        assert engine.write(data) == len(data)
        writer.write(engine.take())
        await writer.drain()
