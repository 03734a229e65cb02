"""The model that `vllm_spark.py` registers; imported by vLLM only when a checkpoint of that architecture is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm_spark2_5_plugin import spark2_5


class Spark2_5ForCausalLM(spark2_5.Spark2_5ForCausalLM):  # type: ignore[misc]  # noqa: N801  vLLM's name of it
    """The package's model; weights are loaded with arguments that vLLM 0.32 has."""

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """Load a checkpoint and return the names that were loaded. The tied head needs no skipping: this loader skips
        every second name of one parameter by itself.
        """
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded
