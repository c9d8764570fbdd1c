"""Starts the servers of one engine, one after another, and remembers what the deaths of earlier ones taught.

Invariants:
- A server that dies for want of a compiler is started again without compiled kernels, once, with a line that says so;
  one that does not understand the name of a MIG slice is given the slice's number.
- A port that another process took meanwhile is no reason to give up, but for the third time.
"""

from collections.abc import Callable

from swe_rl.engine.vllm.log import Cause
from swe_rl.engine.vllm.server import ServerDiedError, VllmServer

# Between our look for a free port and the server's listening another process may take it; three times is no accident.
_PORT_TRIES = 3
# It makes a server that is not started, of the model's path, whether it runs without compiled kernels, and whether a
# MIG slice is called by its number. Raises DeviceError.
MakeServer = Callable[[str, bool, bool], VllmServer]


class ServerStarter:
    """Starts servers. `say` is told what is started in another way, and why."""

    def __init__(self, make_server: MakeServer, name: str, say: Callable[[str], None]) -> None:
        self._make_server = make_server
        self._name = name
        self._say = say
        self._eager = False
        self._by_number = False
        # This is the newest server, also if it did not come up.
        self.server: VllmServer | None = None

    async def start(self, model_path: str) -> tuple[VllmServer, float]:
        """Returns a healthy server, and the seconds that it took to be so. Raises ServerDiedError, EngineError."""
        attempt = 0
        while True:
            attempt += 1
            self.server = server = self._make_server(model_path, self._eager, self._by_number)
            try:
                return server, await server.start()
            except ServerDiedError as error:
                lost_port = error.cause is Cause.port_in_use and attempt < _PORT_TRIES
                if not (self.learn(error) or lost_port):
                    raise

    def learn(self, error: ServerDiedError) -> bool:
        """Tells whether the next server will be started in another way, because this one died."""
        if error.cause is Cause.no_compiler and not self._eager:
            self._eager = True
            self._say(
                f"{self._name}: no compiler for vLLM's kernels here, so it runs without compiled ones (as with "
                f"engine.enforce_eager=true), which is slower. {error}"
            )
            return True
        if error.cause is Cause.mig_name and not self._by_number:
            self._by_number = True
            self._say(
                f"{self._name}: this vLLM does not take the name of a MIG slice, so it is given a number. {error}"
            )
            return True
        return False
