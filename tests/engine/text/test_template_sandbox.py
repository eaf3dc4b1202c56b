"""What a stranger's template may not do: reach Python, change what it is given, take long, or make much."""
import re
from pathlib import Path

import jinja2
import pytest
from jinja2.exceptions import SecurityError

from hamdam.engine.text.template_meter import TemplateLimit
from hamdam.engine.text.template_sandbox import MAX_SOURCE, Program

ROOT = Path(__file__).resolve().parents[3]
DOUBLING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(64) %%}{%% set ns.x = %s %%}{%% endfor %%}%s"


def run(source: str, **variables: object) -> str:
    variables["messages"] = [{"role": "user", "content": "Hi"}]
    return Program(source).run(variables, limit=100_000, steps=50_000)


@pytest.mark.parametrize(
    "source",
    [
        '{{ cycler.__init__.__globals__.os.popen("true").read() }}',
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ messages[0].pop('role') }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.mro() }}",
        "{{ raise_exception.__globals__['x'] }}",
        "{{ 'x'.format(1) }}",
        "{{ 'x'.encode() }}",
        "{{ (1).to_bytes(9999999999) }}",
        "{{ messages|map('__class__') }}{{ messages|map(attribute='__class__')|list|first|string }}",
        "{{ range(100001) }}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{% extends 'x' %}",
        "{% block b %}{{ self.b() }}{% endblock %}",
        "{% autoescape true %}x{% endautoescape %}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ lipsum(100000) }}",
        "{{ messages|pprint }}",
        "{{ messages }}",
    ],
)
def test_b05_what_no_chat_template_needs_is_refused(source):
    with pytest.raises(jinja2.TemplateError):
        run(source, raise_exception=lambda message: None)


@pytest.mark.parametrize(
    "source", ['{{ cycler.__init__.__globals__.os.popen("true").read() }}', "{{ messages.append(1) }}"]
)
def test_b05_reaching_into_python_and_changing_the_messages_are_security_errors(source):
    with pytest.raises(SecurityError):
        run(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{{ i }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "{% for i in range(99) %}{{ range(99999)|map('string')|join|length }}{% endfor %}",
        "{% set x = 'ab' * 40000 %}{% for i in range(99999) %}{% if x[1:] == x[:-1] %}{% endif %}{% endfor %}",
        "{% set x = 'a ' * 40000 %}{% for i in range(9999) %}{{ x.split()|length }}{% endfor %}",
        "{{ 'x' * (10**10) }}",
        "{{ (10**10) * 'x' }}",
        "{{ [1] * (10**9) }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ 10 ** (10 ** 8) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%.1000000000f'|format(1) }}",
        "{{ '%(a)1000000000d' % {'a': 1} }}",
        "{{ 'x'|indent(1000000000) }}",
        "{{ 'x\n'|indent(1000000000, true) }}",
        "{{ [1]|tojson(indent=1000000000) }}",
        "{{ ('a' * 50000).replace('a', 'b' * 50000) }}",
        "{{ ('a' * 50000)|replace('', 'b' * 50000) }}",
        "{{ ('a' * 50000).join(['b'] * 50000) }}",
        "{{ (['b'] * 50000)|join('a' * 50000) }}",
        "{% set x %}{% for i in range(9999) %}" + "x" * 999 + "{% endfor %}{% endset %}",
        "{% filter upper %}{% for i in range(9999) %}" + "x" * 999 + "{% endfor %}{% endfilter %}",
        DOUBLING % ("'xx'", "ns.x + ns.x", ""),
        DOUBLING % ("'xx'", "ns.x ~ ns.x", ""),
        DOUBLING % ("'xx'", "[ns.x, ns.x]|join", ""),
        DOUBLING % ("3", "ns.x * ns.x", ""),
        DOUBLING % ("[1]", "ns.x + ns.x", ""),
        DOUBLING % ("[1]", "[ns.x, ns.x]", "{{ ns.x|tojson }}"),
        DOUBLING % ("[1]", "{'a': ns.x, 'b': ns.x}", "{{ ns.x|tojson }}"),
        DOUBLING % ("[1]", "[ns.x, ns.x]", "{{ ns.x == [ns.x, 1] }}"),
        DOUBLING % ("[1]", "[ns.x, ns.x]", "{{ ns.x in [1] }}"),
        DOUBLING % ("[1]", "[ns.x, ns.x]", "{{ ns.x is eq [1] }}"),
        DOUBLING % ("[1]", "[ns.x, ns.x]", "{{ [ns.x, ns.x]|max }}"),
        DOUBLING % ("[1]", "[ns.x, ns.x]", "{{ [ns.x].index([1]) }}"),
        DOUBLING % ("(1,)", "(ns.x, ns.x)", "{{ {ns.x: 1} }}"),
        "{{ ([{'k' * 50000: 1}] * 5000)|tojson }}",
        "{{ ([1] * 5000)|tojson(separators=(',' * 50000, ':')) }}",
    ],
)
def test_b05_neither_time_nor_space_can_be_taken_without_end(source):
    with pytest.raises((TemplateLimit, jinja2.TemplateRuntimeError)) as refused:
        run(source)
    assert isinstance(refused.value, TemplateLimit) or "OverflowError" in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{% if x %}" * 3000 + "{% endif %}" * 3000,
    ],
)
def test_b05_a_template_too_deep_to_compile_is_refused(source):
    with pytest.raises(jinja2.TemplateError):
        run(source)


@pytest.mark.parametrize(
    "use", ["ns.x", "ns.x|upper", "ns.x|string", "ns.x ~ ''", "'%s' % ns.x", "{}[ns.x].y", "messages[ns.x] + 1"]
)
def test_b05_what_would_be_endless_to_write_out_is_never_written_out(use):
    """Lists in lists 64 deep would be 2^64 numbers long, in a text as in an error's message."""
    with pytest.raises(jinja2.TemplateError) as refused:
        run(DOUBLING % ("[1]", "[ns.x, ns.x]", f"{{{{ {use} }}}}"))
    assert len(str(refused.value)) < 300


def test_b05_endless_recursion_is_refused():
    with pytest.raises(jinja2.TemplateRuntimeError, match="Recursion"):
        run("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


def test_b05_a_template_of_unheard_of_size_is_refused():
    with pytest.raises(TemplateLimit):
        Program("x" * (MAX_SOURCE + 1))


def test_b05_one_render_that_went_too_far_takes_nothing_from_the_next():
    program = Program("{% for i in range(n) %}.{% endfor %}")
    with pytest.raises(TemplateLimit):
        program.run({"n": 90_000}, limit=100_000, steps=50_000)
    assert program.run({"n": 3}, limit=100_000, steps=50_000) == "..."


def test_b05_only_the_sandbox_is_ever_constructed_for_a_models_template():
    """Any Jinja environment in the engine is a sandboxed one, and there is one file that has it."""
    found = [
        (path.name, line.strip())
        for path in (ROOT / "engine").rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"Environment\(|jinja2\.Template\(|from_string\(", line)
    ]
    assert {name for name, _ in found} == {"template_sandbox.py"}
    assert all("Sandboxed" in line or "_Environment()" in line for _, line in found)


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("{% for m in messages %}{{ loop.index }}{{ m['content'] }}{{ loop.last }}{% endfor %}", "1HiTrue"),
        ("{% for a, b in {'x': 1}.items() %}{{ a }}={{ b + 1 }}{% endfor %}", "x=2"),
        ("{% for a in [1, 2, 3] if a != 2 %}{{ a }}{% if a == 3 %}{% break %}{% endif %}{% endfor %}", "13"),
        ("{% set x %}a{% endset %}{{ x }}{% filter upper %}b{% endfilter %}", "aB"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call f(1) %}c{% endcall %}", "12c"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ messages|selectattr('role', 'eq', 'user')|map(attribute='content')|map('upper')|join(', ') }}", "HI"),
        ("{{ messages[1:]|length }}{{ 'abc'[::-1] }}{{ messages[-1].content[:1] }}{{ 'b' in 'abc' }}", "0cbaHTrue"),
        ("{{ {'é': ['<b>', none]}|tojson }}{{ [1]|tojson(indent=2) }}", '{"é": ["<b>", null]}[\n  1\n]'),
        ("{% for m in messages %}{{ m.content.replace('H', 'a').upper() }}{{ '-'.join(['b']) }}{% endfor %}", "AIb"),
        ("{{ '  a\nb'|trim|indent(2) }}{{ 'a-b'.split('-')[-1].lstrip()|replace('b', 'c') }}", "a\n  bc"),
        ("{{ '%s is %d' % ('it', 3) }}{{ '100% %s'|replace('%s', 'x') }}{{ '%02d'|format(7) }}", "it is 3100% x07"),
        ("{{ none }}{{ missing }}{{ missing is defined }}{{ 'x' if 1 }}{{ missing|default('e') }}", "NoneFalsexe"),
        ("  {% if true %}\n  a\n  {% endif %}\n{{- 'b' ~ 1 ~ none }}", "  a\nb1None"),
    ],
)
def test_what_chat_templates_do_is_done_as_they_expect(source, out):
    assert run(source) == out
