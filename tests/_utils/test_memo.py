"""A memo makes a tree once, and again what there was no room for."""

import torch

from effdeg._utils import memo


def test_what_fits_is_made_once(monkeypatch):
    monkeypatch.setattr(memo, "MOST_KEPT", 100)
    kept, made = memo.Memo(), []

    def make(size):
        made.append(size)
        return {"x": torch.zeros(size, dtype=torch.uint8)}

    for size in (60, 50, 40, 60, 50, 40):
        assert len(kept.get(("size", size), lambda size=size: make(size))["x"]) == size
    assert made == [60, 50, 40, 50]
