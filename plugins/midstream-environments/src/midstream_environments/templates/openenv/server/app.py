"""The application: `uvicorn NAME.server.app:app`."""

import argparse

from openenv.core.env_server.http_server import create_app

from ..models import WorldAction, WorldObservation
from .environment import WorldEnvironment, world

SESSIONS = 256

# Here, so that a recipe that cannot be built is an error at the start of the server.
app = create_app(WorldEnvironment, WorldAction, WorldObservation, env_name=world().name, max_concurrent_envs=SESSIONS)


def main() -> None:
    """Serve it."""
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    uvicorn.run(app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
