"""Sizes, docstrings, and where a failure of any kind may be caught."""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.architecture.tree import ROOT, own_modules, parsed

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 45

# Pass boundaries, the look at the GPUs, API edges, the daemon's link and its judgement of a frame
# (neither of which a peer may end), and the store's job, whose error belongs to its caller.
CATCH_ALL = {
    "bcd/cli/__init__.py": 1,
    "bcd/gateway/enrol.py": 1,
    "bcd/gateway/passes.py": 1,
    "bcd/gateway/streams.py": 1,
    "bcd/node/daemon.py": 1,
    "bcd/node/desired.py": 1,
    "bcd/node/host/nvml/supervisor.py": 1,
    "bcd/node/link.py": 1,
    "bcd/placer/api/edge.py": 1,
    "bcd/placer/lifecycle/worker.py": 1,
    "bcd/placer/loops.py": 1,
    "bcd/store/lanes.py": 1,
    "bcd/store/sqlite.py": 1,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(name, lines) of each function over the limit, from its def to its last line."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.name, lines


def catch_alls(tree: ast.Module) -> int:
    """Handlers that take every exception and do not raise it again, ``suppress`` included."""
    return sum(
        _takes_all(node.type) and not _raises_again(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
    ) + sum(
        any(_takes_all(argument) for argument in node.args)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress")
    )


def _takes_all(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_no_file_is_longer_than_it_can_be_read() -> None:
    lengths = {path.relative_to(ROOT): path.read_text().count("\n") for path in own_modules()}
    assert {path: n for path, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}": lines
        for path in own_modules()
        for name, lines in long_functions(parsed(path))
    }
    assert found == {}


def test_every_module_says_why_it_exists() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in own_modules()
        if path.read_text() and not ast.get_docstring(parsed(path))
    ]
    assert silent == []


def test_every_failure_is_caught_at_boundaries_only() -> None:
    found = Counter(
        {str(path.relative_to(ROOT)): catch_alls(parsed(path)) for path in own_modules()}
    )
    assert +found == Counter(CATCH_ALL)


def test_nothing_is_left_for_later() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X:")
    left = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in own_modules()
        for word in words
        if word in path.read_text()
    ]
    assert left == []


def test_a_long_function_is_found() -> None:
    body = "\n".join("    x = 1" for _ in range(MAX_FUNCTION_LINES))
    assert list(long_functions(ast.parse(f"async def f():\n{body}"))) == [("f", 46)]
    shorter = body.removesuffix("\n    x = 1")
    assert list(long_functions(ast.parse(f"def f():\n{shorter}"))) == []


def test_a_catch_all_is_found_in_every_spelling() -> None:
    for handler in ("except:", "except Exception:", "except (ValueError, BaseException) as e:"):
        assert catch_alls(ast.parse(f"try:\n  f()\n{handler}\n  pass")) == 1
        assert catch_alls(ast.parse(f"try:\n  f()\n{handler}\n  undo()\n  raise")) == 0
    assert catch_alls(ast.parse("with contextlib.suppress(Exception):\n  f()")) == 1
    assert catch_alls(ast.parse("try:\n  f()\nexcept ValueError:\n  pass")) == 0
