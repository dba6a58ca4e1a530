"""A server of streams: each client sends frames over a websocket and gets an answer to each. Frames of many
clients that have arrived meanwhile are one call of the model.

Needs the extra `examples`. Serves 200 clients of its own, as fast as each can, and prints their waits.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Hashable

import torch
from torch import Tensor, nn
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

import stepnet
from stepnet import LoDTensor

FEATURES, HIDDEN, CLASSES = 16, 64, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = stepnet.nn.LSTM(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: LoDTensor) -> LoDTensor:
        return self.rnn(x)[0].map(self.head)


class Server:
    """Pushes what has arrived, in a thread of its own, while the loop goes on receiving.

    A stream that opens or closes waits for the push that runs, so it waits in a thread, too.
    """

    def __init__(self, model: nn.Module, max_streams: int) -> None:
        self.live = stepnet.stream(model, max_streams=max_streams)
        self.arrived: asyncio.Queue[tuple[Hashable, Tensor, asyncio.Future[Tensor]]] = asyncio.Queue()
        self.sizes: list[int] = []

    async def client(self, socket: ServerConnection) -> None:
        """One stream: opened with the connection, closed with it."""
        id = await asyncio.to_thread(self.live.open)
        try:
            async for message in socket:
                assert isinstance(message, bytes)
                rows = torch.frombuffer(bytearray(message), dtype=torch.float32).view(-1, FEATURES)
                answer: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
                await self.arrived.put((id, rows, answer))
                await socket.send((await answer).numpy().tobytes())
        finally:
            await asyncio.to_thread(self.live.close, id)

    async def run(self) -> None:
        while True:
            waiting = [await self.arrived.get()]
            while not self.arrived.empty():
                waiting.append(self.arrived.get_nowait())
            chunks = {id: rows for id, rows, _ in waiting}  # a client waits for its answer: one chunk each
            try:
                out = await asyncio.to_thread(self.live.push, chunks)
            except Exception as error:
                # No state has changed; the clients' connections end with it.
                for *_, answer in waiting:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            self.sizes.append(len(chunks))
            for id, _, answer in waiting:
                if not answer.done():  # its client may be gone
                    answer.set_result(out[id])


async def talk(address: str, rows: Tensor, waits: list[float]) -> Tensor:
    """One client: a frame at a time."""
    answers = []
    async with connect(address) as socket:
        for row in rows:
            start = time.perf_counter()
            await socket.send(row.numpy().tobytes())
            answers.append(torch.frombuffer(bytearray(await socket.recv(decode=False)), dtype=torch.float32))
            waits.append(time.perf_counter() - start)
    return torch.stack(answers)


async def main(clients: int = 200, frames: int = 5) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    server = Server(model, max_streams=clients)
    frames_of = torch.randn(clients, frames, FEATURES)
    first = server.live.open()
    server.live.push({first: frames_of[0, :1]})  # the first push of all compiles the step
    server.live.close(first)
    async with serve(server.client, "127.0.0.1", 0) as listening:
        pushing = asyncio.create_task(server.run())
        host, port = listening.sockets[0].getsockname()[:2]
        waits: list[float] = []
        start = time.perf_counter()
        calls = [talk(f"ws://{host}:{port}", rows, waits) for rows in frames_of]
        answers = torch.stack(await asyncio.gather(*calls))
        seconds = time.perf_counter() - start
        pushing.cancel()
    with torch.no_grad():
        whole = model(LoDTensor.from_sequences(list(frames_of)))
    torch.testing.assert_close(answers.flatten(0, 1), whole.values, rtol=1e-4, atol=1e-5)
    at = statistics.quantiles(waits, n=100)
    print(f"{clients} clients, {len(waits) / seconds:.0f} frames a second, as whole sequences give")
    print(f"{statistics.mean(server.sizes):.0f} streams a call of the model")
    print(f"waited: median {1e3 * at[49]:.1f} ms, 95 % {1e3 * at[94]:.1f} ms, 99 % {1e3 * at[98]:.1f} ms")


if __name__ == "__main__":
    asyncio.run(main())
