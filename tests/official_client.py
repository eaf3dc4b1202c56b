"""OpenAI's own client, pointed at a World's /v1."""
import httpx
import openai
from world import World


def client_of(world: World, key: str) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{world.port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=httpx.AsyncClient())
