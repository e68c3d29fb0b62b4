"""Storage of the coordinator: SQLite through SQLAlchemy, blobs as files. ``open_store`` is the only door."""

from __future__ import annotations

from sentinel_market.store.blobs import BlobStore, BlobTooLarge, BlobWriter, StoreFull, WrongDigest
from sentinel_market.store.database import Store, UnitOfWork, open_store

__all__ = [
    "BlobStore",
    "BlobTooLarge",
    "BlobWriter",
    "Store",
    "StoreFull",
    "UnitOfWork",
    "WrongDigest",
    "open_store",
]
