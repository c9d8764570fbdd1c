"""Runs inside a sandbox without network: 127.0.0.1:PORT there becomes a Unix socket that leads out.

Invariants:
- Alone: Python 3.6 or newer, nothing but its standard library. One thread, whatever the number of connections: the
  sandbox's limits of processes and memory count threads as well.
- When the starting process returns 0, the port accepts connections; the forwarder itself stays behind.
"""

import os
import socket
import sys


def listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def detach() -> None:
    """Leaves the starting process's session and output."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)


def forward(listener: socket.socket, path: str) -> None:
    import asyncio  # only here: nobody waits for it

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await reader.read(65536)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(path)
            try:
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
            finally:
                far_writer.close()
        except OSError:
            writer.transport.abort()
        finally:
            writer.close()

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(asyncio.start_server(serve, sock=listener))
    loop.run_forever()


def main() -> None:
    listener = listen(int(sys.argv[1]))
    if os.fork():
        os._exit(0)
    detach()
    forward(listener, sys.argv[2])


if __name__ == "__main__":
    main()
