# SPDX-License-Identifier: Apache-2.0
"""The models that a daemon knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torpor import _methods as m
from torpor._message import message
from torpor._paths import absolute
from torpor.model import Figures, Fingerprint, Layout, Model, ReplayMode
from torpor.v1 import model_service_pb2 as model_pb

if TYPE_CHECKING:
    from torpor.client import Client


class Models:
    """`client.models`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # A name keeps its model for as long as the daemon's data directory.
        self._known: dict[str, Model] = {}

    def register(
        self,
        name: str,
        *,
        directory: str | Path | None = None,
        config_json: str = "",
        layout: Layout | None = None,
        kv_dtype: str = "",
        fingerprint: Fingerprint = Fingerprint(),
        block_size: int = 0,
        timeout: float | None = None,
    ) -> Model:
        """Registers a model from one of: a directory on the daemon's host (a
        relative one is made absolute here), the text of a config.json, a
        layout. Repeating a registration is harmless."""
        request = message(
            model_pb.RegisterRequest,
            name=name,
            model_dir="" if directory is None else absolute(directory),
            config_json=config_json,
            layout=None if layout is None else layout.to_pb(),
            kv_dtype=kv_dtype,
            fingerprint=fingerprint.to_pb(),
            block_size=block_size,
        )
        return self._keep(self._client.call(m.REGISTER, request, timeout))

    def describe(self, name: str, *, timeout: float | None = None) -> Model:
        request = message(model_pb.DescribeModelRequest, name=name)
        return self._keep(self._client.call(m.DESCRIBE_MODEL, request, timeout))

    def get(self, name: str) -> Model:
        """As `describe`, asked once for each name."""
        known = self._known.get(name)
        return self.describe(name) if known is None else known

    def list(self, *, timeout: float | None = None) -> list[Model]:
        request = model_pb.ListModelsRequest()
        answer = self._client.call(m.LIST_MODELS, request, timeout)
        return [self._keep(one) for one in answer.models]

    def plan(
        self,
        model: str = "",
        *,
        config_json: str = "",
        kv_dtype: str = "",
        n_tokens: int = 0,
        resume_at: int = 0,
        mode: ReplayMode | str = ReplayMode.AUTO,
        replay_tokens: int = 0,
        want_logits: bool = False,
        timeout: float | None = None,
    ) -> Figures:
        """Sizes and replay lengths of a registered model or any config.json;
        with `resume_at`, the plan of that cut too."""
        request = message(
            model_pb.PlanRequest,
            model=model,
            config_json=config_json,
            kv_dtype=kv_dtype,
            n_tokens=n_tokens,
            resume_at=resume_at,
            mode=ReplayMode.of(mode).wire_name,
            replay_tokens=replay_tokens,
            want_logits=want_logits,
        )
        return Figures.from_pb(self._client.call(m.PLAN, request, timeout))

    def _keep(self, state: model_pb.ModelState) -> Model:
        model = Model.from_pb(state)
        self._known[model.name] = model
        return model
