"""Tensors under several names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import objckpt


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_tied_weights_come_back_tied_and_equal(tmp_path: Path) -> None:
    """D08: into a tied and into an untied model."""
    store = objckpt.open([f"{tmp_path}/{name}/run" for name in "abc"])
    model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 50))
    model[1].weight = model[0].weight
    dcp.save({"m": model.state_dict()}, storage_writer=store.begin(create=True).writer(step=1), no_dist=True)
    for tied in (True, False):
        other = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 50))
        if tied:
            other[1].weight = other[0].weight
        state = {"m": other.state_dict()}
        dcp.load(state, storage_reader=store.reader(), planner=objckpt.LoadPlanner(), no_dist=True)
        other.load_state_dict(state["m"])
        assert torch.equal(other[0].weight, model[0].weight)
        assert torch.equal(other[1].weight, model[1].weight)
        assert (other[0].weight is other[1].weight) == tied
