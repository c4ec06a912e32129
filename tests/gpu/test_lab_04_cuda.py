"""Lab 04 on a CUDA device; skipped where there is none."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("model", ["smollm2", "synthetic:tiny"])
def test_the_same_command_uses_the_gpu_and_meets_every_prediction(model, tmp_path):
    from labcli.main import app

    result = CliRunner().invoke(app, ["run-lab", "04", "--quick", "--json", "--model", model, "--results-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["status"] == "ok" and record["target"]["opened"][0]["device"].startswith("cuda")
