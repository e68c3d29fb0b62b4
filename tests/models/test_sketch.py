"""The sketch is linear, depends on job and step, and sees any changed row."""

from __future__ import annotations

import pytest
import torch

from sentinel_market.models.sketch import WIDTH, Sketch


def gradient(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows * WIDTH, generator=torch.Generator().manual_seed(seed))


def test_sketch_is_signs_times_rows() -> None:
    flat = gradient(50)
    sketch = Sketch(3, 4)
    wanted = (sketch.signs(50).double()[:, None] * flat.view(50, WIDTH).double()).sum(0)
    found = sketch.sketch(flat)
    assert found.shape == (WIDTH,)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, Sketch(3, 4).sketch(flat))


def test_sketches_add_up() -> None:
    sketch = Sketch(1, 2)
    parts = [gradient(300, seed) for seed in range(6)]
    total = sketch.sketch(torch.stack(parts).sum(0))
    added = torch.stack([sketch.sketch(part) for part in parts]).sum(0)
    assert (total - added).norm() / total.norm() < 1e-5


def test_signs_are_balanced_and_depend_on_job_and_step() -> None:
    signs = Sketch(1, 1).signs(20_000)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(signs.mean().item()) < 0.03
    for other in (Sketch(1, 2), Sketch(2, 1), Sketch(0, 1)):
        assert abs((signs * other.signs(20_000)).mean().item()) < 0.03


def test_a_shorter_buffer_takes_a_prefix_of_the_signs() -> None:
    fresh, used = Sketch(1, 1), Sketch(1, 1)
    used.signs(1000)
    assert torch.equal(used.signs(13), fresh.signs(13))
    assert torch.equal(fresh.signs(1000), used.signs(1000))


def test_any_changed_row_shows() -> None:
    flat = gradient(40)
    honest = Sketch(1, 1).sketch(flat)
    for row in range(40):
        changed = flat.clone()
        changed[row * WIDTH + 5] += 1.0
        assert (Sketch(1, 1).sketch(changed) - honest)[5].abs() > 0.9


def test_a_buffer_that_is_not_whole_rows_is_refused() -> None:
    for flat in (torch.zeros(63), torch.zeros(64, 1)):
        with pytest.raises(ValueError, match="multiple of 64"):
            Sketch(1, 1).sketch(flat)
