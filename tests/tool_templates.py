"""Templates that know tools, small ones in the shapes that families of models have. Not a test."""

QWEN = """{%- if tools %}<|im_start|>system
{{ messages[0].content + '\\n' if messages[0].role == 'system' else '' }}
{%- for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call> {"name": …, "arguments": …} </tool_call><|im_end|>
{% endif -%}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role != 'system' or not tools %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}{% set call = call.function %}
<tool_call>
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA_3 = """{%- for m in messages %}
{%- if 'tool_calls' in m %}
{%- if m.tool_calls|length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{{- '<|im_start|>assistant\\n{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
{{- m.tool_calls[0].function.arguments | tojson }}}<|im_end|>
{%- elif m.role == 'tool' %}<|im_start|>ipython
{{ {"output": m.content} | tojson }}<|im_end|>
{%- else %}<|im_start|>{{ m.role }}
{% if loop.first and tools %}{{ tools | tojson(indent=4) }}{% endif %}{{ m.content }}<|im_end|>
{%- endif %}
{%- endfor %}<|im_start|>assistant{{ '\\n' }}"""
MISTRAL_3 = """{% set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and m == users[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.tool_calls %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{%- if call.id|length != 9 %}{{ raise_exception('ids of nine letters') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last }}
{%- endfor %}]</s>
{%- elif m.role == 'tool' %}[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "id": "{{ m.tool_call_id }}"}
{%- else %} {{ m.content }}</s>
{%- endif %}
{%- endfor %}"""
TEMPLATES = {"qwen": QWEN, "llama": LLAMA_3, "mistral": MISTRAL_3}
QWEN_3 = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
{{- '<tool_call></tool_call><|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if m.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""
"""As Qwen 3 does, it shows the model its thoughts since the last question."""
