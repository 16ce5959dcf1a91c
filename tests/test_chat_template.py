"""Chat templates: the text of the reference, and templates that are hostile."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from tx.files.chat_template import render
from tx.tokenization import load_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be <b>brief</b>."},
    {"role": "user", "content": " What's 漢? "},
    {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nA word.", "tool_calls": [{"name": "f"}]},
]  # fmt: skip
LIKE_QWEN = """
{%- macro part(x) %}{{ '<' ~ x.role ~ '>' }}{% endmacro %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages[::-1] if message.role == 'user' and not ns.seen %}
    {%- set ns.seen = true %}{%- set ns.last = loop.index0 %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- part(message) + content|trim + (loop.last and '!' or ';') }}
    {%- if message.tool_calls is defined %}{{ message.tool_calls | tojson(indent=2) }}{% endif %}
    {%- for key, value in message.items() %}{% if key not in ['role'] %}{{ key }},{% endif %}{% endfor %}
{%- endfor %}
{%- if tools is not none %}tools{% endif %}
{% if add_generation_prompt %}{{ '<reply>' }}{{ messages | map(attribute='role') | join('+') }}
    {{ ns.last * 2 }} {{ 'x'.replace('x', 'yy') | upper }}
    {{ messages | selectattr('role', 'eq', 'user') | list | length }}
{% endif %}
"""


@pytest.mark.parametrize("reply", [True, False])
def test_templates_render_as_in_the_reference(tmp_path, reply):
    backend = Backend(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    ours = load_tokenizer(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    short = "{% for m in messages %}\n  {{ m }}{{ eos_token }}{% break %}\n{% endfor %}\n"
    for template in (LIKE_QWEN, short):
        ours.template = theirs.chat_template = template
        expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=reply)
        assert ours.chat(MESSAGES, reply=reply) == expected and len(expected) > 30


# Of every built-in one use; `transformers` renders templates in Jinja's sandbox with all of them.
BUILT_IN = [
    "{{ 'aaa' | replace('a', 'b', 2) }}{{ 'aaa'.replace('a', 'b', 1) }}{{ 'xaxbx' | trim('x') }}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>{% endgeneration %}"
    "{% else %}<{{ m.role }}>{% endif %}{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif %}"
    "{{ i }}{% endfor %}",
    "{% for x in [[1, [2, 3]], 4] recursive %}{{ loop(x) if x is iterable else x }};{{ loop.depth }}{% endfor %}",
    "{% set j = joiner(',') %}{{ j() }}a{{ j() }}b{% set c = cycler(1, 2) %}{{ c.next() }}"
    "{{ c.next() }}{{ c.next() }}",
    "{% set ns = namespace(a=1, b=[]) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ dict(a=1).a }}",
    "{{ dict.fromkeys(['a', 'b'], 1) | dictsort }}{% filter upper %}a{% endfilter %}"
    "{% with x = 1 %}{{ x }}{% endwith %}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call f(1) %}c{% endcall %}",
    "{% for r, l in messages | groupby('role') %}{{ r }}{{ l | length }}{% endfor %}",
    "{{ messages[2].content | indent(2) }}{{ messages[2].content | indent('> ', true, true) }}",
    "{{ [1, 2] | sum }}{{ messages | sum(attribute='content', start='') if false }}"
    "{{ [[1], [2]] | sum(start=[]) }}",
    "{{ 1.26 | round(1) }}{{ 1.21 | round(1, 'ceil') }}{{ 7 | round(-1, 'floor') }}{{ -1 | abs }}"
    "{{ '7' | int + 1 }}",
    "{{ 'a b' | wordcount }}{{ 'abcdefghij' | truncate(5, true, '') }}{{ 'a b c d' | truncate(4, leeway=0) }}",
    "{{ 'a' | center(5) }}|{{ '%s-%d' | format('x', 3) }}{{ '%s %.2f%%' % ('x', 1.5) }}{{ '%(a)s' % {'a': 1} }}",
    "{{ '{} {0[a]}'.replace('{} ', '').format({'a': 1}) }}{{ '{:>5}|{a!r}'.format(1, a='é') }}",
    "{{ '{{}} {a:04d}'.format_map({'a': 7}) }}{{ '2024 {}: {}'.format('a', messages) }}",
    "{{ range(5) | batch(2, 0) | list }}{{ range(5) | slice(2) | list }}{{ [3, 1] | sort | reverse | list }}",
    "{{ ['a', 'A', 'b'] | unique | list }}{{ [1, 2] | min }}{{ [1, 2] | max }}{{ {'b': 1, 'a': 2} | dictsort }}",
    "{{ 'a&<b>' | e }}{{ 'a' | forceescape }}{{ '<b>x</b>' | striptags }}{{ 'ä b' | urlencode }}{{ 'x' | safe }}",
    "{{ {'a': 1} | xmlattr }}{{ 1000 | filesizeformat }}{{ [1, 'b'] | pprint }}{{ messages[0] | attr('x') }}",
    "{{ messages | map(attribute='content') | map('trim') | join('|') }}{{ messages | join(',', 'role') }}",
    "{{ messages | rejectattr('tool_calls', 'defined') | list | length }}{{ [1, 2, 3] | select('odd') | list }}",
    "{{ [0, 1] | reject | list }}{{ {'a': 1} | items | list }}{{ 'abc' | first }}"
    "{{ [1, 2] | last }}{{ none | d('x', 1) }}",
    "{{ messages | tojson }}{{ messages | tojson(indent=2, sort_keys=true) }}"
    "{{ 'é' | tojson(ensure_ascii=true) }}",
    "{{ messages[0] | tojson(separators=(',', ':')) }}{{ [1] | tojson(indent='\t') }}{{ 'abc' | string | list }}",
    "{{ 4 is divisibleby 2 }}{{ 1 is integer }}{{ 1.5 is float }}{{ 1 is number }}"
    "{{ true is boolean }}{{ 'a' is in 'ab' }}",
    "{{ {} is mapping }}{{ [] is sequence }}{{ 'a' is lower }}{{ none is none }}{{ 1 is sameas 1 }}"
    "{{ 2 is ge 1 }}",
    "{{ x is undefined }}{{ range is callable }}{{ 'e' is filter }}{{ 'odd' is test }}"
    "{{ 'a' is escaped }}{{ 3 is odd }}",
    "{{ 'a.b.c'.rsplit('.', 1)[0] }}{{ 'a-b'.partition('-') }}{{ 'a-b'.rpartition('-') }}{{ 'aXb'.swapcase() }}",
    "{{ 'a'.center(3) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3) }}{{ '7'.zfill(3) }}{{ 'a\tb'.expandtabs(4) }}",
    "{{ 'ß'.casefold() }}{{ 'aba'.rfind('a') }}{{ 'aba'.index('b') }}{{ 'aba'.rindex('a') }}{{ 'a1'.isalnum() }}",
    "{{ 'é'.isascii() }}{{ '1'.isdecimal() }}{{ 'a'.isidentifier() }}{{ 'a'.isprintable() }}{{ 'Ab'.istitle() }}",
    "{{ {'a': 1}.copy() }}{{ [1].copy() }}{{ [1].index(1) }}{{ (1, 1).count(1) }}"
    "{{ 5 .bit_length() }}{{ 2.0.is_integer() }}",
    "{{ 'a' 'b' ~ 1 ~ none }}{{ 7 // 2 }}{{ 2 ** 5 }}{{ 7 % 4 }}{{ -3 }}{{ 'ab' * 2 }}"
    "{{ [1] + [2] }}{{ 'abc'[::-1] }}",
]  # fmt: skip


@pytest.mark.parametrize("template", BUILT_IN)
def test_built_ins_do_what_they_do_in_the_reference(template):
    (expected,), _ = render_jinja_template([MESSAGES], chat_template=template)
    assert render(template, MESSAGES) == expected and expected


def test_a_long_conversation_is_within_bounds_where_macros_write_it():
    template = (
        "{% macro tag(x) %}<{{ x }}>{% endmacro %}{% macro write(m) %}{{ tag(m.role) }}{{ m.content }}"
        "{{ tag('end') }}{% endmacro %}{% for m in messages %}{{ write(m) }}{% endfor %}"
        + "{% if tools %}" + "{{ tag(1) }}" * 500 + "{% endif %}"
    )  # fmt: skip
    text = render(template, 1000 * [{"role": "user", "content": "word " * 100}])
    assert text == 1000 * ("<user>" + "word " * 100 + "<end>")


GROW = (
    "{{% set ns = namespace(x={}) %}}"
    "{{% for i in range(60) %}}{{% set ns.x = {} %}}{{% endfor %}}{{{{ ns.x }}}}"
)
BIG = "{% set a = 'aaaaaaaaaa' * 100000 %}"
HOSTILE = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a long range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "product": "{{ 'a' * 10 ** 10 }}",
    "product of a list": "{{ [1] * 10 ** 10 }}",
    "power": "{{ 2 ** (10 ** 9) }}",
    "doubling by ~": GROW.format("'a'", "ns.x ~ ns.x"),
    "doubling by +": GROW.format("'a'", "ns.x + ns.x"),
    "doubling a list": GROW.format("['a']", "[ns.x, ns.x]"),
    "doubling a dictionary": GROW.format("1", "dict(a=ns.x, b=ns.x)"),
    "squares": GROW.format("2", "ns.x * ns.x"),
    "doubling by replace": GROW.format("'a'", "ns.x.replace('a', 'aa')"),
    "doubling by |replace": GROW.format("'a'", "ns.x | replace('a', 'aa')"),
    "replace": BIG + "{{ a.replace('a', a) }}",
    "mapped replace": BIG + "{{ range(99999) | map('replace', '0', a) | list | length }}",
    "join": BIG + "{{ a.join(range(99999) | map('string') | list) | length }}",
    "joined": BIG + "{{ range(99999) | join(a) | length }}",
    "strip": BIG + "{{ a.strip('b' * 1000000) }}",
    "trim": BIG + "{{ a | trim('b' * 1000000) }}",
    "comparisons": BIG + "{% for i in range(99999) %}{{ 'b' in a }}{% endfor %}",
    "tests": BIG + "{% for i in range(99999) %}{{ a is lower }}{% endfor %}",
    "output": BIG + "{% for i in range(99999) %}{{ a }}{% endfor %}",
    "output of a macro": BIG
    + "{% macro f() %}{% for i in range(99999) %}{{ a }}{% endfor %}{% endmacro %}{% set b = f() %}",
    "plain output": "{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "two calls each":
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "endless calls": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "a loop that doubles":
    "{% for m in messages recursive %}{% if loop.depth < 60 %}{{ loop([1, 1]) }}{% endif %}{% endfor %}",
    "wide format": "{{ '{:999999999}'.format(1) }}",
    "wide format of a value": "{{ '{:{}}'.format(1, 999999999) }}",
    "wide %": "{{ '%999999999d' % 1 }}",
    "wide % of a value": "{{ '%*d' % (999999999, 1) }}",
    "precise %": "{{ '%.999999999f' % 1 }}",
    "wide |format": "{{ '%999999999d' | format(1) }}",
    "many fields": BIG + "{{ ('%(a)s' * 9999) % {'a': a} }}",
    "many fields of format": BIG + "{{ ('{0}' * 9999).format(a) }}",
    "escape by attr": "{{ (1 | attr('__class__')).__mro__ }}",
    "wide indent": BIG + "{{ a | replace('a', '\n') | indent(99999) }}",
    "indent by a text": BIG + "{{ a | replace('a', '\n') | indent(a) }}",
    "a wide batch": "{{ [1] | batch(999999999, 0) | list }}",
    "many slices": "{{ [1] | slice(999999999) | list }}",
    "a precise ceiling": "{{ 1 | round(999999999, 'ceil') }}",
    "a round number": "{{ 1 | round(-999999999) }}",
    "a precise ceiling within the characters": "{{ 1 | round(9000000, 'ceil') }}",
    "the test of a loop": "{% for i in range(99999) if [" + "i," * 999 + "] %}{% endfor %}",
    "a block in a loop": "{% for i in range(99999) %}{% set x = self.a() %}{% endfor %}{% block a %}"
    + "{{ 1 if 1 else 1 }}" * 999 + "{% endblock %}",
    "a key that is hashed anew": "{% set t = (1,) * 99999 %}{% for i in range(9999) %}{{ {}[t] }}{% endfor %}",
    "a long text in order": "{% set t = 'ab' * 4000000 %}{{ t | sort | length }}",
    "a number without end": "{{ 1e999 }}",
    "nothing to go round": "{{ cycler() }}",
    "bytes of a number": "{{ 1 .to_bytes(999999999, 'big') }}",
    "wide tabs": "{{ '\t'.expandtabs(999999999) }}",
    "many tabs": BIG + "{{ a.replace('a', '\t').expandtabs(9999) }}",
    "sums of lists": "{{ range(99999) | batch(1) | sum(start=[]) | length }}",
    "sums in a loop": "{% for i in range(99999) %}{{ range(99999) | map('abs') | sum }}{% endfor %}",
    "ranges in a loop": "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "a view in a loop": "{% set v = dict.fromkeys(range(99999)).keys() %}{% for i in range(99999) %}"
    "{{ v | max }}{% endfor %}",
    "attributes in a loop": "{% for i in range(99999) %}{{ range(99999)|map(attribute='real')|sum }}{% endfor %}",
    "tests of many": BIG + "{{ range(99999) | map('string') | select('in', a) | list }}",
    "separators": BIG + "{{ range(999) | list | tojson(separators=(a, a)) }}",
    "deep JSON": "{% set ns = namespace(x=range(9999) | list) %}{% for i in range(900) %}"
    "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson(indent=8) }}",
    "a class of its own": "{{ dict.update(messages[0], {'role': 'x'}) }}",
    "wide center": "{{ 'a' | center(999999999) }}",
    "an unknown filter": "{{ 'a' | urlize }}",
    "another unknown filter": "{{ 'a' | wordwrap(9) }}",
    "wide ljust": "{{ 'a'.ljust(999999999) }}",
    "wide JSON": "{{ messages | tojson(indent=999999999) }}",
    "wide date": "{{ strftime_now('%999999999d') }}",
    "deep": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "long": " " * 2**18,
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ namespace.__init__.__globals__ }}",
    "mutation": "{{ messages.append(1) }}",
    "other files": "{% include '/etc/passwd' %}",
    "syntax": "{% if %}",
    "arithmetic": "{{ 1 / 0 }}",
}  # fmt: skip

FAR = {  # they go on until a bound stops them, half a second each
    "a block in a loop", "a key that is hashed anew", "a loop that doubles", "deep JSON", "doubling a dictionary",
    "doubling a list", "join", "tests", "two calls each",
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in FAR)) for n in HOSTILE])
def test_hostile_templates_are_refused(name):
    with pytest.raises(ValueError, match="^the chat template"):
        render(HOSTILE[name], MESSAGES)


def test_what_a_template_says_is_cut_and_steers_no_terminal():
    with pytest.raises(ValueError) as caught:
        render("{{ raise_exception('\x1b[2J' ~ 'x' * 9000000) }}", MESSAGES)
    assert len(str(caught.value)) < 1200 and "\x1b" not in str(caught.value)


def test_a_template_may_refuse_and_cannot_change_its_messages():
    with pytest.raises(ValueError, match="refuses these messages: no system prompt"):
        render("{{ raise_exception('no system prompt') }}", MESSAGES)
    assert render("{{ messages[0].__class__ }}{{ raise_exception.__globals__ }}|", MESSAGES) == "|"
    for way in ("'{0.__class__}'.format(1)", "'{a.__class__}'.format_map({'a': 1})", "1 | attr('__class__')"):
        assert "int" not in render("{{ " + way + " }}|", MESSAGES)
    with pytest.raises(ValueError, match="cannot be rendered: .*ljust"):
        render("{{ messages[0].content.ljust(9) }}", [{"role": "user", "content": b"no text"}])
    assert render("{{ strftime_now('%Y-%m-%d') | length }}", MESSAGES) == "10"
    long = [{"role": "user", "content": "x" * 100_000}] * 30
    assert len(render("{% for m in messages %}{{ m.content }}{% endfor %}", long)) == 3_000_000
