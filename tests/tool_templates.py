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
