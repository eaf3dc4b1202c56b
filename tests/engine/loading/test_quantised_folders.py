"""AWQ, GPTQ, compressed-tensors and FP8: exactly the weights that are stored, row by row too, in 4 or 8 bits."""
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from quantised_folders import Made, awq, compressed, fp8, gptq, int8, packed, write_quantised
from tiny_models import CONFIG, Tensors, random_tensors, write_folder
from whole_windows import WholeWindows

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.loading.coded import E4M3
from hamdam.engine.loading.gguf import block_format

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
DYNAMIC = {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "float"}
# What the config says, and how a matrix is made; in how many bits it can be had as it is.
FORMATS: dict[str, tuple[dict[str, Any], Callable[..., Made], int | None]] = {
    "awq": (AWQ, partial(awq, group=32), 4),
    "awq, groups of 16": (AWQ | {"group_size": 16}, partial(awq, group=16), None),
    "awq, a scale a row": (AWQ | {"group_size": -1}, partial(awq, group=1 << 20), 4),
    "gptq": (GPTQ, partial(gptq, group=32), 4),
    "gptq, act-order": (GPTQ | {"desc_act": True}, partial(gptq, group=32, scattered=True), None),
    "gptq v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, partial(gptq, group=32, raised=0), 4),
    **{
        f"gptq, {bits} bits{' symmetric' if symmetric else ''}": (
            GPTQ | {"bits": bits, "sym": symmetric},
            partial(gptq, group=32, bits=bits, symmetric=symmetric),
            4 if bits < 8 else 8 if symmetric else None,
        )
        for bits in (2, 3, 4, 8) for symmetric in (True, False)
    },
    "packed": (compressed("pack-quantized", num_bits=4, strategy="group", group_size=32), partial(packed, group=32), 4),
    "packed, a scale a row": (compressed("pack-quantized", num_bits=4), partial(packed, group=None), 4),
    "packed, 8 bits": (compressed("pack-quantized", strategy="group", group_size=32),
                       partial(packed, group=32, bits=8), 8),
    "packed, zeros": (compressed("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False),
                      partial(packed, group=32, symmetric=False), 4),
    "packed, plain zeros": (compressed("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False),
                            partial(packed, group=32, symmetric=False, plain_zeros=True), 4),
    "packed, act-order": (compressed("pack-quantized", num_bits=4, strategy="group", group_size=32),
                          partial(packed, group=32, scattered=True), None),
    "int8": (compressed("int-quantized"), int8, 8),
    "int8, whole": (compressed("int-quantized", strategy="tensor"), partial(int8, by="tensor"), 8),
    "int8, zeros": (compressed("int-quantized", symmetric=False), partial(int8, symmetric=False), None),
    "fp8 whole": (compressed("float-quantized", type="float", strategy="tensor"), partial(fp8, by="tensor"), None),
    "fp8 by row": (compressed("float-quantized", type="float"), fp8, None),
    "fp8 by block": (compressed("float-quantized", type="float", strategy="block", block_structure=[16, 32]),
                     partial(fp8, by="block", block=(16, 32)), None),
    "fp8 of the makers": (FP8, partial(fp8, by="block", name="weight_scale_inv"), None),
    "fp8 of the makers, whole": (FP8 | {"weight_block_size": None}, partial(fp8, by="tensor"), None),
}  # fmt: skip
SHAPES = {  # widths of matrices in 32s, beyond a block of FP8, and in neither
    "even": CONFIG | {"hidden_size": 64, "intermediate_size": 96},
    "beyond a block": CONFIG | {"hidden_size": 160, "intermediate_size": 288, "num_hidden_layers": 1,
                                "num_key_value_heads": 4},
    "ragged": CONFIG | {"hidden_size": 112, "num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": 16,
                        "intermediate_size": 80, "num_hidden_layers": 1},
}  # fmt: skip
IN_32 = ("gptq, 3 bits", "gptq, 3 bits symmetric")  # 32 numbers lie in three words


def cases() -> list[Any]:
    return [pytest.param(form, shape, id=f"{form}; {shape}") for form in FORMATS for shape in SHAPES
            if not (form in IN_32 and shape == "ragged")]  # fmt: skip


def maker(make: Callable[..., Made]) -> Callable[[int, int], Made]:
    random = np.random.default_rng(3)
    return lambda out, width: make(random, out, width)


def dequantised(form: str, blocks: NDArray[np.uint8], columns: int) -> NDArray[np.float32]:
    block = block_format({"Q4_1": 3, "Q8_0": 8}[form])
    assert block.dequantise is not None
    return block.dequantise(blocks.reshape(-1, block.nbytes)).reshape(len(blocks), -1)[:, :columns]


@pytest.mark.parametrize(("form", "shape"), cases())
def test_weights_are_exactly_those_that_are_stored(form: str, shape: str, tmp_path: Path) -> None:
    said, make, bits = FORMATS[form]
    right = write_quantised(tmp_path, SHAPES[shape], said, maker(make))
    checkpoint = open_checkpoint(tmp_path)
    assert set(right) == set(checkpoint.weights.formats)
    for name, values in right.items():
        found = checkpoint.array(name)
        np.testing.assert_allclose(found, values, rtol=2**-24, atol=0, err_msg=name)  # once rounded to float32
        few = range(len(values) // 3, len(values) - 5)
        assert np.array_equal(checkpoint.array(name, few), found[few.start : few.stop]), name
        if not name.endswith("_proj.weight"):
            assert checkpoint.weights.bits(name) is None
            continue
        assert checkpoint.weights.formats[name] not in ("F32", "I8", "F8_E4M3")
        moved = checkpoint.quantized(name)
        assert checkpoint.weights.bits(name) == bits or shape == "ragged"
        if moved is None:
            assert checkpoint.weights.bits(name) is None
            continue
        # Scales are float16 or rounded to it; so is 4 bits' minimum, at most 15 (or 16) of them.
        step = np.abs(values).max() / 2048
        np.testing.assert_allclose(dequantised(moved.format, moved.blocks, values.shape[1]), values, rtol=0, atol=step)
        some = checkpoint.quantized(name, few)
        assert some is not None and np.array_equal(some.blocks, moved.blocks[few.start : few.stop])


@pytest.mark.parametrize("form", ["gptq, 2 bits symmetric", "gptq, 3 bits symmetric", "gptq, 4 bits symmetric",
                                  "gptq, 8 bits symmetric", "packed"])  # fmt: skip
def test_symmetric_numbers_are_moved_without_any_rounding(form: str, tmp_path: Path) -> None:
    said, make, _ = FORMATS[form]
    right = write_quantised(tmp_path, SHAPES["even"], said, maker(make))
    checkpoint = open_checkpoint(tmp_path)
    for name, values in right.items():
        if moved := checkpoint.quantized(name):
            assert np.array_equal(dequantised(moved.format, moved.blocks, values.shape[1]), checkpoint.array(name))
    assert checkpoint.quantized("model.layers.0.mlp.up_proj.weight") is not None


def test_every_number_of_fp8_is_that_of_pytorch() -> None:
    right = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(E4M3, right, equal_nan=True)


def test_several_schemes_are_told_apart_by_what_is_stored(tmp_path: Path) -> None:
    said = compressed("mixed-precision")
    four = compressed("pack-quantized", num_bits=4, strategy="group", group_size=32)["config_groups"]["group_0"]
    eight = compressed("float-quantized", type="float")["config_groups"]["group_0"]
    said["config_groups"] = {"a": four | {"format": "pack-quantized"}, "b": eight | {"format": "float-quantized"}}
    random, made = np.random.default_rng(0), [packed, fp8]

    def make(out: int, width: int) -> Made:
        made.reverse()
        return packed(random, out, width, 32) if made[0] is packed else fp8(random, out, width)

    right = write_quantised(tmp_path, SHAPES["even"], said, make)
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.weights.formats.values()) == {"F32", "INT4", "FP8"}
    for name, values in right.items():
        np.testing.assert_allclose(checkpoint.array(name), values, rtol=2**-24)


def test_a_bias_of_zeros_that_the_model_has_not_is_left_out_and_another_refused(tmp_path: Path) -> None:
    bias = "model.layers.0.mlp.up_proj.bias"
    make = maker(partial(gptq, group=32))
    write_quantised(tmp_path / "zeros", CONFIG, GPTQ, make, extra={bias: torch.zeros(64)})
    assert bias not in open_checkpoint(tmp_path / "zeros").weights.formats
    write_quantised(tmp_path / "ones", CONFIG, GPTQ, make, extra={bias: torch.ones(64)})
    with pytest.raises(ModelError, match=rf"unexpected: {bias}"):
        open_checkpoint(tmp_path / "ones")


def with_weights(change: dict[str, Any], form: str = "pack-quantized") -> dict[str, Any]:
    return compressed(form, **({"num_bits": 4, "strategy": "group", "group_size": 32} | change))


def with_group(change: dict[str, Any]) -> dict[str, Any]:
    said = with_weights({})
    said["config_groups"]["group_0"] |= change
    return said


REFUSED = [
    ({"quant_method": "bitsandbytes"}, "quantised with 'bitsandbytes' are not supported"),
    ({"bits": 4}, "quant_method is missing"),
    (AWQ | {"bits": 8}, "quantization_config: bits 8 is not supported"),
    (AWQ | {"version": "gemv"}, "version 'gemv' is not supported"),
    (AWQ | {"zero_point": False}, "zero_point false is not supported"),
    (AWQ | {"group_size": 0}, "group_size is 0"),
    (AWQ | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is not a list of names"),
    (AWQ | {"modules_to_not_convert": ["up_proj"]}, "mlp.up_proj is said to be as it was, and is stored quantised"),
    (GPTQ | {"bits": 5}, "bits 5 is not supported"),
    (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
    (GPTQ | {"dynamic": {"-:x": {}}}, "dynamic, other bits for some modules, is not supported"),
    (FP8 | {"activation_scheme": "static"}, "activation_scheme 'static' is not supported"),
    (FP8 | {"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
    (FP8 | {"weight_block_size": [128]}, "weight_block_size is not two sizes"),
    (with_weights({}) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config .* 'sparse-24-bitmask'"),
    (with_weights({}) | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is not supported"),
    (with_weights({}) | {"transform_config": {"x": 1}}, "transform_config is not supported"),
    (with_weights({}) | {"config_groups": None}, "config_groups is missing"),
    (with_weights({"num_bits": 3}), "num_bits 3 is not supported"),
    (with_weights({"strategy": "tensor_group"}), "strategy 'tensor_group' is not supported"),
    (with_weights({"type": "float"}), "type 'float' in the format pack-quantized is not supported"),
    (with_weights({}, "nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized' is not supported"),
    (with_weights({}, "marlin-24"), "format 'marlin-24' is not supported"),
    (with_group({"input_activations": DYNAMIC | {"dynamic": False}}), "an activation scheme that is not dynamic"),
    (with_group({"output_activations": DYNAMIC}), "output_activations is not supported"),
    (compressed("float-quantized", type="float", symmetric=False), "symmetric false is not supported for floats"),
]


@pytest.mark.parametrize(("said", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_not_supported_is_refused_by_name(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_quantised(tmp_path, CONFIG, said, maker(partial(awq, group=32)))
    with pytest.raises(ModelError, match=words):
        open_checkpoint(tmp_path)


def spoiled(form: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[int, int], Made]:
    make = maker(FORMATS[form][1])

    def made(out: int, width: int) -> Made:
        tensors, right = make(out, width)
        change(tensors)
        return tensors, right

    return made


MISFITS: list[tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = [
    ("awq", lambda made: made.pop("qzeros"), "cannot be read: qzeros is missing"),
    ("awq", lambda made: made.update(g_idx=torch.zeros(3)), "g_idx is not expected"),
    ("awq", lambda made: made.update(scales=made["scales"][:, 1:].contiguous()), "scales has the shape"),
    ("awq", lambda made: made.update(qweight=made["qweight"].long()), "qweight has the type I64"),
    ("gptq", lambda made: made.update(g_idx=torch.full_like(made["g_idx"], 99)), "g_idx names a group that is not"),
    ("packed", lambda made: made.update(weight_shape=torch.tensor([1, 2])), "weight_shape is"),
    ("packed, zeros", lambda made: made.pop("weight_zero_point"), "weight_zero_point is missing"),
    ("fp8 by row", lambda made: made.update(weight=made["weight"].view(torch.int8)), "weight has the type I8"),
    ("fp8 of the makers", lambda made: made.update(weight_scale_inv=torch.ones(9, 9)), "weight_scale_inv has the shap"),
    ("int8", lambda made: made.update(weight_packed=torch.zeros(1)), "weight_packed is not expected"),
]


def test_a_matrix_that_is_there_quantised_and_plain_or_of_no_inputs_is_refused(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.q_proj"
    plain = {f"{name}.weight": torch.zeros(64, 64)}
    write_fused(tmp_path / "twice", AWQ, maker(partial(awq, group=32)), extra=plain)
    with pytest.raises(ModelError, match=r"qkv_proj' gives '.*q_proj\.weight', which is there already"):
        open_checkpoint(tmp_path / "twice")
    form = "awq, a scale a row"
    write_quantised(tmp_path / "none", SHAPES["even"], FORMATS[form][0], spoiled(form, emptied))
    with pytest.raises(ModelError, match="cannot be read: it has no inputs"):
        open_checkpoint(tmp_path / "none")


def emptied(made: dict[str, torch.Tensor]) -> None:
    made["qweight"] = made["qweight"][:0].contiguous()


@pytest.mark.parametrize(("form", "change", "words"), MISFITS, ids=[words for *_, words in MISFITS])
def test_tensors_that_do_not_fit_the_config_are_named(
    form: str, change: Callable[[dict[str, torch.Tensor]], object], words: str, tmp_path: Path
) -> None:
    write_quantised(tmp_path, SHAPES["even"], FORMATS[form][0], spoiled(form, change))
    with pytest.raises(ModelError, match=words):
        open_checkpoint(tmp_path)


def test_activations_that_are_rounded_as_they_come_are_taken(tmp_path: Path) -> None:
    """Rows stay floats here: more exact than what the makers measured."""
    said = compressed("float-quantized", type="float")
    said["config_groups"]["group_0"]["input_activations"] = DYNAMIC
    right = write_quantised(tmp_path, CONFIG, said, maker(fp8))
    name = "model.layers.1.self_attn.q_proj.weight"
    np.testing.assert_allclose(open_checkpoint(tmp_path).array(name), right[name], rtol=2**-24)


PHI = {key: value for key, value in CONFIG.items() if key != "model_type"} | {"model_type": "phi3", "hidden_size": 64}


def write_fused(
    folder: Path, said: dict[str, Any], make: Callable[[int, int], Made], *, extra: Tensors | None = None, **config: Any
) -> dict[str, Any]:
    """As phi3 has them: q, k and v are one matrix, and gate and up. What each of its parts stands for."""
    tensors = random_tensors(PHI)
    right, stored = {}, {name: values for name, values in tensors.items() if not name.endswith("_proj.weight")}
    for layer in range(PHI["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for fused, parts in (
            ("self_attn.qkv_proj", [f"self_attn.{part}_proj" for part in "qkv"]),
            ("self_attn.o_proj", ["self_attn.o_proj"]),
            ("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"]), ("mlp.down_proj", ["mlp.down_proj"]),
        ):  # fmt: skip
            counts = [len(tensors[f"{at}{part}.weight"]) for part in parts]
            made, whole = make(sum(counts), tensors[f"{at}{parts[0]}.weight"].shape[1])
            stored |= {f"{at}{fused}.{name}": tensor for name, tensor in made.items()}
            for part, values in zip(parts, np.split(whole, np.cumsum(counts)[:-1]), strict=True):
                right[f"{at}{part}.weight"] = values
    write_folder(folder, PHI | config | {"quantization_config": said}, stored | (extra or {}))
    return right


FUSED = ["awq", "gptq, act-order", "packed", "int8", "int8, zeros", "fp8 whole", "fp8 by row", "fp8 by block",
         "fp8 of the makers"]  # fmt: skip


@pytest.mark.parametrize("form", FUSED)
def test_a_fused_quantised_matrix_is_taken_apart(form: str, tmp_path: Path) -> None:
    said, make, bits = FORMATS[form]
    right = write_fused(tmp_path, said, maker(make))
    checkpoint = open_checkpoint(tmp_path)
    for name, values in right.items():
        np.testing.assert_allclose(checkpoint.array(name), values, rtol=2**-24, err_msg=name)
        assert np.array_equal(checkpoint.array(name, range(9, 14)), checkpoint.array(name)[9:14])
        assert checkpoint.weights.bits(name) == bits


@pytest.mark.parametrize("form", FUSED)
def test_where_a_part_of_each_head_turns_rows_change_places_and_stay_as_they_are_stored(
    form: str, tmp_path: Path
) -> None:
    """A head has 16 rows of which 8 turn: 0 to 3 with 4 to 7. As the decoder has it, i with i + 8."""
    said, make, bits = FORMATS[form]
    right = write_fused(tmp_path, said, maker(make), partial_rotary_factor=0.5)
    checkpoint = open_checkpoint(tmp_path)
    order = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
    for name, values in right.items():
        if ".q_proj." in name or ".k_proj." in name:
            values = values.reshape(-1, 16, values.shape[1])[:, order].reshape(values.shape)
        found = checkpoint.array(name)
        np.testing.assert_allclose(found, values, rtol=2**-24, err_msg=name)
        assert np.array_equal(checkpoint.array(name, range(9, 21)), found[9:21])
        coded = checkpoint.weights.coded(name, range(9, 21))
        assert coded is not None and np.array_equal(coded.float32(), found[9:21])
        assert checkpoint.weights.bits(name) == bits
        if bits is not None:
            blocks = checkpoint.quantized(name)
            some = checkpoint.quantized(name, range(9, 21))
            assert blocks is not None and some is not None and np.array_equal(some.blocks, blocks.blocks[9:21])


@pytest.mark.parametrize("turning", [0.5, 1.0])
@pytest.mark.parametrize("form", FUSED)
def test_what_a_device_gets_of_a_fused_matrix_is_what_it_stands_for(form: str, turning: float, tmp_path: Path) -> None:
    """Blocks of FP8 within which a part begins, or whose rows have changed places, are none: those come as floats."""
    said, make, _ = FORMATS[form]
    write_fused(tmp_path, said, maker(make), partial_rotary_factor=turning)
    checkpoint = open_checkpoint(tmp_path)
    for name, piece in checkpoint.pieces(keep=True):
        floats = piece.values if isinstance(piece.values, torch.Tensor) else piece.values.dequantise()
        rows = range(piece.first, piece.first + len(floats))
        assert np.array_equal(floats.numpy(), checkpoint.array(name, rows)), name


@pytest.mark.parametrize("form", ["int8", "fp8 by row", "fp8 of the makers"])
def test_a_fused_model_of_which_a_part_of_each_head_turns_answers_as_its_dequantised_twin(
    form: str, tmp_path: Path
) -> None:
    said, make, _ = FORMATS[form]
    config = {"partial_rotary_factor": 0.5}
    right = write_fused(tmp_path / "stored", said, maker(make), **config)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values, np.float32)) for name, values in right.items()}
    for name, values in random_tensors(PHI).items():
        tensors.setdefault(name, values)
    write_folder(tmp_path / "twin", PHI | config, tensors)
    ids = list(range(3, 40))
    found, twin = (WholeWindows(open_checkpoint(tmp_path / one), longest=40).logits(ids) for one in ("stored", "twin"))
    assert twin.std() > 0.1
    np.testing.assert_allclose(found, twin, rtol=0, atol=1e-4 * np.abs(twin).max())
