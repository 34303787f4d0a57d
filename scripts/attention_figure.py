"""Draw studies/figures/text-attention.svg: where new weights that copy look in a shortened prompt."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

from midstream_worlds.tiny_text.model import make_model
from midstream_worlds.tiny_text.settings import TinyTextConfig
from midstream_worlds.tiny_text.tokenizer import load_tokenizer

TEXT = (
    '<|user|>How high is Jyväskylä?<|end|><|assistant|><tool_call>{"name": "local_search", '
    '"arguments": {"query": "Jyväskylä'
)
HEADS = {0: "layer 0: the token before", 1: "layer 1: what followed the same two tokens"}


def main() -> None:
    """Draw the first head of the first two layers."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "midstream", "font.size": 7})
    tokenizer = load_tokenizer()
    model = make_model(TinyTextConfig(), tokenizer, seed=0)
    model.set_attn_implementation("eager")
    ids = tokenizer.encode(TEXT)
    with torch.inference_mode():
        attentions = model(torch.tensor([ids]), output_attentions=True).attentions
    words = [tokenizer.decode([token]).replace(" ", "·") for token in ids]
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    for axes, (layer, title) in zip(figure.subplots(1, 2), HEADS.items(), strict=True):
        axes.imshow(attentions[layer][0, 0], cmap="Blues", vmin=0, vmax=1)
        axes.set(title=title, xlabel="looks at", xticks=range(len(words)), yticks=range(len(words)))
        axes.set_xticklabels(words, rotation=90)
        axes.set_yticklabels(words)
    place = Path(__file__).parents[1] / "studies" / "figures" / "text-attention.svg"
    figure.savefig(place, metadata={"Date": None})


if __name__ == "__main__":
    main()
