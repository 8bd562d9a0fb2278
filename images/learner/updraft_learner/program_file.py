"""Read a job's `program.pt2` as data: check it, and write a new file from the checked content.

`torch.export.load` executes what it finds: pickled weights, constants and sample inputs, compiled libraries, a node's
target by name (such as `torch.os.system`), expressions that SymPy evaluates as Python, and names that become part of
generated Python code. So PyTorch never reads the job's own file. `rewrite` reads it with the standard library, and
refuses every member, target, expression, name and type that is not in the lists below. It leaves out what is only
information for people (stack traces, guards) or is a pickle (sample inputs, which `updraft_learner.export_formats`
makes again). It returns the operators that the program calls; `export_formats` looks up their kinds in PyTorch before
it loads the program. Called in the export pod. Standard library only.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

JSON_LIMIT_BYTES = 256 << 20
EXPRESSION_CHARACTERS = 2_000

GRAPH = "models/model.json"
SAMPLE_INPUTS = "data/sample_inputs/model.pt"
CONFIGS = {
    "data/weights/model_weights_config.json": re.compile(r"weight_\d+"),
    "data/constants/model_constants_config.json": re.compile(r"tensor_\d+"),
}
_TENSOR = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
_FACTS = {"archive_format", "archive_version", ".data/version", ".data/serialization_id", "byteorder"}

# The overload is required: without it, PyTorch chooses by the values of the arguments.
_TARGET = re.compile(r"torch\.ops\.aten\.([A-Za-z_]\w*)\.([A-Za-z]\w*)", re.ASCII)
_OTHER_TARGETS = {
    *(f"_operator.{n}" for n in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "pos")),
    *(f"_operator.{n}" for n in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_")),
    *(f"math.{n}" for n in ("ceil", "floor", "trunc", "sqrt")),
    *(f"torch.sym_{n}" for n in ("float", "int", "ite", "max", "min", "not", "sqrt", "sum")),
    "torch._sym_sqrt",
}
_HIGHER_ORDER = {f"torch.ops.higher_order.{n}" for n in ("wrap_with_set_grad_enabled", "wrap_with_autocast", "cond")}
# Only these operators may take text, which is an option for them. Any other operator could open a file by its name.
_TEXT_OPERATORS = re.compile(
    r"torch\.ops\.aten\.(gelu|gelu_backward|div|divide|einsum|pad|scatter_reduce|scatter|index_reduce|segment_reduce"
    r"|searchsorted|bucketize|norm|linalg_\w+|meshgrid|stft|istft|quantile|nanquantile|conv[123]d|_convolution_mode"
    r"|fft_\w+|_linalg_\w+|pad_sequence|_assert\w*|_functional_assert\w*|_scaled_dot_product\w*|histogramdd?|tensordot|lu_\w+)_?(\.\w+)?"
)
_FORBIDDEN_KEYS = {"as_custom_obj", "as_operator", "custom_obj", "custom_obj_values", "treespec_namedtuple_fields"}
_TREE_TYPES = {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}

# torch.fx writes the names of nodes, arguments and parameters into generated code.
_WORD = re.compile(r"[\w.+-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CHECKED_ELSEWHERE = {"target", "expr_str", "in_spec", "out_spec", "as_string", "as_strings"}

_SYMBOL = re.compile(r"[a-z]+\d+|oo|true|false|-?\d[\d.e+-]*", re.ASCII)
_FUNCTIONS = {
    *("Max", "Min", "Mod", "PythonMod", "ModularIndexing", "FloorDiv", "CeilDiv", "CleanDiv", "IntTrueDiv"),
    *("FloatTrueDiv", "TruncToInt", "TruncToFloat", "FloorToInt", "CeilToInt", "RoundToInt", "ToFloat", "PowByNatural"),
    *("FloatPow", "floor", "ceiling", "Abs", "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Identity"),
    *("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "Eq", "Ne", "Lt"),
    *("Le", "Gt", "Ge", "And", "Or", "Not"),
}
_KEYWORDS = {"positive", "nonnegative", "integer", "real", "precision", "evaluate"}
_EXPRESSION_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant, ast.Load,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.keyword,
)  # fmt: skip


class UnsafeProgram(Exception):
    """The file contains something that would be executed, or that is unknown."""


def rewrite(source: Path, target: Path, sample_inputs: bytes) -> frozenset[str]:
    """Write what `source` holds to the new file `target`, with these sample inputs, if all of it is plain data.

    Returns the ATen operators that it calls, such as `aten::add.Tensor`. This module knows their names alone: PyTorch
    finds builtins of TorchScript by the same names, some of which make text (`aten::chr`), and a caller asks it which
    is which before the program is loaded.

    Raises:
        UnsafeProgram: naming what is not; nothing of the file was executed.
    """
    operators: frozenset[str] = frozenset()
    try:
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as made:
            members = _members(archive)
            for name, member in members.items():
                if name in CONFIGS:
                    content: bytes = _dump(_checked_config(name, _json(archive, member)))
                elif name == GRAPH:
                    graph = _checked_graph(_json(archive, member))
                    content, operators = _dump(graph), _operators(graph)
                elif name == SAMPLE_INPUTS:
                    content = sample_inputs
                else:
                    content = archive.read(member)
                made.writestr(f"program/{name}", content)
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise UnsafeProgram(
            f"{source.name} is not what torch.export.save writes ({exc or type(exc).__name__})"
        ) from exc
    return operators


def takes_text(operator: str) -> bool:
    """Return whether the text that this operator takes is an option, and never the name of a file."""
    return _TEXT_OPERATORS.fullmatch(f"torch.ops.{operator.replace('::', '.', 1)}") is not None


def _operators(graph: Any) -> frozenset[str]:
    found = (_TARGET.fullmatch(item["target"]) for item in _walk(graph) if "target" in item)
    named = (match.groups() for match in found if match is not None)
    return frozenset(f"aten::{name}" + (f".{overload}" if overload != "default" else "") for name, overload in named)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members by their path below the archive's one folder."""
    found: dict[str, zipfile.ZipInfo] = {}
    roots = set()
    for member in archive.infolist():
        root, _, name = member.filename.partition("/")
        roots.add(root)
        if name not in {*CONFIGS, GRAPH, SAMPLE_INPUTS, *_FACTS} and not _TENSOR.fullmatch(name):
            raise UnsafeProgram(f"it has the member {member.filename!r}; only tensors and the graph's JSON are read")
        if name in found or len(roots) > 1 or member.compress_type != zipfile.ZIP_STORED:
            raise UnsafeProgram(f"its member {member.filename!r} is there twice, or is compressed")
        found[name] = member
    if missing := {*CONFIGS, GRAPH, SAMPLE_INPUTS} - found.keys():
        raise UnsafeProgram(f"it has no member {min(missing)!r}")
    return found


def _json(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    if member.file_size > JSON_LIMIT_BYTES:
        raise UnsafeProgram(f"its member {member.filename!r} is larger than {JSON_LIMIT_BYTES >> 20} MiB")
    return json.loads(archive.read(member))


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def _checked_config(name: str, config: Any) -> Any:
    for tensor, facts in config["config"].items():
        if facts["use_pickle"] is not False or not CONFIGS[name].fullmatch(facts["path_name"]):
            raise UnsafeProgram(f"tensor {tensor!r} is stored as a pickle; only plain tensors are read")
    _check_words(config)
    return config


def _checked_graph(program: Any) -> Any:
    program["guards_code"] = []  # Python code; PyTorch makes the checks of shapes again from the constraints
    for symbol in program["range_constraints"]:
        _check_expression(symbol)
    for item in _walk(program):
        for key in _FORBIDDEN_KEYS & item.keys():
            if item[key]:
                raise UnsafeProgram(f"its graph has {key}; only tensors, numbers and text are read")
        if "metadata" in item:
            item["metadata"] = {}
        if "target" in item:
            _check_node(item)
        if "expr_str" in item:
            _check_expression(item["expr_str"])
        for key in ("in_spec", "out_spec"):
            if item.get(key):
                _check_tree(json.loads(item[key]))
    _check_words(program)
    return program


def _check_words(document: Any) -> None:
    """Check every key and text that no other check covers."""
    for item in _walk(document):
        for key, value in item.items():
            texts = [key] if key in _CHECKED_ELSEWHERE else [key, *(value if isinstance(value, list) else [value])]
            for text in texts:
                if isinstance(text, str) and not _WORD.fullmatch(text):
                    raise UnsafeProgram(f"it holds the name {text[:80]!r}; names are letters, digits, '_', '.' and '-'")
        name = item.get("name")
        if isinstance(name, str) and name and not _NAME.fullmatch(name):
            raise UnsafeProgram(f"its graph has the name {name[:80]!r}, which is no identifier")


def _check_node(node: Mapping[str, Any]) -> None:
    target = node["target"]
    if not isinstance(target, str) or not (
        _TARGET.fullmatch(target) or target in _OTHER_TARGETS or target in _HIGHER_ORDER
    ):
        raise UnsafeProgram(f"its graph calls {target!r}; only PyTorch's own operators (torch.ops.aten) are run")
    text = [key for item in _walk(node["inputs"]) for key in ("as_string", "as_strings") if item.get(key) is not None]
    if text and target not in _HIGHER_ORDER and not _TEXT_OPERATORS.fullmatch(target):
        raise UnsafeProgram(f"its graph calls {target!r} with text; that operator takes none here")


def _check_expression(text: Any) -> None:
    if not isinstance(text, str) or len(text) > EXPRESSION_CHARACTERS:
        raise UnsafeProgram("its graph has an expression that is no short text")
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, MemoryError) as exc:
        raise UnsafeProgram(f"its graph has the expression {text[:80]!r}, which is no formula") from exc
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        fine = isinstance(node, _EXPRESSION_NODES)
        if isinstance(node, ast.Name):
            fine = node.id in _FUNCTIONS if id(node) in called else bool(_SYMBOL.fullmatch(node.id))
        elif isinstance(node, ast.Call):
            fine = isinstance(node.func, ast.Name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            fine = bool(_SYMBOL.fullmatch(node.value))
        elif isinstance(node, ast.Constant):
            fine = isinstance(node.value, (bool, int, float))
        elif isinstance(node, ast.keyword):
            fine = node.arg in _KEYWORDS
        if not fine:
            raise UnsafeProgram(f"its graph has the expression {text[:80]!r}; only formulas of sizes are read")


def _check_tree(spec: Any) -> None:
    protocol, root = spec
    if protocol != 1:
        raise UnsafeProgram(f"its inputs are described in the unknown form {protocol!r}")
    for node in _walk(root):
        kind, keys = node["type"], json.loads(node["context"] or "null")
        fine = [isinstance(key, int) or bool(isinstance(key, str) and _WORD.fullmatch(key)) for key in keys or ()]
        if kind not in _TREE_TYPES or not isinstance(keys, list | None) or not all(fine):
            raise UnsafeProgram(
                f"its inputs or outputs hold a {kind}; let forward() take and return tensors, tuples, lists or dicts"
            )


def _walk(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a JSON document; a change made to one before the next is requested is seen."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
