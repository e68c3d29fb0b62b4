"""`sentinel demo`: the whole market on one machine, nothing faked, every claim checked against the chain."""
