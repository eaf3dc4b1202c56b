"""What logprobs at the door measure: the model's own distribution, whatever grammars, masks and heat leave of it."""
import asyncio
import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from random_runner import PADDING, random_engine
from world import running

ASKED: dict[str, dict[str, Any]] = {
    "a choice": {"structured_outputs": {"choice": ["positive", "negative"]}},
    "top_k": {"top_k": 1},
    "hardly any temperature": {"temperature": 0.01},
    "half the temperature": {"temperature": 0.5},
    "the model's own temperature": {"temperature": 1.0},
    "few tokens allowed": {"allowed_token_ids": [70, 71]},
}
BYTES = 256  # tokens of one byte each, before the others


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def unpadded(**config: Any) -> Any:
    """Ids that have no token are next to impossible."""
    return random_engine(lambda sequence: dict.fromkeys(range(BYTES + 3, BYTES + 3 + PADDING), -30.0), **config)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_c06_values_are_those_of_the_unmodified_logits_and_the_body_is_strict_json(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    async def scene() -> None:
        async with running(tmp_path, make=unpadded) as world:
            raw: list[torch.Tensor] = []
            logits = world.runner._logits

            def watched(sequences: list[Any]) -> torch.Tensor:
                found = logits(sequences)
                raw.extend(found.clone())
                return found

            world.runner._logits = watched
            body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 12, "seed": 1, "min_tokens": 1}
            async with world.http(await world.key("ana")) as http:
                asking = {"logprobs": True, "top_logprobs": 2}
                answer = await http.post("/v1/chat/completions", json=body | asking | asked)
            assert answer.status_code == 200, answer.text
            [choice] = json.loads(answer.text, parse_constant=refuse)["choices"]
            ids = {world.engine.codec.spelled(id)[1]: id for id in range(BYTES)}
            tokens = choice["logprobs"]["content"]
            assert tokens
            for row, one in zip(raw, tokens, strict=False):
                worth = row.double().log_softmax(-1)
                assert worth[ids[bytes(one["bytes"])]].item() == pytest.approx(one["logprob"])
                best = worth.sort(descending=True, stable=True).values[:2].tolist()
                assert [other["logprob"] for other in one["top_logprobs"]] == pytest.approx(best)

    asyncio.run(scene())
