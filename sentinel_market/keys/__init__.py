"""Keystores: an identity is a cold account (owns stake, receives pay) and a hot key (signs frames and reports)."""

from sentinel_market.keys.keylock import KeyLock
from sentinel_market.keys.keystore import ColdKey, Identity, Keystore

__all__ = ["ColdKey", "Identity", "KeyLock", "Keystore"]
