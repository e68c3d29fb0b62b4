"""The error tree.

SentinelError
|- UserError            the user's fault: the message names the value and what to change (CLI exit code 2)
|  |- ConfigError       a setting or a file is missing or wrong
|  |- JobSpecError      a job file that cannot be run; lists every problem found
|  |- KeystoreError     keystore missing, wrong password, key already in use
|  |- ChainMismatch     wrong chain id, contracts not deployed, RPC unreachable at start
|  `- Rejected          a contract refused a transaction; decoded, with its numbers (exit code 3)
|- Recoverable          try again or elsewhere: time-out, peer gone, stale answer
|  |- PeerGone
|  `- ChainUnavailable  RPC trouble after start
|- ProtocolError        a peer broke the protocol: a frame, signature, session or record was refused
`- Fatal                this run cannot go on; nothing was lost (exit code 4)
"""

from __future__ import annotations


class SentinelError(Exception):
    """Base of every error that we raise on purpose."""

    exit_code = 1


class UserError(SentinelError):
    """A mistake of the user: named value, named way out."""

    exit_code = 2


class ConfigError(UserError):
    """A setting or file is missing or wrong."""


class JobSpecError(UserError):
    """A job file cannot be run; ``problems`` lists everything found at once."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class KeystoreError(UserError):
    """Keystore missing, password wrong, or the key is in use by another process."""


class ChainMismatch(UserError):  # noqa: N818
    """The chain is not the one that was configured, or does not hold our contracts."""


class Rejected(UserError):  # noqa: N818
    """A contract refused a transaction; the message is the decoded custom error with its numbers."""

    exit_code = 3

    def __init__(self, name: str, message: str, args: dict[str, object] | None = None) -> None:
        self.name = name
        self.values = args or {}
        super().__init__(message)


class Recoverable(SentinelError):  # noqa: N818
    """Trouble that another try, or another peer, may mend."""


class PeerGone(Recoverable):
    """A worker or a seat stopped answering."""


class ChainUnavailable(Recoverable):
    """The RPC endpoint does not answer at present."""


class ProtocolError(SentinelError):
    """A peer broke the protocol. ``code`` is stable and appears in metrics and tests."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")


class Fatal(SentinelError):  # noqa: N818
    """The run cannot go on. Money and finished work are safe."""

    exit_code = 4
