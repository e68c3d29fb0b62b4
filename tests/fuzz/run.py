"""Coverage-guided fuzzing of the targets: ``python -m tests.fuzz.run [--home DIR] TARGET [libFuzzer's options]``.

Inputs that reach something new are kept in DIR/TARGET (DIR is ``runs/fuzz``), one that fails in DIR/crash-*; give its
path to run it again. ``-runs=N -seed=S`` from an empty DIR/TARGET is the same run each time. ``make fuzz`` calls it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris
import torch

# Whatever is compiled stays as it is: numba cannot compile instrumented functions.
with atheris.instrument_imports(
    include=["verifier.check", "sentinel_market.wire.tensors", "sentinel_market.wire.parts", "tests.fuzz"],
    exclude=["verifier.check.kernels"],
):
    from tests.fuzz import planted
    from tests.fuzz.targets import TARGETS
    from verifier.check.check import warm


def main(arguments: list[str]) -> None:
    """Does not return: libFuzzer ends the process, with 0 after ``-runs`` and with 77 after a failure."""
    home = Path("runs/fuzz")
    if arguments[:1] == ["--home"]:
        home, arguments = Path(arguments[1]), arguments[2:]
    name, *options = arguments or [""]
    known = TARGETS | {"planted": (planted.planted, planted.SEEDS)}
    if name not in known:
        raise SystemExit(f"name a target: {', '.join(known)}")
    target, seeds = known[name]
    torch.set_num_threads(1)
    warm()
    corpus = home / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    if all(option.startswith("-") for option in options):
        options = [*options, str(corpus)]
    prefix = f"-artifact_prefix={home}/"
    atheris.Setup([sys.argv[0], prefix, "-max_len=256", "-rss_limit_mb=4096", *options], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
