"""What seats do about each other: cross-audits of frames and updates after a step, faults, the record of seats.

The rules that all seats must agree on are pure: ``sentinel_market.domain.cross_audit``.
"""
