"""Writes a trace of transformers' speculative sampling on the bundled pair.

Run by hand, in an environment of its own that has torch and transformers
(`pip install torch transformers sentencepiece protobuf`), after the pair was
exported as folders of Hugging Face's:

  python -m experiments.export --model=tiny-verifier --folder=pair/verifier
  python -m experiments.export --model=tiny-drafter --folder=pair/drafter
  python tests/peers/transformers_trace.py pair transformers.jsonl.gz

Each line is a block as `_speculative_sampling` was given it, and what it
emitted: rows of the likeliest tokens, at temperature 2, for the pair is sure of
what it says.
"""

import gzip
import json
import pathlib
import sys

import torch
import transformers
from transformers.generation import utils

_LIKELIEST, _BLOCKS, _DRAFTS = 4, 800, 4
_PROMPTS = [f'The number {number} in words:' for number in range(1203, 9000, 9)]


def _row(logits: torch.Tensor) -> dict:
  probs = logits.double().softmax(-1)
  best = probs.topk(_LIKELIEST)
  return {
    'tokens': best.indices.tolist(),
    'probs': [round(x, 6) for x in best.values.tolist()],
    'rest': round(max(0.0, 1 - float(best.values.sum())), 6),
  }


def main(pair: str, out: str) -> None:
  """Generates until there are so many blocks."""
  folder = pathlib.Path(pair)
  verifier, drafter = (
    transformers.AutoModelForCausalLM.from_pretrained(folder / name).eval()
    for name in ('verifier', 'drafter')
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder / 'verifier')
  drafter.generation_config.num_assistant_tokens = _DRAFTS
  drafter.generation_config.num_assistant_tokens_schedule = 'constant'
  # Else a draft ends where its drawn token is unlikely, and is another draw.
  drafter.generation_config.assistant_confidence_threshold = 0.0
  blocks, theirs = [], utils._speculative_sampling

  def recorded(ids, q, length, p, **more):
    tokens, matches = theirs(ids, q, length, p, **more)
    drafts = ids[0, ids.shape[1] - length :].tolist()
    blocks.append(
      {
        'q': [_row(x) for x in q[0]],
        'p': [_row(x) for x in p[0]],
        'drafts': drafts,
        'tokens': tokens[0].tolist(),
      }
    )
    return tokens, matches

  utils._speculative_sampling = recorded
  torch.manual_seed(0)
  for prompt in _PROMPTS:
    asked = tokenizer(prompt, return_tensors='pt')
    verifier.generate(
      **asked,
      assistant_model=drafter,
      do_sample=True,
      temperature=2.0,
      top_k=0,
      top_p=1.0,
      max_new_tokens=48,
    )
    if len(blocks) >= _BLOCKS:
      break
  with gzip.open(out, 'wt', encoding='utf-8') as file:
    for block in blocks[:_BLOCKS]:
      file.write(json.dumps(block) + '\n')
  print(f'{len(blocks)} blocks of transformers {transformers.__version__}')


if __name__ == '__main__':
  main(*sys.argv[1:])
