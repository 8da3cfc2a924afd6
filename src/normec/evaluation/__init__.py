"""Evaluation: losses, accuracy and metrics of a model on a federation."""

from normec.evaluation.clients import by_client, spread
from normec.evaluation.evaluate import Evaluation, Scores, evaluate, gradient, objective, refuse_broken
from normec.evaluation.metrics import Metric

__all__ = ["Evaluation", "Metric", "Scores", "by_client", "evaluate", "gradient", "objective", "refuse_broken", "spread"]
