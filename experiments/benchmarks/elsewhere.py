"""Other people's loops, in a process and a Python of their own.

transformers and llama.cpp are no part of this project. Where a Python has them,
`Elsewhere` starts it with this very file, which imports nothing of ours; it
answers prompts when it is asked to, and says how long that took. So its arms
take turns with those here.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any


class Elsewhere:
  """A Python that answers prompts; use it as a context.

  Args:
    python: The interpreter.
    engine: 'transformers' or 'llama'.
    spec: What it is to load and to answer; see `_transformers` and `_llama`.

  Raises:
    ValueError: It does not start, or ends.
  """

  def __init__(self, python: str, engine: str, spec: dict[str, Any]):
    self._name = f'{python} with {engine}'
    command = [python, __file__, engine, json.dumps(spec)]
    try:
      self._process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
      )
    except OSError as error:
      raise ValueError(
        f'python: {python} cannot be started ({error.strerror}).'
      ) from None
    # What it says once all is loaded.
    self.versions = self._hear()

  def __enter__(self) -> 'Elsewhere':
    return self

  def __exit__(self, *_) -> None:
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    self._process.wait()

  def answer(self, arm: str, batch: int) -> dict[str, Any]:
    """Has it answer all prompts.

    Args:
      arm: A key of what `_transformers` or `_llama` returns.
      batch: How many at a time.

    Returns:
      `prefill_s` and `decode_s`, `tokens` that `decode_s` was for, and `first`,
      the tokens of the first answer; None if they are not known.
    """
    print(json.dumps([arm, batch]), file=self._process.stdin, flush=True)
    return self._hear()

  def _hear(self) -> dict[str, Any]:
    line = self._process.stdout.readline()
    if not line:
      raise ValueError(
        f'python: {self._name} ended; see whether it can import that, and has'
        ' memory for the model.'
      )
    return json.loads(line)


def _transformers(spec: dict[str, Any]) -> tuple[dict[str, Any], Any]:
  """transformers, greedy.

  Args:
    spec: Folders of the `verifier` and the `drafter`, its `dtype`; `prompts`,
      token ids; `stop`, the token that ends an answer, and its most tokens,
      `new_tokens`; drafted tokens per block, `gamma`; `threads`.

  Returns:
    Versions; and arms by name.
  """
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  torch.set_num_threads(spec['threads'])
  model, drafter = (
    transformers.AutoModelForCausalLM.from_pretrained(
      spec[name], dtype=getattr(torch, spec['dtype'])
    ).eval()
    for name in ('verifier', 'drafter')
  )
  config = drafter.generation_config
  config.num_assistant_tokens = spec['gamma']
  config.num_assistant_tokens_schedule = 'constant'
  config.assistant_confidence_threshold = 0.0

  def generate(prompts, new_tokens, **more):
    longest = max(map(len, prompts))
    # Padded on the left, as it asks for.
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor(
      [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    )
    start = time.perf_counter()
    with torch.inference_mode():
      out = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=spec['stop'],
        pad_token_id=0,
        **more,
      )
    seconds = time.perf_counter() - start
    return seconds, [_ended(row, spec['stop']) for row in out[:, longest:]]

  def arm(batch, **more):
    prefill_s = whole_s = tokens = 0.0
    first = None
    for i in range(0, len(spec['prompts']), batch):
      some = spec['prompts'][i : i + batch]
      # The first token comes of reading the prompt.
      prefill_s += generate(some, 1)[0]
      seconds, answers = generate(some, spec['new_tokens'], **more)
      whole_s += seconds
      tokens += sum(len(answer) - 1 for answer in answers)
      first = first or answers[0]
    return dict(
      prefill_s=prefill_s,
      decode_s=whole_s - prefill_s,
      tokens=tokens,
      first=first,
    )

  return (
    {'torch': torch.__version__, 'transformers': transformers.__version__},
    {
      'plain': arm,
      'assisted': lambda batch: arm(batch, assistant_model=drafter),
      'look-up': lambda batch: arm(
        batch, prompt_lookup_num_tokens=spec['gamma']
      ),
    },
  )


def _ended(row: Any, stop: int) -> list[int]:
  """An answer with the token that ends it, and nothing after that."""
  ids = row.tolist()
  return ids[: ids.index(stop) + 1] if stop in ids else ids


def _llama(spec: dict[str, Any]) -> tuple[dict[str, Any], Any]:
  """llama.cpp by xllamacpp, greedy, one prompt at a time.

  Args:
    spec: As for `_transformers`; the `verifier` is a GGUF file.

  Returns:
    Versions; and arms by name.
  """
  import importlib.metadata

  import xllamacpp

  params = xllamacpp.CommonParams()
  params.model.path = spec['verifier']
  params.cpuparams.n_threads = spec['threads']
  params.cpuparams_batch.n_threads = spec['threads']
  params.n_ctx = 2048
  params.n_parallel = 1
  params.warmup = True
  server = xllamacpp.Server(params)

  def arm(batch):
    prefill_s = decode_s = tokens = 0.0
    for prompt in spec['prompts']:
      said = server.handle_completions(
        dict(
          prompt=prompt,
          n_predict=spec['new_tokens'],
          temperature=0.0,
          cache_prompt=False,
          stop=[spec['stop_text']],
        )
      )
      timings = said['timings']
      prefill_s += timings['prompt_ms'] / 1e3
      decode_s += timings['predicted_ms'] / 1e3
      # The first token comes of reading the prompt.
      tokens += timings['predicted_n'] - 1
    # It does not say which tokens they were.
    return dict(
      prefill_s=prefill_s, decode_s=decode_s, tokens=tokens, first=None
    )

  version = importlib.metadata.version('xllamacpp')
  return {'xllamacpp': version}, {'plain': arm}


def _asked() -> Iterator[tuple[str, int]]:
  """Arms and batches, a line each, until there are no more."""
  for line in sys.stdin:
    yield tuple(json.loads(line))


def _main() -> None:
  engine, spec = sys.argv[1:]
  load = {'transformers': _transformers, 'llama': _llama}[engine]
  # Whatever libraries print goes elsewhere.
  with os.fdopen(os.dup(1), 'w') as out:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    versions, arms = load(json.loads(spec))
    print(json.dumps(versions), file=out, flush=True)
    for name, batch in _asked():
      print(json.dumps(arms[name](batch)), file=out, flush=True)


if __name__ == '__main__':
  _main()
