"""A model handed over by save_model becomes a checked MLflow model without the user's code and without a server."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the PyTorch learner environment")

from updraft_learner import export, save_model  # noqa: E402
from updraft_learner.export_formats import max_difference, require_arithmetic  # noqa: E402
from updraft_learner.model import ModelError, TensorFacts, load_program, read_model  # noqa: E402
from updraft_learner.program_file import UnsafeProgram  # noqa: E402

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(5))

    def forward(self, pixels: Any) -> Any:
        return self.body(pixels)


class TwoInputs(torch.nn.Module):  # type: ignore[misc]
    def forward(self, tokens: Any, mask: Any) -> Any:
        return {"sum": (tokens * mask).sum(1), "tokens": tokens}


class FixedBatch(torch.nn.Module):  # type: ignore[misc]
    def forward(self, values: Any) -> Any:
        return values.reshape(3, 8).sum(1)


@pytest.fixture(autouse=True)
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESULT_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody answers: nothing may ask
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    torch.manual_seed(0)
    return tmp_path


def test_a_model_is_saved_with_its_signature_and_left_as_it_was() -> None:
    model = Net()
    folder = save_model(model, torch.randn(3, 6), metrics={"val_accuracy": 0.9, "loss": float("nan")})
    saved = read_model(folder)
    assert model.training
    assert saved.inputs == (TensorFacts("pixels", "float32", (-1, 6)),)
    assert saved.outputs == (TensorFacts("output", "float32", (-1, 5)),)
    assert saved.metrics == {"val_accuracy": 0.9, "loss": None}
    assert (saved.dynamic_batch, saved.warnings, saved.parameters) == (True, (), 6 * 5 + 5 + 10)
    assert saved.model_class.endswith(".Net")
    assert set(saved.files) == {"program.pt2", "weights.safetensors", "example.npz"}
    inputs = torch.randn(7, 6)
    assert torch.equal(load_program(folder)(inputs), model.eval()(inputs))


def test_a_single_sample_still_gives_a_free_batch() -> None:
    saved = read_model(save_model(Net(), torch.randn(1, 6)))
    assert saved.inputs[0].shape == (-1, 6)


def test_a_model_with_a_fixed_batch_is_saved_with_a_warning(result: Path) -> None:
    saved = read_model(save_model(FixedBatch(), torch.randn(6, 4)))
    assert not saved.dynamic_batch
    assert saved.inputs == (TensorFacts("values", "float32", (6, 4)),)
    assert "the batch size is fixed at 6" in saved.warnings[0]
    assert export.main(["--formats", "onnx"]) == 0


def test_several_inputs_by_name_are_exported_to_onnx(result: Path) -> None:
    example = {"tokens": torch.randint(0, 9, (2, 4)), "mask": torch.ones(2, 4, dtype=torch.int64)}
    saved = read_model(save_model(TwoInputs(), example))
    assert [tensor.name for tensor in saved.inputs] == ["tokens", "mask"]
    assert [tensor.name for tensor in saved.outputs] == ["sum", "tokens_output"]
    assert export.main(["--formats", "onnx"]) == 0


def test_an_example_that_is_no_tensor_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="example_input 'pixels' is a list; it must be a tensor"):
        save_model(Net(), ([1.0],))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="example_input is a float"):
        save_model(Net(), 1.0)  # type: ignore[arg-type]


def test_onnx_and_torch_are_made_compared_and_packed_for_mlflow(result: Path) -> None:
    model = Net()
    save_model(model, torch.randn(3, 6), metrics={"val_accuracy": 0.9})
    assert export.main(["--formats", "onnx,torch"]) == 0
    report = json.loads((result / "export" / "export.json").read_text())
    assert set(report["formats"]) == {"onnx", "torch"}
    onnx = report["formats"]["onnx"]
    assert onnx["path"] == "model/model.onnx"
    assert onnx["max_abs_difference"] <= onnx["tolerance"] == 1e-4
    assert report["training_metrics"] == {"val_accuracy": 0.9}
    assert report["signature"]["inputs"] == [{"name": "pixels", "dtype": "float32", "shape": [-1, 6]}]
    on_disk = {p.relative_to(result / "export").as_posix() for p in (result / "export").rglob("*") if p.is_file()}
    assert set(report["files"]) == on_disk - {"export.json"}
    assert {"model/MLmodel", "model/torch/program.pt2", "model/torch/weights.safetensors"} <= on_disk

    import mlflow.pyfunc

    loaded = mlflow.pyfunc.load_model(str(result / "export" / "model"))
    inputs = torch.randn(4, 6)
    found = loaded.predict({"pixels": inputs.numpy()})["output"]
    assert torch.allclose(torch.from_numpy(found), model.eval()(inputs), atol=1e-5)


@pytest.mark.parametrize("by_name", [False, True])
def test_torch_alone_is_a_model_that_mlflow_loads(result: Path, by_name: bool) -> None:
    model = Net()
    example = torch.randn(3, 6)
    save_model(model, {"pixels": example} if by_name else example)
    assert export.main(["--formats", "torch"]) == 0
    report = json.loads((result / "export" / "export.json").read_text())
    assert report["formats"]["torch"]["path"] == "model/data/model.pt2"

    import mlflow.pyfunc

    inputs = torch.randn(5, 6)
    found = mlflow.pyfunc.load_model(str(result / "export" / "model")).predict(inputs.numpy())
    assert torch.allclose(torch.from_numpy(found), model.eval()(inputs), atol=1e-5)


def test_without_a_saved_model_the_reason_and_the_remedy_are_told(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main(["--formats", "onnx"]) == 64
    assert "updraft_learner.save_model(model, example_input)" in capsys.readouterr().err


def test_an_unknown_format_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main(["--formats", "onnx,tflite"]) == 64
    assert "--formats is 'tflite'; allowed are onnx, torch" in capsys.readouterr().err


def test_a_changed_file_is_found_before_it_is_loaded(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(Net(), torch.randn(3, 6))
    program = folder / "program.pt2"
    program.write_bytes(program.read_bytes()[:-1] + b"x")
    assert export.main(["--formats", "onnx"]) == 65
    assert "program.pt2 of the saved model does not match its digest" in capsys.readouterr().err


def test_a_difference_above_the_tolerance_fails_and_keeps_the_last_good_export(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(Net(), torch.randn(3, 6))
    assert export.main(["--formats", "onnx"]) == 0
    before = (result / "export" / "export.json").read_text()
    assert export.main(["--formats", "onnx", "--tolerance", "-1"]) == 1
    assert "differs by" in capsys.readouterr().err
    assert (result / "export" / "export.json").read_text() == before


def test_differences_treat_nan_as_equal_to_nan_only() -> None:
    nan, one = torch.tensor([float("nan")]), torch.tensor([1.0])
    assert max_difference({"a": nan}, {"a": nan}) == 0
    assert max_difference({"a": nan}, {"a": one}) == float("inf")
    assert max_difference({"a": torch.tensor([float("inf")])}, {"a": torch.tensor([float("inf")])}) == 0
    assert max_difference({"a": torch.tensor([1.5])}, {"a": one}) == 0.5
    with pytest.raises(ModelError, match="has the shape"):
        max_difference({"a": torch.ones(2)}, {"a": one})


def attacked(folder: Path, change: Callable[[dict[str, bytes]], None], wanted: str) -> int:
    """Export the saved model after a change to its program, whose digests are right again."""
    with zipfile.ZipFile(folder / "program.pt2") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(folder / "program.pt2", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    facts = json.loads((folder / "model.json").read_text())
    digest = hashlib.sha256((folder / "program.pt2").read_bytes()).hexdigest()
    facts["files"]["program.pt2"] = {"sha256": digest, "size": (folder / "program.pt2").stat().st_size}
    (folder / "model.json").write_text(json.dumps(facts))
    return export.main(["--formats", wanted])


def test_a_program_with_a_pickle_is_refused_and_nothing_of_it_runs(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch.export.load unpickles sample inputs that do not load safely, and calls targets by name."""
    proof = result / "executed"
    folder = save_model(Net(), torch.randn(3, 6))

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (proof,)

    def samples(members: dict[str, bytes]) -> None:
        name = next(name for name in members if name.endswith("sample_inputs/model.pt"))
        stream = io.BytesIO()
        torch.save(((Evil(),), {}), stream)
        members[name] = stream.getvalue()

    assert attacked(folder, samples, "onnx,torch") == 0  # left out: the export makes its own
    custom = {"program/data/constants/opaque_obj_0": pickle.dumps(Evil())}
    assert attacked(folder, lambda members: members.update(custom), "onnx,torch") == 1
    assert "program.pt2 is not taken: it has the member" in capsys.readouterr().err
    assert not proof.exists()


def test_a_program_that_writes_a_file_by_pytorchs_own_operators_is_refused(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It makes the file's name of numbers: no text is in it. TorchScript's builtins `chr` and `add.str` do that."""
    proof = result / "written"
    folder = save_model(Net(), torch.randn(3, 6))

    def write(members: dict[str, bytes]) -> None:
        name = next(name for name in members if name.endswith("models/model.json"))
        document = json.loads(members[name])
        graph = document["graph_module"]["graph"]
        facts, nodes = next(iter(graph["tensor_values"].values())), []

        def call(operator: str, made: str, *arguments: tuple[str, dict[str, Any]]) -> dict[str, Any]:
            inputs = [{"name": n, "arg": a, "kind": 2 if n == "dtype" else 1} for n, a in arguments]
            nodes.append(
                {
                    "target": f"torch.ops.aten.{operator}",
                    "inputs": inputs,
                    "outputs": [{"as_tensor": {"name": made}}],
                    "metadata": {},
                    "is_hop_single_tensor_return": None,
                    "name": made,
                }
            )
            graph["tensor_values"][made] = facts
            return {"as_tensor": {"name": made}}

        text = call("chr.default", "c", ("i", {"as_int": ord(str(proof)[0])}))
        for number, letter in enumerate(str(proof)[1:]):
            one = call("chr.default", f"c{number}", ("i", {"as_int": ord(letter)}))
            text = call("add.str", f"t{number}", ("a", text), ("b", one))
        size, kind = {"as_int": 16}, {"as_scalar_type": 1}
        arguments = (("filename", text), ("shared", {"as_bool": True}), ("size", size), ("dtype", kind))
        file = call("from_file.default", "file", *arguments)
        call("fill_.Scalar", "filled", ("self", file), ("value", {"as_int": 65}))
        graph["nodes"] = [*nodes, *graph["nodes"]]
        members[name] = json.dumps(document).encode()

    assert attacked(folder, write, "torch") == 1
    assert "program.pt2 is not taken: its graph calls 'aten::add.str'" in capsys.readouterr().err
    assert not proof.exists()


@pytest.mark.parametrize(
    "operator",
    ["chr", "add.str", "str", "save", "join", "format", "from_file", "from_file.out", "_print", "set_.source_Storage",
     "quantized_lstm.data", "no_such_operator", "relu.none"],
)  # fmt: skip
def test_operators_on_more_than_tensors_and_numbers_are_refused(operator: str) -> None:
    with pytest.raises(UnsafeProgram, match=f"calls 'aten::{operator}'"):
        require_arithmetic([f"aten::{operator}"])


def test_operators_of_usual_models_are_taken() -> None:
    names = (
        "linear", "add.Tensor", "conv2d", "conv2d.padding", "gelu", "einsum", "pad", "sym_size.int", "div.Tensor_mode",
        "scaled_dot_product_attention", "lstm.input", "batch_norm", "embedding", "bernoulli", "scatter_reduce.two",
        "linalg_norm", "to.dtype", "_assert_scalar", "pad_sequence", "dropout", "max_pool2d_with_indices",
    )  # fmt: skip
    require_arithmetic(f"aten::{name}" for name in names)


def test_a_model_of_the_job_itself_is_copied_for_trust_code_and_never_through_a_link(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main(["--formats", "mlflow"]) == 64
    assert "there is no MLflow model" in capsys.readouterr().err
    (result / "model").mkdir()
    (result / "model" / "MLmodel").write_text("flavors: {sklearn: {}}")
    assert export.main(["--formats", "mlflow"]) == 0
    report = json.loads((result / "export" / "export.json").read_text())
    assert (set(report["formats"]), set(report["files"])) == ({"mlflow"}, {"model/MLmodel"})
    (result / "model" / "data").symlink_to("/etc/passwd")
    assert export.main(["--formats", "mlflow"]) == 65
