"""This program runs inside a sandbox without network, where it joins 127.0.0.1:PORT to a Unix socket that leads out.

Invariants:
- It needs Python 3.6 or newer, and nothing but its standard library. It has one thread, whatever the number of
  connections, because the sandbox's limits of processes and memory count threads as well.
- When the starting process returns 0, the port accepts connections; the forwarder itself stays behind.
"""

import os
import socket
import sys


def listen_on_port(port: int) -> socket.socket:
    """Returns a socket that listens on the port. Raises OSError where the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def detach_process() -> None:
    """Takes this process out of the starting process's session, and off its output."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)


def forward_connections(listener: socket.socket, path: str) -> None:
    """Forwards each connection to the Unix socket at `path`, and never returns."""
    # It is imported only here, behind the fork, where nobody waits for it.
    import asyncio

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
    listener = listen_on_port(int(sys.argv[1]))
    if os.fork():
        os._exit(0)
    detach_process()
    forward_connections(listener, sys.argv[2])


if __name__ == "__main__":
    main()
