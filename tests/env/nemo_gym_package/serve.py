"""Serves a resource server that the package nemo-gym ships, as its own command does but without a head server and Ray.

Arguments: the server's folder below `resources_servers`, and a port. The class is the one that its module serves.
"""

import importlib
import inspect
import sys

import uvicorn
from nemo_gym.base_resources_server import SimpleResourcesServer

name, port = sys.argv[1], int(sys.argv[2])
module = importlib.import_module(f"resources_servers.{name}.app")
(server_class,) = (
    kind
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, SimpleResourcesServer) and kind.__module__ == module.__name__
)
config_class = server_class.model_fields["config"].annotation
config = config_class(host="127.0.0.1", port=port, entrypoint="app.py", name=name, domain="other")
# No server of these calls another one, so there is no client.
server = server_class.model_construct(config=config, server_client=None)
app = server.setup_webserver()
server.setup_exception_middleware(app)
uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
