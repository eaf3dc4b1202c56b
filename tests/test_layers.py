"""The import rule of the house, held over the syntax tree: who may import whom, and what stays free of torch."""
import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "engine", "server", "web", "migrations")
MAY_IMPORT = {  # of ours, across packages
    "kernels": set(),
    "engine": {"kernels"},
    "server": {"engine", "web", "migrations"},
    "web": set(),
    "migrations": {"server"},
}
NEVER = {
    "kernels": {"starlette", "sqlalchemy", "uvicorn"},
    "engine": {"starlette", "sqlalchemy", "uvicorn", "httpx"},
    "server": {"torch", "triton", "numba"},
    "migrations": {"torch", "starlette"},
    "web": {"torch", "starlette", "sqlalchemy"},
}
NO_TORCH = (
    "kernels/__init__.py", "kernels/cpu", "engine/grammar", "engine/policy", "engine/text", "engine/loading",
    "engine/models/config.py",
    *(f"engine/{name}.py" for name in ("__init__", "chat", "config", "crossing", "engine", "errors", "events",
                                      "generation", "opening", "step_loop")),
)
TORCH_AT_LAST = "engine/loading/torch_tensors.py"  # one file in a room that needs none
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py") if "node_modules" not in p.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(absolute module, relative level, inside a function) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {node for function in functions for node in ast.walk(function)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, 0, node in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", node.level, node in inside))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_across_packages_follow_the_rule(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for module, level, _ in imports(path):
        parts = module.split(".")
        if level:
            assert level <= len(path.relative_to(ROOT).parts) - 1, f"{name_of(path)} leaves its package"
            continue
        assert parts[0] not in NEVER[package], f"{name_of(path)} imports {module}"
        if parts[0] == "hamdam":
            assert len(parts) > 1 and parts[1] in MAY_IMPORT[package], f"{name_of(path)} imports {module}"
        assert parts[0] not in PACKAGES, f"{name_of(path)} imports {module} without hamdam."


@pytest.mark.parametrize("path", [p for p in SOURCES if name_of(p).startswith("server/")], ids=name_of)
def test_the_server_uses_the_engine_only_through_its_front_door(path: Path) -> None:
    for module, _, _ in imports(path):
        assert not module.startswith("hamdam.engine."), f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", [p for p in SOURCES if name_of(p).startswith(NO_TORCH)], ids=name_of)
def test_policy_text_and_loading_import_no_torch(path: Path) -> None:
    found = {module.split(".")[0] for module, level, _ in imports(path) if not level}
    assert not found & {"torch", "triton"} or name_of(path) == TORCH_AT_LAST


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_file_hides_a_cycle_or_grows_past_its_noun(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "TYPE_CHECKING" not in text
    assert text.count("\n") <= 400


def test_every_room_is_in_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    assert sorted({"hamdam." + name_of(path.parent).replace("/", ".") for path in SOURCES}) == sorted(listed)


def test_no_room_is_called_after_nothing() -> None:
    vague = {"utils", "common", "helpers", "base", "manager", "misc"}
    assert not [name_of(p) for p in SOURCES if p.stem in vague or vague & set(p.parts)]


def test_imports_inside_functions_are_few_and_heavy() -> None:
    """Only where a heavy or optional dependency is chosen: this list is the whole of them."""
    lazy = {(name_of(path), module) for path in SOURCES for module, _, inside in imports(path) if inside}
    assert lazy <= {
        ("engine/bench/compiling.py", "execution.runners"),
        ("engine/bench/compiling.py", "hamdam.kernels.cpu"),
        ("engine/bench/compiling.py", "loading.checkpoint"),
        ("engine/bench/engine_bench.py", "loading.checkpoint"),
        ("engine/bench/kernel_bench.py", "loading.checkpoint"),
        ("engine/bench/kernel_bench.py", "torch_operations"),
        ("engine/bench/kernel_bench.py", "native_operations"),
        ("engine/bench/kernel_bench.py", "execution.runners"),
        ("engine/bench/phases.py", "execution.native_runner"),
        ("engine/grammar/grammars.py", "llguidance"),
        ("engine/grammar/lexicon.py", "llguidance"),
        ("engine/model_check.py", "execution.gpu_memory"),
        ("engine/model_check.py", "execution.packed_weights"),
        ("engine/opening.py", "execution.runners"),
        ("engine/execution/runners.py", "hamdam.kernels.cpu"),
        ("engine/execution/runners.py", "model_runner"),
        ("engine/execution/runners.py", "native_opening"),
        ("engine/execution/runners.py", "torch"),
        ("kernels/cpu/warm.py", "step"),
        ("kernels/device.py", "triton"),
        ("kernels/device.py", "triton.ops"),
        ("engine/opening.py", "loading.checkpoint"),
        ("engine/loading/checkpoint.py", "gguf.checkpoint"),
        ("engine/loading/checkpoint.py", "safetensors_checkpoint"),
        ("engine/loading/contents.py", "torch_tensors"),
        ("server/__main__.py", "operations.bench.command"),
        ("server/entry.py", "__main__"),
        ("server/operations/models.py", "pull"),
        ("server/storage/version.py", "migration"),
    }
