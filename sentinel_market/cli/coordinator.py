"""``sentinel coordinator``."""

from __future__ import annotations

import click

from sentinel_market.cli.common import App, verb


@click.group()
def coordinator() -> None:
    """The coordinator: job files, discovery, an index of the chain, the page. Nobody has to trust it."""


@verb(coordinator, "start", example="sentinel coordinator start --port 8700")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", default=8700, show_default=True, help="Where to listen.")
def start(app: App, host: str, port: int) -> None:
    """Run a coordinator for the network of the network file until Ctrl-C."""
    from sentinel_market.chain.logs import EventFeed
    from sentinel_market.coordinator.serve import serve
    from sentinel_market.coordinator.settings import CoordinatorSettings

    client = app.reader
    # A local chain that was started anew has the same chain id: its index must not be the old one's.
    genesis = client.genesis().hex()[:8]
    folder = app.settings.home / "coordinator" / f"{app.network.chain_id}-{genesis}"
    folder.mkdir(parents=True, exist_ok=True)
    app.say(f"coordinator on http://{host}:{port}, data in {folder}")
    serve(
        CoordinatorSettings(
            database=folder / "index.sqlite3",
            blob_dir=app.settings.home / "blobs",
            chain_id=app.network.chain_id,
            contracts=app.network.contracts,
            events=EventFeed(client),
            first_block=app.network.deployed_block,
            confirmations=client.confirmations,
        ),
        host,
        port,
    )
