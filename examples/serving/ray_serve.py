"""Replicas of a Ray cluster behind one address, each a server of the same bundle folder.

From the project's root, with `pip install 'ray[serve]' 'polyhead[openvino]'` on every node:

    serve run examples.serving.ray_serve:build bundle=/bundles/live replicas=2

Every node must see the folder. These servers ask for no keys: let what stands before Ray ask for them.
"""

from typing import Any

from ray import serve


class BundleServer:
    """The application of `polyhead serve`, made by the replica that runs it: nothing of it travels between machines."""

    def __init__(self, bundle: str, backend: str | None = None) -> None:
        self._bundle, self._backend, self._app = bundle, backend, None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            from polyhead.engine.session import Session
            from polyhead.serve.app import application
            from polyhead.serve.service import Service
            from polyhead.serve.settings import ServeSettings

            self._app = application(Service(Session(self._bundle, backend=self._backend), ServeSettings()))
        await self._app(scope, receive, send)


def build(arguments: dict[str, str]) -> serve.Application:
    """The deployment: `bundle`, and where they are given `replicas`, `processors` of each, and `backend`."""
    app = BundleServer(arguments["bundle"], arguments.get("backend"))

    @serve.deployment(
        name="polyhead",
        num_replicas=int(arguments.get("replicas", "2")),
        ray_actor_options={"num_cpus": float(arguments.get("processors", "1"))},
        max_ongoing_requests=1000,  # the server's own queue decides what waits, and refuses with 429
        graceful_shutdown_timeout_s=40.0,
    )
    @serve.ingress(app)
    class Replica:
        pass

    return Replica.bind()
