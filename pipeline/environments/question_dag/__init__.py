"""Questions whose sub-questions form a graph, each answered by a generated tool."""

from pipeline.environments.question_dag.generator import QuestionDagWorld, load

__all__ = ["QuestionDagWorld", "load"]
