"""Print texts of the source drawn at random, for a reader who has not seen the code to judge.

python -m tools.sample_texts SEED     60 docstrings, 30 log events, 30 errors, 30 option helps
python -m tools.sample_texts --all    all of them

The same seed draws the same texts from the same source.
"""

import ast
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
DRAWN = {"docstring": 60, "log event": 30, "error": 30, "option help": 30}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
OPTIONS = {"option", "argument", "Option"}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    everything = arguments == ["--all"]
    generator = random.Random(arguments[0])
    for kind, texts in sorted(collect().items()):
        drawn = texts if everything else generator.sample(texts, min(DRAWN[kind], len(texts)))
        print(f"\n# {len(drawn)} of {len(texts)}: {kind}\n")
        for number, (place, text) in enumerate(drawn, 1):
            print(f"{number}. {place}\n   " + text.replace("\n", "\n   "))
    return 0


def collect() -> dict[str, list[tuple[str, str]]]:
    """Return the texts of each kind as (place, text), in the order of files and lines."""
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        if "generated" in path.parts:
            continue
        module = path.relative_to(SOURCE).as_posix()
        for kind, name, text in texts_of(ast.parse(path.read_text())):
            found[kind].append((f"{module} {name}".rstrip(), text))
    return found


def texts_of(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if text := ast.get_docstring(node):
                    yield "docstring", getattr(node, "name", ""), text
            case ast.Call(func=ast.Attribute(attr=level), args=[first, *_]) if level in LEVELS:
                if text := written(first):
                    yield "log event", f"line {node.lineno}", text
            case ast.Raise(exc=ast.Call(args=arguments, keywords=keywords)):
                texts = map(written, [*arguments, *(each.value for each in keywords)])
                if text := " | ".join(each for each in texts if each.count(" ") > 1):
                    yield "error", f"line {node.lineno}", text
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in OPTIONS:
                for each in node.keywords:
                    if each.arg == "help" and (text := written(each.value)):
                        label = written(node.args[0]) if node.args else ""
                        yield "option help", label, text


def written(node: ast.expr) -> str:
    """Return the text of a string expression, with {…} for its values; "" for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(written, parts))
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return written(left) + written(right)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
