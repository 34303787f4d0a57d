"""The model card of a LoRA run's adapter: what it was trained on, its results, how to serve it."""

from __future__ import annotations

from typing import Any

from midstream.runs import RunDirectory

_CURVE_POINTS = 10


def model_card(run: RunDirectory, engine: str) -> str:
    """The Markdown of `policy/README.md`; `engine` is the table of the model that the adapter belongs to."""
    info = run.info()
    resolved: Any = info.resolved
    model, reward = resolved["engines"][engine].get("model", engine), resolved["reward"]
    metrics = run.metrics.read()
    every = max(1, -(-len(metrics) // _CURVE_POINTS))
    points = [step for step in metrics if step.step % every == 0 or step is metrics[-1]]
    curve = [f"| {step.step} | {step.reward_mean:.3f} |" for step in points]
    results = [
        f"| {found.set_name} | {found.sampling} | {found.policy} | {found.success:.1%} of {found.tasks} |"
        for found in run.evaluations.read()
    ]
    return "\n".join(
        [
            "---",
            f"base_model: {model}",
            "library_name: peft",
            "---",
            f"# {info.recipe_name}: a LoRA adapter of {model}",
            "",
            f"Trained by midstream {info.midstream}, recipe `{info.recipe_name}`, seed {info.seed}. "
            "The whole recipe is in the run's `recipe.toml`, next to this folder.",
            "",
            f"Tasks: `{resolved['tasks']['type']}`. Reward: `{reward['type']}`, in [0, 1].",
            "",
            "| step | mean reward |",
            "|---|---|",
            *curve,
            "",
            "| set | sampling | policy | success |",
            "|---|---|---|---|",
            *results,
            "",
            "Serve it, then name the adapter as the model:",
            "",
            f"    vllm serve {model} --enable-lora --lora-modules {info.recipe_name}={run.policy_dir.resolve()}",
            "",
        ]
    )
