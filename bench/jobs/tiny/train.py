"""The least that passes through a job's whole life: a model of two numbers, saved once, with a metric."""

from __future__ import annotations

import torch

import updraft_learner as updraft

model = torch.nn.Linear(1, 1)
updraft.log_metrics({"loss": 0.5}, step=1)
updraft.Checkpointer().save({"model": model.state_dict()}, 1, block=True)
updraft.save_model(model, torch.zeros(1, 1), metrics={"loss": 0.5})
