"""LiteLLM itself, imported when first needed, and what it knows of a model: provider, price, abilities."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import anyio.to_thread

from pgrag.llm.spending import Bill

logger = logging.getLogger(__name__)

COST_MAP_VARIABLE = "LITELLM_LOCAL_MODEL_COST_MAP"
OLLAMA = ("ollama", "ollama_chat")
# How embedding models are told a question from a passage: provider -> (parameter, question, passage).
SEARCH = ("input_type", "search_query", "search_document")
RETRIEVAL = ("task_type", "RETRIEVAL_QUERY", "RETRIEVAL_DOCUMENT")
INPUT_TYPES = {
    "cohere": SEARCH,
    "bedrock": SEARCH,
    "azure_ai": SEARCH,
    "oci": SEARCH,
    "sagemaker": SEARCH,
    "voyage": ("input_type", "query", "document"),
    "nvidia_nim": ("input_type", "query", "passage"),
    "gemini": RETRIEVAL,
    "vertex_ai": RETRIEVAL,
    "jina_ai": ("task", "retrieval.query", "retrieval.passage"),
}
# Providers that take the parameter for some of their models only, and what those are called.
INPUT_TYPE_MODELS = {
    "bedrock": "cohere",
    "azure_ai": "cohere",
    "oci": "cohere",
    "sagemaker": "cohere",
    "jina_ai": "embeddings-v",
}

_importing = threading.Lock()


async def load() -> Any:
    """The module `litellm`, imported in a thread (2.5 s, 190 MB) without any connection."""
    return await anyio.to_thread.run_sync(_import)


def _import() -> Any:
    with _importing:
        own = COST_MAP_VARIABLE in os.environ
        os.environ.setdefault(COST_MAP_VARIABLE, "True")  # else the price map is fetched from the net
        try:
            litellm: Any = importlib.import_module("litellm")
        finally:
            if not own:
                del os.environ[COST_MAP_VARIABLE]
        litellm.suppress_debug_info = True  # it prints advertisements when something fails
        litellm.disable_hf_tokenizer_download = True  # for some models' names it would download one to count tokens
        if "LITELLM_LOG" not in os.environ:
            for name in ("LiteLLM", "LiteLLM Router"):
                logging.getLogger(name).setLevel(logging.CRITICAL)  # prompts stand in its messages
        return litellm


@dataclass(frozen=True, slots=True)
class Model:
    """A model as LiteLLM sees it: `full` is the setting, `name` what its provider calls it."""

    litellm: Any
    full: str
    provider: str
    name: str

    @classmethod
    def find(cls, litellm: Any, full: str, api_base: str | None) -> Model:
        """The model of a setting. Raises an error of LiteLLM's for a name it cannot place."""
        name, provider, _, _ = litellm.get_llm_provider(full, api_base=api_base)
        return cls(litellm, full, provider, name)

    @property
    def entry(self) -> Mapping[str, Any] | None:
        """What LiteLLM's map of prices and abilities says of it."""
        prices: Mapping[str, Mapping[str, Any]] = self.litellm.model_cost
        return prices.get(self.full) or prices.get(self.name)

    @property
    def takes_schema(self) -> bool:
        """Whether to ask for JSON by a schema: the map says so, or does not know the model, which may then refuse."""
        if self.provider in OLLAMA or self.entry is None:  # for Ollama it says no, and asks the server about others
            return True
        return bool(self.litellm.supports_response_schema(self.full))

    @property
    def dimension(self) -> int | None:
        """Length of an embedding model's vectors, if the map knows."""
        size = (self.entry or {}).get("output_vector_size")
        return size if isinstance(size, int) and size > 0 else None

    def input_type(self, kind: Literal["query", "passage"]) -> dict[str, str]:
        """The parameter that tells an embedding model a question from a passage; empty where there is none."""
        if self.provider not in INPUT_TYPES or INPUT_TYPE_MODELS.get(self.provider, "") not in self.name.lower():
            return {}
        parameter, query, passage = INPUT_TYPES[self.provider]
        return {parameter: query if kind == "query" else passage}

    def bill(self, prompt_tokens: int, completion_tokens: int, usage: Any = None, *, embedding: bool = False) -> Bill:
        """The cost of so many tokens by the local price map; `usage` is LiteLLM's, and knows of cached prompts."""
        cost: Decimal | None = None
        if self.entry is not None:
            try:
                parts = self.litellm.cost_per_token(
                    model=self.full,
                    prompt_tokens=prompt_tokens,
                    completion_tokens=completion_tokens,
                    usage_object=usage,
                    call_type="aembedding" if embedding else "acompletion",
                )
                cost = Decimal(str(round(sum(parts), 12)))
            except Exception as error:  # noqa: BLE001 - a paid answer must not be lost for want of its price
                logger.info("no price for %s: %s", self.full, type(error).__name__)
        return Bill(prompt_tokens, completion_tokens, cost)
