"""Servers of our own, one a replica: who gets which GPUs and ports. ``tests/e2e/test_fleet.py`` starts some."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import LaunchFailed
from engine.fleet import FleetPlan


def plan(tmp_path: Path, **settings: object) -> FleetPlan:
    return FleetPlan(render=lambda target: target, run_dir=tmp_path, **settings)  # type: ignore[arg-type]


def test_each_replica_has_its_own_gpus_and_ports(tmp_path: Path) -> None:
    fleet = plan(tmp_path, replicas=3, gpus_each=2, base_port=9000)
    options = [fleet.options(replica) for replica in range(3)]
    assert [each.env["CUDA_VISIBLE_DEVICES"] for each in options] == ["0,1", "2,3", "4,5"]
    assert [(each.grpc_port, each.http_port, each.metrics_port) for each in options] == [
        (9000, 9001, 9002),
        (9003, 9004, 9005),
        (9006, 9007, 9008),
    ]
    assert len({each.run_dir for each in options} | {each.repository for each in options}) == 6


def test_gpus_can_be_named(tmp_path: Path) -> None:
    fleet = plan(tmp_path, replicas=2, gpus_each=1, gpus=("7", "GPU-ab"))
    assert [fleet.options(replica).env["CUDA_VISIBLE_DEVICES"] for replica in range(2)] == ["7", "GPU-ab"]
    with pytest.raises(LaunchFailed, match="2 replicas of 2 GPUs each need 4, not 3"):
        plan(tmp_path, replicas=2, gpus_each=2, gpus=("0", "1", "2")).options(1)


def test_without_gpus_nothing_is_said_of_them_and_ports_are_free_ones(tmp_path: Path) -> None:
    options = plan(tmp_path, replicas=2).options(1)
    assert "CUDA_VISIBLE_DEVICES" not in options.env
    assert (options.grpc_port, options.http_port, options.metrics_port) == (0, 0, 0)


def test_the_cpp_model_starts_its_ranks_and_is_loaded_on_demand(tmp_path: Path) -> None:
    one, two = (plan(tmp_path, gpus_each=count, is_cpp=True).options(0) for count in (1, 2))
    assert "TRTLLM_ORCHESTRATOR" not in one.env
    assert two.env["TRTLLM_ORCHESTRATOR"] == "1"
    assert one.explicit == ("tensorrt_llm",)
    assert plan(tmp_path).options(0).explicit == ()
