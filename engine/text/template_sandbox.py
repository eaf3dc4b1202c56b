"""The sandbox of a model's chat template: what a stranger's program may do here, how long, how much. It knows no chat.

A template comes with the model, so it is input. Jinja's own sandbox keeps it from Python's insides; it
bounds neither time nor memory, and a thread cannot be stopped from outside. Therefore nothing here can be long:

* every loop turn, call, filter and piece of output passes a meter that counts steps (and looks at the CPU clock);
* whatever makes a value bigger (operators, `~`, filters, methods) is refused beyond a size, before it is made where
  that can be foreseen; lists in lists are counted as if written out before anything walks through them;
* statements, filters and methods are those listed below. As every size is small, so is the time between two looks.
"""
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import ext, nodes, runtime, sandbox, utils, visitor
from jinja2.exceptions import SecurityError

from .template_meter import (
    Meter,
    TemplateLimit,
    check_numbers,
    format_filter,
    indent,
    join,
    join_filter,
    printf,
    replace,
    text_of,
    tojson,
)

MAX_SOURCE = 1 << 18  # characters of a template

_STATEMENTS = (
    *(nodes.Output, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock, nodes.Macro, nodes.CallBlock),
    *(nodes.FilterBlock, nodes.With, nodes.ExprStmt, nodes.Scope, nodes.Break, nodes.Continue),
)
_METHODS = {
    str: """strip lstrip rstrip split rsplit splitlines partition startswith endswith removeprefix removesuffix lower
        upper title capitalize replace join find rfind index count isdigit isnumeric isalpha isalnum isspace isupper
        islower""",
    dict: "get items keys values",
    list: "index count",
    tuple: "index count",
}
_FILTERS = """abs capitalize count d default dictsort first float int items last length list lower map max min reject
    rejectattr reverse select selectattr sort title trim unique upper"""
_COMPARING = "dictsort max min reject rejectattr select selectattr sort unique"
_OF_TEXT = "capitalize lower title trim upper"


class _Context(runtime.Context):
    meter: Meter


class _Undefined(runtime.Undefined):
    """What a name stands for that nobody defined. It does not say of what it is no part, which may be long to say."""

    @property
    def _undefined_message(self) -> str:
        name = self._undefined_name if isinstance(self._undefined_name, str) else "something"
        return self._undefined_hint[:200] if self._undefined_hint else f"{name[:100]} is undefined"


class _Rewrite(visitor.NodeTransformer):
    """Puts the meter into the syntax tree, and refuses statements that no chat template needs."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, nodes.Stmt) and not isinstance(node, _STATEMENTS):
            raise SecurityError(f"line {node.lineno}: {type(node).__name__} is not allowed in a chat template")
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise SecurityError(f"line {node.lineno}: recursive loops are not allowed in a chat template")
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_each")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        texts = (nodes.Const(n.data) if isinstance(n, nodes.TemplateData) else n for n in node.nodes)
        node.nodes = [_filter(text, "_write") for text in texts]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), "_concat")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_checked") if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        if node.args:  # a comparison by another name
            node.node = _weighed(node.node)
            node.args = [_weighed(argument) for argument in node.args]
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_checked") if node.ctx == "load" else node


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    """The expression put through one of our own filters, as if its author had written that."""
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _weighed(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filter(node, "_weighed")


class _Generation(ext.Extension):
    """`{% generation %}` marks for training what the model wrote; here it is its contents."""

    tags = {"generation"}  # noqa: RUF012 (as the parent declares it)

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(sandbox.ImmutableSandboxedEnvironment):
    """The only Jinja environment in which a model's template is ever compiled."""

    context_class = _Context
    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            undefined=_Undefined,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        plain = sandbox.ImmutableSandboxedEnvironment(undefined=_Undefined)
        self.filters = {name: _metered(plain, name) for name in _FILTERS.split()}
        self.filters |= {name: _own(function) for name, function in _OWN_FILTERS.items()}
        self.globals = {
            "range": sandbox.safe_range,
            "namespace": utils.Namespace,
            "dict": dict,
            "cycler": utils.Cycler,
            "joiner": utils.Joiner,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Rewrite().visit(super()._parse(source, name, filename))
        return tree

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` pads as far as it is told to, so it is no method of ours."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind):
                return attr in methods.split()
        known = (runtime.LoopContext, runtime.Macro, runtime.Undefined, utils.Namespace, utils.Cycler, utils.Joiner)
        return isinstance(obj, known) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter: Meter = __context.meter
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            name = __obj.__name__
            own = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}  # Jinja's
            if name == "replace":
                return replace(meter, owner, *args, **own)
            if name == "join":
                return join(meter, owner, *args, **own)
            meter.size(len(owner))
            if "split" in name:
                separator = args[0] if args else kwargs.get("sep")
                meter.step(owner.count(separator) if isinstance(separator, str) and separator else len(owner) // 16)
        if isinstance(owner, list | tuple):
            meter.weighed([owner, *args])
        meter.step()
        return meter.checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        meter: Meter = context.meter
        if isinstance(left, int | float) and isinstance(right, int | float):
            check_numbers(operator, left, right)
        elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            meter.size(len(left) + len(right))
        elif operator == "*":
            length, times = (left, right) if isinstance(right, int) else (right, left)
            if isinstance(length, str | list | tuple) and isinstance(times, int):
                meter.size(len(length) * max(times, 0))
        elif operator == "%" and isinstance(left, str):
            return printf(meter, left, right)
        return meter.checked(super().call_binop(context, operator, left, right))


def _metered(plain: jinja2.Environment, name: str) -> Callable[..., Any]:
    """Jinja's own filter, its input and output measured. As it takes the context it is never run at compile time."""
    comparing, of_text = name in _COMPARING.split(), name in _OF_TEXT.split()

    @jinja2.pass_context
    def run(context: _Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = context.meter.settled(text_of(value) if of_text else value)
        if comparing:
            context.meter.weighed([value, *args])
        return context.meter.checked(plain.call_filter(name, value, args, kwargs, context))

    return run


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is given the meter in place of Jinja's context."""

    @jinja2.pass_context
    def run(context: _Context, *args: Any, **kwargs: Any) -> Any:
        return function(context.meter, *args, **kwargs)

    return run


_OWN_FILTERS: dict[str, Callable[..., Any]] = {
    "_each": lambda meter, value: meter.each(value),
    "_write": lambda meter, value: meter.write(text_of(value)),
    "_concat": lambda meter, values: join(meter, "", values),
    "_checked": lambda meter, value: meter.checked(value),
    "_weighed": lambda meter, value: meter.weighed(value),
    "string": lambda meter, value: text_of(value),
    "safe": lambda meter, value: text_of(value),
    "replace": replace,
    "join": join_filter,
    "format": format_filter,
    "indent": indent,
    "tojson": tojson,
}

_FAULTS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a template can bring about by itself. Anything else is a fault of ours and stays one."""


class Program:
    """One compiled template. Immutable once made; `run` may be called from any thread.

    Raises jinja2.TemplateError in every case of refusal, TemplateLimit and SecurityError among them.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise TemplateLimit(f"a template of {len(source)} characters; {MAX_SOURCE} are enough for any chat")
        try:
            self._template = _Environment().from_string(source)
        except (RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:  # Python's own compiler
            raise jinja2.TemplateSyntaxError(str(error), 1) from error

    def run(self, variables: Mapping[str, Any], *, limit: int, steps: int) -> str:
        """The output, at most `limit` characters."""
        context = self._template.new_context(dict(variables))
        assert isinstance(context, _Context)
        context.meter = Meter(limit, steps)
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.root_render_func(context):
                pieces.append(piece)
                length += len(piece)
                if length > limit:
                    raise TemplateLimit("the template writes too much")
        except jinja2.TemplateError:
            raise
        except _FAULTS as error:
            raise jinja2.TemplateRuntimeError(f"{type(error).__name__}: {error}") from error
        return "".join(pieces)
