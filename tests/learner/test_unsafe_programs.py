"""A program.pt2 that would run code is refused, and nothing of it has run; the attacks are those of its loader."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from updraft_learner.program_file import UnsafeProgram, rewrite

GRAPH = {
    "graph_module": {
        "graph": {
            "inputs": [{"as_tensor": {"name": "x"}}],
            "outputs": [{"as_tensor": {"name": "relu"}}],
            "nodes": [
                {
                    "target": "torch.ops.aten.relu.default",
                    "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}],
                    "outputs": [{"as_tensor": {"name": "relu"}}],
                    "metadata": {"stack_trace": 'File "train.py", line 1'},
                }
            ],
            "tensor_values": {"x": {"sizes": [{"as_expr": {"expr_str": "Symbol('s0', integer=True)", "hint": None}}]}},
        },
        "module_call_graph": [{"fqn": "", "signature": {"in_spec": '[1, {"type": null, "context": null}]'}}],
        "treespec_namedtuple_fields": {},
    },
    "range_constraints": {"s0": {"min_val": 1, "max_val": None}},
    "guards_code": ["__import__('os').system('id')"],
}
WEIGHT = {"path_name": "weight_0", "is_param": True, "use_pickle": False, "tensor_meta": {"dtype": 7}}
Members = dict[str, bytes]


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/updraft-attack",)


def members(graph: Any = GRAPH, weight: Any = WEIGHT) -> Members:
    return {
        "models/model.json": json.dumps(graph).encode(),
        "data/weights/model_weights_config.json": json.dumps({"config": {"body.0.weight": weight}}).encode(),
        "data/constants/model_constants_config.json": b'{"config": {}}',
        "data/weights/weight_0": b"1234",
        "data/sample_inputs/model.pt": pickle.dumps(Evil()),
        "archive_format": b"pt2",
        "archive_version": b"0",
    }


def archive(path: Path, content: Members, *, compressed: bool = False) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as made:
        for name, data in content.items():
            made.writestr(f"program/{name}", data)
    return path


def changed(change: Callable[[Any], None]) -> Members:
    graph = json.loads(json.dumps(GRAPH))
    change(graph)
    return members(graph)


def node(graph: Any) -> Any:
    return graph["graph_module"]["graph"]["nodes"][0]


def call(target: str, text: str | None = None) -> Members:
    def change(graph: Any) -> None:
        node(graph)["target"] = target
        if text is not None:
            node(graph)["inputs"].append({"name": "name", "arg": {"as_string": text}, "kind": 1})

    return changed(change)


def spec(kind: str) -> Members:
    text = json.dumps([1, {"type": kind, "context": "null", "children_spec": []}])
    return changed(lambda g: g["graph_module"]["module_call_graph"][0]["signature"].update(in_spec=text))


def expression(text: str) -> Members:
    sizes = [{"as_expr": {"expr_str": text, "hint": None}}]
    return changed(lambda g: g["graph_module"]["graph"]["tensor_values"]["x"].update(sizes=sizes))


def named(name: str) -> Members:
    return changed(lambda g: g["graph_module"]["graph"]["inputs"][0]["as_tensor"].update(name=name))


def test_a_plain_program_is_written_anew_without_its_pickle_and_its_python(tmp_path: Path) -> None:
    operators = rewrite(archive(tmp_path / "a.pt2", members()), tmp_path / "b.pt2", b"our own samples")
    assert operators == {"aten::relu"}
    with zipfile.ZipFile(tmp_path / "b.pt2") as made:
        found = {name.removeprefix("program/"): made.read(name) for name in made.namelist()}
    assert found.keys() == members().keys()
    assert found["data/sample_inputs/model.pt"] == b"our own samples"
    graph = json.loads(found["models/model.json"])
    assert (graph["guards_code"], node(graph)["metadata"]) == ([], {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (members(weight={**WEIGHT, "use_pickle": True}), "stored as a pickle"),
        (members(weight={**WEIGHT, "path_name": "../../models/x"}), "stored as a pickle"),
        (members() | {"data/constants/custom_obj_0": pickle.dumps(Evil())}, "only tensors and the graph's JSON"),
        (members() | {"data/constants/opaque_obj_0": pickle.dumps(Evil())}, "only tensors and the graph's JSON"),
        (members() | {"data/weights/model.pt": pickle.dumps(Evil())}, "only tensors and the graph's JSON"),
        (members() | {"data/aotinductor/model/evil.so": b"ELF"}, "only tensors and the graph's JSON"),
        (members() | {"models/other.json": b"{}"}, "only tensors and the graph's JSON"),
        (members() | {"../evil": b""}, "only tensors and the graph's JSON"),
        ({"archive_format": b"pt2"}, "it has no member"),
        (call("torch.os.system", "id"), "calls 'torch.os.system'"),
        (call("torch.load", "evil.pt"), "calls 'torch.load'"),
        (call("_operator.methodcaller"), "calls '_operator.methodcaller'"),
        (call("torch.ops.mylib.evil.default"), "calls 'torch.ops.mylib.evil.default'"),
        (call("torch.ops.aten.from_file.default", "/etc/passwd"), "with text"),
        (call("torch.ops.aten.from_file"), "only PyTorch's own operators"),
        (call("torch.ops.aten.relu"), "only PyTorch's own operators"),
        (call("torch.ops.aten.relu.__call__"), "only PyTorch's own operators"),
        (call("_operator.add", "/etc/"), "with text"),
        (call("#evil:op"), "calls '#evil:op'"),
        (expression("__import__('os').system('id')"), "only formulas of sizes"),
        (expression("Symbol('x').__class__"), "only formulas of sizes"),
        (expression("Max(s0, 'open(1)')"), "only formulas of sizes"),
        (expression("(lambda: 1)()"), "only formulas of sizes"),
        (expression("s0 +"), "is no formula"),
        (changed(lambda g: g["range_constraints"].update({"eval('1')": {}})), "only formulas of sizes"),
        (named("x=__import__('os').system('id')"), "names are letters"),
        (named("x.y"), "is no identifier"),
        (changed(lambda g: g["graph_module"]["module_call_graph"][0].update(fqn='a"),exit(')), "names are letters"),
        (changed(lambda g: node(g)["inputs"][0].update(arg={"as_custom_obj": {"name": "x"}})), "as_custom_obj"),
        (changed(lambda g: node(g)["inputs"][0].update(arg={"as_operator": "torch.os.system"})), "as_operator"),
        (spec("evil.Tuple"), "hold a evil.Tuple"),
        (members() | {"models/model.json": b"[" * 100_000}, "not what torch.export.save writes"),
        (members() | {"models/model.json": b"[]"}, "not what torch.export.save writes"),
    ],
)
def test_what_would_run_is_refused(tmp_path: Path, content: Members, message: str) -> None:
    with pytest.raises(UnsafeProgram) as caught:
        rewrite(archive(tmp_path / "a.pt2", content), tmp_path / "b.pt2", b"")
    assert message in str(caught.value)


def test_a_bomb_and_a_second_member_of_one_name_are_refused(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "a.pt2", members() | {"data/weights/weight_0": bytes(1 << 20)}, compressed=True)
    with pytest.raises(UnsafeProgram, match="is there twice, or is compressed"):
        rewrite(bomb, tmp_path / "b.pt2", b"")
    twice = archive(tmp_path / "c.pt2", members())
    with zipfile.ZipFile(twice, "a") as made, pytest.warns(UserWarning, match="Duplicate name"):
        made.writestr("program/models/model.json", b"{}")
    with pytest.raises(UnsafeProgram, match="is there twice"):
        rewrite(twice, tmp_path / "d.pt2", b"")
    (tmp_path / "e.pt2").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UnsafeProgram, match=r"not what torch\.export\.save writes"):
        rewrite(tmp_path / "e.pt2", tmp_path / "f.pt2", b"")
