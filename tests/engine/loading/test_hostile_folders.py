"""Random changes of what a quantised folder says, in its config and in its header: it opens, or it is a ModelError."""
import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_folders import Made, awq, compressed, fp8, gptq, int8, packed, write_quantised
from tiny_models import CONFIG

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint

GROUPS = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}
FORMATS: dict[str, tuple[dict[str, Any], Callable[..., Made]]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, partial(awq, group=32)),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 16}, partial(gptq, group=16, scattered=True)),
    "packed": (compressed("pack-quantized", **GROUPS), partial(packed, group=32, symmetric=False)),
    "int8": (compressed("int-quantized", symmetric=False), partial(int8, symmetric=False)),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [16, 16]},
            partial(fp8, by="block", block=(16, 16), name="weight_scale_inv")),
}  # fmt: skip
WORDS = [None, -1, 0, 1, 2, 2**31, 2**63, 10**19, 1.5, 1e308, "x", "", "BF16", "F8_E4M3", "I32", "F64", "BOOL", [], {},
         [[]], [1, 2, 3], True, {"a": 1}, "\ud800", "\n"]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value within another."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*at, key)
        yield from places(one, (*at, key))


def changed(chance: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 2))):
        *way, last = chance.choice(list(places(value)))
        holder: Any = value
        for key in way:
            holder = holder[key]
        what = chance.random()
        if what < 0.15:
            del holder[last]
        elif what < 0.4 and type(holder[last]) is int:
            holder[last] += chance.choice((-1, 1, 8, holder[last]))
        else:
            holder[last] = copy.deepcopy(chance.choice(WORDS))
    return value


@pytest.mark.parametrize("form", FORMATS)
def test_f13_random_changes_of_config_and_header_raise_nothing_but_model_error(form: str, tmp_path: Path) -> None:
    said, make = FORMATS[form]
    write_quantised(tmp_path, CONFIG, said, partial(make, np.random.default_rng(13)))
    config, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    whole, right = file.read_bytes(), json.loads(config.read_text())
    end = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:end])
    open_checkpoint(tmp_path)
    chance, outcomes = random.Random(13), {"opened": 0, "refused": 0}
    for _ in range(120):
        if chance.random() < 0.5:
            file.write_bytes(whole)
            config.write_text(json.dumps(changed(chance, right)))
        else:
            config.write_text(json.dumps(right))
            other = json.dumps(changed(chance, header)).encode()
            file.write_bytes(len(other).to_bytes(8, "little") + other + whole[end:])
        try:
            checkpoint = open_checkpoint(tmp_path)
            for name in checkpoint.weights.shapes:
                assert checkpoint.array(name).shape == checkpoint.weights.shapes[name]
            outcomes["opened"] += 1
        except ModelError as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017
            outcomes["refused"] += 1
    assert all(outcomes.values()), outcomes  # of both there were some: changes are neither harmless nor all fatal
