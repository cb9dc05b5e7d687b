"""Policy-gradient training on groups: rollouts or stored ones in, a better model directory out.

Per step: trajectories -> infrastructure failures out -> selection, where one is set (`rl.selection`) ->
advantages per group, of what was selected -> one row per segment -> gradient -> weights to the model server,
whose digest must equal ours. TRL drives and owns the loss (`rl.grpo_trainer`). Steps, groups and seeds follow
from the configuration, so a run resumes where its last checkpoint is. Not covered: several devices, and
choosing tasks by difficulty (filters).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data.trajectories import SpanKind, Trajectory
from pipeline.errors import EngineError
from rl.advantages import AdvantageReport, advantages, verified_total
from rl.audit import audit
from rl.checkpoints import Checkpoints
from rl.disk import model_files
from rl.grpo_config import GrpoConfig, PushKind
from rl.grpo_metrics import Collected, sampled_tokens, step_metrics
from rl.grpo_sources import Replay, Source
from rl.lm import load_model, memory_returned, require_torch
from rl.models import checkpoint_digest
from rl.optimizer import make_optimizer
from rl.results import StepMetrics, TrainResult, finish, finished_result
from rl.rows import Row, drop_overlong, grpo_rows
from rl.selection import draw_weight, search_parts, select_batch
from rl.weights import copy_sidecars, model_digest, save_adapter, save_weights


def train_grpo(
    source: Source,
    *,
    model_dir: Path,
    out_dir: Path,
    config: GrpoConfig,
    stop_token_ids: Collection[int],
    on_progress: Callable[[StepMetrics], None] = lambda metrics: None,
) -> TrainResult:
    """Train the model in `model_dir` on `source` and leave a servable model directory in `out_dir`.

    Online, the server first gets the weights training starts from, and after every step the new ones.
    Raises ConfigError before the first step for what cannot be trained on, EngineError where the server
    does not hold the weights it was sent, StoreError where the disk does not take them, DivergedError for a
    gradient that is not finite.
    """
    source.check(config)
    identity = {
        "stage": "grpo",
        "config": config.identity(),
        "model": checkpoint_digest(model_dir),
        "source": f"{type(source).__name__} {source.identity()}",
    }
    if (done := finished_result(out_dir, identity)) is not None:
        return done
    with contextlib.ExitStack() as stack:
        stack.enter_context(memory_returned())
        if source.runner is None:
            runner = source.runner = stack.enter_context(asyncio.Runner())
            stack.callback(setattr, source, "runner", None)
            # Connections belong to the loop that opened them; new ones are opened in the next loop.
            stack.callback(lambda: runner.run(_close(source)))
        run = _Run(source, model_dir, out_dir, config, stop_token_ids, identity, on_progress)
        stack.callback(shutil.rmtree, run.serving, ignore_errors=True)
        return run.run()


async def _close(source: Source) -> None:
    """Release what was opened in the loop of this training."""
    if source.chosen is not None:
        await source.chosen.close()
    if source.engine is not None:
        await source.engine.close()


class _Run:
    """One training run: the state between TRL's callbacks."""

    def __init__(
        self,
        source: Source,
        model_dir: Path,
        out_dir: Path,
        config: GrpoConfig,
        stop_token_ids: Collection[int],
        identity: dict[str, Any],
        on_progress: Callable[[StepMetrics], None],
    ) -> None:
        self.source, self.model_dir, self.out_dir, self.config = source, model_dir, out_dir, config
        self.stop_token_ids, self.identity, self.on_progress = stop_token_ids, identity, on_progress
        self.model = load_model(model_dir, lora=config.lora, seed=config.seed)
        self.optimizer = make_optimizer(
            self.model, learning_rate=config.learning_rate, weight_decay=config.weight_decay
        )
        self.checkpoints = Checkpoints(out_dir.with_name(out_dir.name + ".checkpoints"), identity=identity)
        self.serving = out_dir.with_name(out_dir.name + ".serving")
        self.first, state = self.checkpoints.restore(self.model, self.optimizer)
        self.history = [StepMetrics(**entry) for entry in state.get("history", [])]
        self.batch = self.first // config.num_iterations
        self.plan = source.plan(config)
        self.collected = Collected()
        self.step_started = 0.0

    def run(self) -> TrainResult:
        """Push, train the missing steps, save, push what was saved."""
        if self.source.engine is not None:
            with model_files(self.serving, safe=self.checkpoints.kept):
                copy_sidecars(self.model_dir, self.serving)
            self.push()
        if self.first < self.config.steps and not self.is_spent:
            trainer = make_trainer(self)
            with _quiet_trl():
                trainer.train()
        result = finish(
            self.model,
            self.model_dir,
            self.out_dir,
            self.history,
            identity=self.identity,
            resumed_from=self.first,
            kept=self.checkpoints.kept,
        )
        if self.source.engine is not None and self.config.push is PushKind.WEIGHTS:
            self.push(self.out_dir)
        self.checkpoints.remove()
        return result

    def rollout(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`: the rows of the groups named by `prompts` (repeats are one group)."""
        started = time.perf_counter()
        names = list(dict.fromkeys(prompts))
        trajectories = self.source.collect(names, batch=self.batch, config=self.config)
        selected, selection = select_batch(
            trajectories,
            self.config.selection,
            keep=self.config.group_size,
            seed=f"{self.config.seed}/{self.batch}",
            share=self.config.group_share,
            value=self.value,
        )
        self.batch += 1
        rows, dropped, report = self.prepare(selected)
        report.describe(trajectories, self.value)
        self.collected = Collected(
            report=report,
            selection=selection | search_parts(selected, cap=self.weight_cap),
            reward_parts=self.source.chosen.parts(trajectories) if self.source.chosen else {},
            trajectories=len(trajectories),
            generated_tokens=sum(map(sampled_tokens, trajectories)),
            seconds=time.perf_counter() - started,
            rows=rows,
            dropped_overlong=dropped,
        )
        starts = [next(index for index, weight in enumerate(row.mask) if weight) for row in rows]
        pairs = list(zip(rows, starts, strict=True))
        return {
            "prompt_ids": [list(row.token_ids[:start]) for row, start in pairs],
            "completion_ids": [list(row.token_ids[start:]) for row, start in pairs],
            "logprobs": [list(row.logprobs[start:]) for row, start in pairs],
            "env_mask": [[int(weight != 0.0) for weight in row.mask[start:]] for row, start in pairs],
            "rows": rows,
        }

    @property
    def value(self) -> Callable[[Trajectory], float | None]:
        """What a trajectory is rewarded with."""
        return self.source.chosen.value if self.source.chosen else verified_total

    @property
    def weight_cap(self) -> float | None:
        """The largest weight a trajectory of a search may have."""
        return self.config.search.max_weight if self.config.search else None

    def prepare(self, trajectories: Sequence[Trajectory]) -> tuple[list[Row], int, AdvantageReport]:
        """Rows with advantages, and how many were too long. Audits the masks.

        Failed rollouts are out before anything is centred.
        """
        rewarded = [item for item in trajectories if item.reward is not None and _generated(item)]
        report = advantages(
            trajectories,
            kind=self.config.advantage,
            singletons=self.config.singletons,
            value=self.value,
            weight=lambda trajectory: draw_weight(trajectory, cap=self.weight_cap),
        )
        rows = grpo_rows(trajectories, report.values)
        if rewarded:
            audit(rewarded, stop_token_ids=self.stop_token_ids, rows=rows, allow_cut_off=True).refuse()
        kept, dropped = drop_overlong(
            rows, max_length=self.config.episode_tokens, overlong=self.config.overlong
        )
        return kept, dropped, report

    @property
    def is_spent(self) -> bool:
        """Whether the token budget is used up."""
        spent = sum(entry.row_tokens + entry.generated_tokens for entry in self.history)
        return 0 < self.config.token_budget <= spent

    def after_step(self, trainer: Any) -> None:
        """Push the weights, record the step, checkpoint."""
        config, number = self.config, len(self.history) + 1
        fresh = trainer.batch.iteration == 1
        # Rollouts are part of TRL's step, so their time is taken off the step's.
        train_seconds = time.perf_counter() - self.step_started - (self.collected.seconds if fresh else 0.0)
        started = time.perf_counter()
        digest = self.push() if self.source.engine is not None else ""
        metrics = step_metrics(
            number,
            config,
            trainer,
            self.collected,
            fresh=fresh,
            train_seconds=train_seconds,
            push_seconds=time.perf_counter() - started,
            digest=digest,
        )
        self.history.append(metrics)
        self.on_progress(metrics)
        due = config.checkpoint_every and number % config.checkpoint_every == 0 and number < config.steps
        if due and number % config.num_iterations == 0:
            state = {"history": [asdict(entry) for entry in self.history]}
            self.checkpoints.save(number, self.model, self.optimizer, state)

    def push(self, directory: Path | None = None) -> str:
        """Bring the weights to the server; their digest.

        EngineError where the server holds others, StoreError where the disk does not take them.
        """
        engine, runner = self.source.engine, self.source.runner
        assert engine is not None and runner is not None
        run, adapter = runner.run, self.config.push is PushKind.ADAPTER
        with model_files(self.serving, safe=self.checkpoints.kept):
            if adapter:
                save_adapter(self.model, self.serving / "adapter")
            written = not adapter and directory is None
            digest = save_weights(self.model, self.serving) if written else model_digest(self.model)
        if adapter:
            run(engine.load_adapter(self.serving / "adapter", version=digest))
            return digest
        served = run(engine.reload_weights(directory or self.serving))
        if served != digest:
            raise EngineError(
                f"the model server holds weights {served} after it was sent {digest}; rollouts "
                f"would not be of the trained policy: restart the server"
            )
        return digest


def make_trainer(run: _Run) -> Any:
    """TRL's trainer over the groups that are left, with our optimiser and hooks."""
    torch = require_torch()
    with _quiet_trl():
        from datasets import Dataset
        from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
        from trl import GRPOConfig

        from rl.grpo_trainer import RowTrainer

        class Hooks(TrainerCallback):
            """TRL's step boundaries."""

            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                run.step_started = time.perf_counter()

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                run.after_step(trainer)
                control.should_training_stop = control.should_training_stop or run.is_spent

        config = run.config
        batches = run.plan[run.batch :]
        generations = max(config.group_size, 2)
        arguments = GRPOConfig(
            output_dir=str(run.serving),
            max_steps=config.steps - run.first,
            per_device_train_batch_size=len(batches[0]) * generations,
            gradient_accumulation_steps=1,
            num_generations=generations,
            num_iterations=config.num_iterations,
            max_completion_length=config.episode_tokens,
            temperature=config.temperature,
            learning_rate=config.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            beta=0.0,
            epsilon=config.epsilon,
            epsilon_high=config.epsilon_high,
            loss_type=config.loss_type.value,
            shuffle_dataset=False,
            remove_unused_columns=False,
            seed=config.seed,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            activation_checkpointing=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = RowTrainer(
            model=run.model,
            reward_funcs=_rewards_are_ours,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": [name for batch in batches for name in batch]}),
            processing_class=AutoTokenizer.from_pretrained(str(run.model_dir), local_files_only=True),
            rollout_func=run.rollout,
            callbacks=[Hooks()],
            optimizers=(run.optimizer, None),
            settings=config,
            sampler_is_old=isinstance(run.source, Replay),
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _rewards_are_ours(prompts: Sequence[str], **columns: Any) -> list[float]:
    """TRL demands a reward function; advantages come with the rows, so it is never called."""
    raise AssertionError("rewards come from verifiers, not from TRL")


def _generated(trajectory: Trajectory) -> bool:
    return any(span.kind is SpanKind.GENERATED for segment in trajectory.segments for span in segment.spans)


@contextlib.contextmanager
def _quiet_trl() -> Iterator[None]:
    """TRL and its stack warn about themselves (experimental arguments, their own deprecations)."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning, UserWarning):
            warnings.simplefilter("ignore", category)
        yield
