"""Who does the runs: this process, or a few others with one thread each."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from sentinel_market.errors import Fatal, SentinelError
from sentinel_market.sim.settings import RunResult, RunSettings

Run = Callable[[RunSettings, Callable[[int, int], None] | None], RunResult]


@dataclass(frozen=True, kw_only=True)
class Event:
    """News of a run: how far it is, its result, or why it failed."""

    settings: RunSettings
    step: int = 0
    result: RunResult | None = None
    error: str = ""


class Runner(Protocol):
    """``start`` while there is room, then ``wait`` for news."""

    @property
    def room(self) -> int:
        """How many more runs can be started."""

    @property
    def busy(self) -> bool:
        """Whether any run is under way."""

    def start(self, settings: RunSettings) -> None:
        """Begin a run."""

    def wait(self) -> list[Event]:
        """Block until there is news."""

    def close(self) -> None:
        """End everything at once; unfinished runs are lost."""


def explain(error: BaseException) -> str:
    """An error of a run as a message."""
    if isinstance(error, (SentinelError, ValueError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


class Inline:
    """One run after the other in this process."""

    def __init__(self, run: Run, on_step: Callable[[RunSettings, int], None] | None = None) -> None:
        self._run = run
        self._on_step = on_step
        self._next: RunSettings | None = None

    @property
    def room(self) -> int:
        """One, unless a run waits."""
        return int(self._next is None)

    @property
    def busy(self) -> bool:
        """Whether a run waits to be done."""
        return self._next is not None

    def start(self, settings: RunSettings) -> None:
        """Take a run; ``wait`` does it."""
        self._next = settings

    def wait(self) -> list[Event]:
        """Do the run."""
        settings = self._next
        assert settings is not None
        self._next = None

        def step(done: int, _of: int) -> None:
            if self._on_step is not None:
                self._on_step(settings, done)

        try:
            return [Event(settings=settings, result=self._run(settings, step))]
        except Exception as error:  # noqa: BLE001 - a user's attack may raise anything; the other runs go on
            return [Event(settings=settings, error=explain(error))]

    def close(self) -> None:
        """Nothing to end."""


def _serve(pipe: Connection, run: Run) -> None:
    """A worker process: runs until its pipe closes. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            settings = pipe.recv()

            def step(done: int, _of: int, settings: RunSettings = settings) -> None:
                pipe.send(Event(settings=settings, step=done))

            try:
                event = Event(settings=settings, result=run(settings, step))
            except (EOFError, BrokenPipeError):
                return
            except Exception as error:  # noqa: BLE001 - a user's attack may raise anything; the other runs go on
                event = Event(settings=settings, error=explain(error))
            pipe.send(event)


class Pool:
    """Worker processes, each with one run at a time."""

    def __init__(self, run: Run, jobs: int) -> None:
        """``run`` must be importable by name in a new process."""
        context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, BaseProcess] = {}
        self._doing: dict[Connection, RunSettings | None] = {}
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, run), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process
            self._doing[ours] = None

    @property
    def room(self) -> int:
        """Idle processes."""
        return sum(doing is None for doing in self._doing.values())

    @property
    def busy(self) -> bool:
        """Whether any process works."""
        return any(doing is not None for doing in self._doing.values())

    def start(self, settings: RunSettings) -> None:
        """Give a run to an idle process."""
        pipe = next(pipe for pipe, doing in self._doing.items() if doing is None)
        self._doing[pipe] = settings
        pipe.send(settings)

    def wait(self) -> list[Event]:
        """News of any process; Fatal when one died."""
        events = []
        for pipe in wait([pipe for pipe, doing in self._doing.items() if doing is not None]):
            assert isinstance(pipe, Connection)
            try:
                event: Event = pipe.recv()
            except (EOFError, OSError):
                self._processes[pipe].join(5)
                code, doing = self._processes[pipe].exitcode, self._doing[pipe]
                name = doing and (doing.attack or doing.condition or "clean")
                raise Fatal(
                    f"a worker process ended with code {code} in the run {name!r} (out of memory?); the finished runs "
                    "are kept: give the same command again, with --jobs 1 if memory is short"
                ) from None
            if event.result is not None or event.error:
                self._doing[pipe] = None
            events.append(event)
        return events

    def close(self) -> None:
        """End the processes that this pool started."""
        for process in self._processes.values():
            process.terminate()
        for pipe, process in self._processes.items():
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._processes, self._doing = {}, {}
