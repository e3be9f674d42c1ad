"""Files of samples: each format gives back exactly what was written, whole or not at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from adapter.storage.errors import MissingExtra, StorageError
from adapter.storage.export import ExportFormat, read_samples, write_export, write_jsonl
from adapter.storage.packed import read_packed
from adapter.trajectory import Sample
from adapter.types import Sampling
from engine.types import LogProbMode, SamplingParams
from tests.adapter.trajectory.alphabet import recorded
from tests.adapter.trajectory.test_properties import SESSIONS, UNTIMED, Step, played, trajectory_of

FORKED = "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t41 -> a32"
FILES = ["samples.jsonl", "samples.parquet", "samples.npz", "samples.json"]

Json = dict[str, Any]


def answer_of(samples: list[Json], sid: str = "demo") -> Json:
    trained = sum(sum(sample["loss_mask"]) for sample in samples)
    ledger = {"sampled": trained + 1, "trained": trained, "dropped": {"cut": 1}}
    return {"sid": sid, "turn_count": 3, "samples": samples, "ledger": ledger}


@pytest.fixture
def samples() -> list[Json]:
    base = Sample(index=7, group_index=2, prompt=[{"role": "user", "content": "Zug nach Köln"}], label={"a": [1]})
    made = recorded(FORKED).export(base_sample=base, reward=0.5, decode=lambda _, ids: f"<{len(ids)} 個>")
    first, second = (sample.to_dict() for sample in made.samples)
    sampling = Sampling(SamplingParams(seed=2**64 - 1), 9, LogProbMode.RAW)
    turn = {**first["metadata"]["turns"][0], "seed": sampling.params.seed, "versions": [[0, 2, 5]]}
    first["metadata"]["turns"][0] = turn
    return [
        first | {"rollout_log_probs": np.float32([-0.1, -1e-7, 0, 0, 0, 0, -11.7, -0.3]).tolist()},
        second | {"reward": {"pass": 1.0, "style": -0.25}, "label": None, "weight_versions": ["5"]},
    ]


@pytest.mark.parametrize("name", FILES)
def test_what_is_read_is_what_was_written(tmp_path: Path, samples: list[Json], name: str) -> None:
    path = tmp_path / "new" / "folders" / name
    write_export(answer_of(samples), path)
    assert read_samples(path) == samples
    assert [file.name for file in path.parent.iterdir()] == [name]


@pytest.mark.parametrize("name", FILES)
def test_a_session_without_samples_is_a_file_too(tmp_path: Path, name: str) -> None:
    write_export(answer_of([]), tmp_path / name)
    assert read_samples(tmp_path / name) == []


@pytest.mark.parametrize("reward", [None, 0, -1.5, {}, {"a": None}])
@pytest.mark.parametrize("name", FILES)
def test_any_reward_comes_back(tmp_path: Path, samples: list[Json], name: str, reward: Any) -> None:
    write_export(answer_of([samples[0] | {"reward": reward}]), tmp_path / name)
    assert read_samples(tmp_path / name)[0]["reward"] == reward


@UNTIMED
@given(SESSIONS)
def test_the_packed_file_holds_the_same_samples_as_the_flat_ones(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    folder = tmp_path_factory.mktemp("export")
    made = trajectory_of(played(steps), 1024)[0].export(base_sample=Sample())
    answer = answer_of([sample.to_dict() for sample in made.samples])
    for name in FILES:
        write_export(answer, folder / name)
        assert read_samples(folder / name) == answer["samples"]


def test_the_format_can_be_named(tmp_path: Path, samples: list[Json]) -> None:
    write_export(answer_of(samples), tmp_path / "tree", ExportFormat.PACKED)
    assert read_packed(tmp_path / "tree").tokens.size == 15 + 5
    write_export(answer_of(samples), tmp_path / "x.parquet", ExportFormat.JSONL)
    assert len((tmp_path / "x.parquet").read_text().splitlines()) == 2
    assert [ExportFormat.of(path and Path(path)) for path in (None, "a", "a.parquet", "a.npz", "a.json", "a.jsonl")] == [
        "jsonl", "jsonl", "parquet", "packed", "packed", "jsonl",
    ]  # fmt: skip


def test_parquet_columns_have_the_types_that_trainers_want(tmp_path: Path, samples: list[Json]) -> None:
    from pyarrow import parquet

    write_export(answer_of(samples), tmp_path / "s.parquet")
    schema = parquet.read_schema(tmp_path / "s.parquet")
    assert {name: str(schema.field(name).type) for name in ("tokens", "loss_mask", "rollout_log_probs", "reward")} == {
        "tokens": "list<element: int32>",
        "loss_mask": "list<element: uint8>",
        "rollout_log_probs": "list<element: float>",
        "reward": "double",
    }
    assert schema.field("metadata").metadata == {b"encoding": b"json"}
    about = {key: value for key, value in answer_of(samples).items() if key != "samples"}
    assert json.loads(schema.metadata[b"rollserve"]) == about


def test_the_packed_files_name_their_session_and_its_ledger(tmp_path: Path, samples: list[Json]) -> None:
    write_export(answer_of(samples), tmp_path / "s.npz")
    write_export(answer_of(samples), tmp_path / "s.json")
    with np.load(tmp_path / "s.npz", allow_pickle=False) as archive:
        assert archive["tokens"].dtype == np.int32 and archive["log_probs"].dtype == np.float32
        about = json.loads(archive["about"].tobytes())
    assert about == json.loads((tmp_path / "s.json").read_text())["about"]
    assert (about["sid"], about["ledger"]["dropped"]) == ("demo", {"cut": 1})


def test_without_a_path_it_goes_to_standard_output(capfdbinary: Any, samples: list[Json]) -> None:
    write_jsonl(samples, None)
    assert [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()] == samples
    write_export(answer_of(samples), None, ExportFormat.PACKED)
    assert json.loads(capfdbinary.readouterr().out)["about"]["sid"] == "demo"
    with pytest.raises(StorageError, match="name one"):
        write_export(answer_of(samples), None, ExportFormat.PARQUET)


@pytest.mark.parametrize("name", FILES)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, samples: list[Json], name: str
) -> None:
    path = tmp_path / name
    write_export(answer_of(samples), path)
    before = path.read_bytes()
    broken = [samples[0], {"no such field": object()}]
    with pytest.raises((StorageError, TypeError, ValueError)):
        write_export(answer_of(samples) | {"samples": broken}, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_library_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, samples: list[Json]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (
        lambda: write_export(answer_of(samples), tmp_path / "s.parquet"),
        lambda: read_samples(tmp_path / "s.parquet"),
    ):
        with pytest.raises(MissingExtra, match=r"Parquet needs pyarrow: pip install 'rollserve\[parquet\]'"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.jsonl", b'{}\n\n{"a": ]\n', "s.jsonl:3 is not JSON"),
        ("s.jsonl", b"[1]\n", "s.jsonl:1 is not a JSON object"),
        ("s.parquet", b"PAR1", "s.parquet is not a Parquet file"),
        ("s.parquet", b"", "s.parquet is not a Parquet file"),
        ("s.npz", b"PK", "s.npz is not a packed tree"),
        ("s.npz", b"", "s.npz is not a packed tree"),
        ("s.json", b"[]", "s.json is not a packed tree"),
        ("s.json", b"{}", "s.json is not a packed tree: the format is None"),
        ("s.json", b"", "s.json is not a packed tree"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError) as caught:
        read_samples(tmp_path / name)
    assert message in str(caught.value)


def test_a_tree_without_its_leaves_parts_is_named(tmp_path: Path, samples: list[Json]) -> None:
    write_export(answer_of(samples), tmp_path / "s.json")
    document = json.loads((tmp_path / "s.json").read_text())
    document["leaves"][1]["last_token"] = 99
    (tmp_path / "s.json").write_text(json.dumps(document))
    with pytest.raises(StorageError, match=r"s\.json: leaf 1: last_token is 99"):
        read_samples(tmp_path / "s.json")


def test_parquet_of_others_is_refused(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"tokens": [[1, 2]]}), tmp_path / "s.parquet")
    with pytest.raises(StorageError, match="was not written by rollserve"):
        read_samples(tmp_path / "s.parquet")


def test_a_sample_that_cannot_be_packed_is_named(tmp_path: Path, samples: list[Json]) -> None:
    with pytest.raises(StorageError, match="sample 1: 15 tokens, response_length 3"):
        write_export(answer_of([samples[0], samples[1] | {"response_length": 3}]), tmp_path / "s.npz")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    for name in FILES:
        with pytest.raises(OSError):
            read_samples(tmp_path / name)
