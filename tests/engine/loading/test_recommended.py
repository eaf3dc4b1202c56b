"""What the makers of a model recommend for sampling, and that a client's own word goes before it."""
import json

import pytest
from scripted import scripted_engine
from tiny_models import write_folder, write_gguf

from hamdam.engine import InvalidField, ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint


@pytest.mark.parametrize(
    ("said", "sampling"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": 20}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"eos_token_id": 2}, {}),
        (None, {}),
    ],
)  # fmt: skip
def test_a_folder_recommends_by_its_generation_config(tmp_path, said, sampling):
    folder = write_folder(tmp_path)
    if said is not None:
        (folder / "generation_config.json").write_text(json.dumps(said))
    assert open_checkpoint(folder).sampling == sampling


def test_a_gguf_file_recommends_by_its_metadata(tmp_path):
    assert open_checkpoint(write_gguf(tmp_path / "silent.gguf")).sampling == {}
    said = {"general.sampling.temp": 0.25, "general.sampling.top_k": 40}
    path = write_gguf(tmp_path / "said.gguf", metadata=said)
    assert open_checkpoint(path).sampling == {"temperature": 0.25, "top_k": 40}


def test_a_recommendation_out_of_range_is_named(tmp_path):
    folder = write_folder(tmp_path)
    (folder / "generation_config.json").write_text('{"temperature": -1}')
    with pytest.raises(ModelError, match=r"generation_config.json: temperature"):
        open_checkpoint(folder)


def test_what_a_client_leaves_open_is_as_the_makers_recommend():
    engine = scripted_engine()
    engine.sampling = {"temperature": 0.25, "top_k": 40}
    assert engine.sampling_params({}).temperature == 0.25
    assert engine.sampling_params({"temperature": None, "seed": None}).temperature == 0.25
    assert engine.sampling_params({}, otherwise={"temperature": 0, "min_p": 0.5}).temperature == 0.25
    assert engine.sampling_params({"min_p": None}, otherwise={"min_p": 0.5}).min_p == 0.5
    params = engine.sampling_params({"temperature": 0, "stop": "x"})
    assert (params.temperature, params.top_k, params.stop) == (0, 40, ("x",))
    with pytest.raises(InvalidField, match="nonsense"):
        engine.sampling_params({"nonsense": None})
